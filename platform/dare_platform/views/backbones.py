"""A backbone as it is found here: which content, what it is made of, what it scores untouched at which decoding."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare.catalog import UnknownBackboneError, backbone_directory, backbones, families
from dare.recipe import backbone_names as published
from dare.sampling_config import SamplingConfig
from dare.spec import JobSpec, TaskProtocol
from dare_platform import statistics
from dare_platform.board import Estimate
from dare_platform.models import Backbone, BackboneRevision, Entry, Result, Run, TaskVersion, TrackVersion
from dare_platform.viewer import NOBODY, Viewer
from dare_platform.views.entries import entries_on
from dare_platform.views.shapes import EntrySummary

MOST_ENTRIES = 20


@dataclass(frozen=True)
class Content:
    """One exact content of a backbone that runs here have used."""

    revision: str
    weights_sha256: str
    tokenizer_sha256: str
    entries: int
    """Entries with runs on it that everybody sees."""


@dataclass(frozen=True)
class Untouched:
    """One task's score of the untouched backbone, as one track asked for it."""

    track: str
    task: str
    solved: Estimate
    items: int
    scorer: str
    protocol: str
    sampling: SamplingConfig

    @property
    def steps(self) -> int | None:
        """Denoising forwards of an answer that fills its window; None where the selector decides how many there are."""
        config = self.sampling
        if config.selector != "schedule":
            return None
        return config.steps_per_block * (config.gen_length // config.block_length)


@dataclass(frozen=True)
class BackboneView:
    """Everything that the page of one backbone shows."""

    slug: str
    family: str | None
    kind: str | None
    """`masked` or `block`; None for a family that is not in the catalog."""
    parameters: int | None
    is_here: bool
    """Its files are on this machine."""
    licence: str | None
    summary: str | None
    origin: str | None
    sampling: SamplingConfig | None
    """How its rollouts are decoded when nobody says otherwise."""
    mask_token: str | None
    mask_id: int | None
    contents: tuple[Content, ...]
    """Newest first: results on different ones are never compared."""
    untouched: tuple[Untouched, ...]
    entries: tuple[EntrySummary, ...]
    entries_in_all: int


def newest_revision(session: Session, backbone: str) -> str | None:
    """The content that boards are about."""
    query = (
        select(BackboneRevision.id)
        .join(Backbone, Backbone.id == BackboneRevision.backbone_id)
        .where(Backbone.slug == backbone)
    )
    return session.execute(query.order_by(BackboneRevision.id.desc()).limit(1)).scalar_one_or_none()


def backbone_view(session: Session, slug: str, viewer: Viewer = NOBODY) -> BackboneView | None:
    """The page of one backbone; None for a name that neither this place nor a recipe knows."""
    row = session.execute(select(Backbone).where(Backbone.slug == slug)).scalar_one_or_none()
    record = backbones().get(slug)
    if row is None and record is None and slug not in published():
        return None
    family = row.family if row else record.family if record else None
    token, mask_id = _mask(slug)
    shown, in_all = entries_on(session, slug, viewer, MOST_ENTRIES)
    return BackboneView(
        slug=slug,
        family=family,
        kind=families()[family].kind if family in families() else None,
        parameters=row.parameters if row else record.parameters if record else None,
        is_here=record is not None,
        licence=record.licence if record else None,
        summary=record.summary if record else None,
        origin=record.origin if record else None,
        sampling=record.sampling if record else None,
        mask_token=token,
        mask_id=mask_id,
        contents=_contents(session, slug),
        untouched=_untouched(session, slug),
        entries=shown,
        entries_in_all=in_all,
    )


def _mask(slug: str) -> tuple[str | None, int | None]:
    """Mask token and its id, as the backbone's own files say; None where those are elsewhere or do not."""
    try:
        folder = backbone_directory(slug)
    except UnknownBackboneError:
        return None, None
    token = _said(folder / "tokenizer_config.json").get("mask_token")
    text = token.get("content") if isinstance(token, Mapping) else token
    mask_id = _said(folder / "config.json").get("mask_token_id")
    return (text if isinstance(text, str) else None), (mask_id if isinstance(mask_id, int) else None)


def _said(file: Path) -> Mapping[str, object]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _contents(session: Session, slug: str) -> tuple[Content, ...]:
    rows = session.execute(
        select(BackboneRevision)
        .join(Backbone, Backbone.id == BackboneRevision.backbone_id)
        .where(Backbone.slug == slug)
        .order_by(BackboneRevision.id.desc())
    ).scalars()
    used: dict[str, set[str]] = defaultdict(set)
    public = (
        select(Run.backbone_revision_id, Run.entry_id)
        .join(Entry, Entry.id == Run.entry_id)
        .join(BackboneRevision, BackboneRevision.id == Run.backbone_revision_id)
        .join(Backbone, Backbone.id == BackboneRevision.backbone_id)
        .where(Backbone.slug == slug, Entry.visibility != "private", Entry.kind != "reference")
        .distinct()
    )
    for revision, entry in session.execute(public):
        used[revision].add(entry)
    return tuple(
        Content(row.source_revision, row.weights_sha256, row.tokenizer_sha256, len(used[row.id])) for row in rows
    )


def _untouched(session: Session, slug: str) -> tuple[Untouched, ...]:
    """Greedy scores of reference entries on the newest content, by track and task, seeds together."""
    revision = newest_revision(session, slug)
    rows = session.execute(
        select(TrackVersion.track_slug, TrackVersion.version, TaskVersion.task_slug, Result, Run.job_json, Run.seed)
        .join(Run, Run.id == Result.run_id)
        .join(Entry, Entry.id == Run.entry_id)
        .join(TrackVersion, TrackVersion.id == Entry.track_version_id)
        .join(TaskVersion, TaskVersion.id == Result.task_version_id)
        .where(
            Run.backbone_revision_id == revision,
            Run.state == "succeeded",
            Entry.kind == "reference",
            Entry.gate == "accepted",
            Entry.visibility != "private",
            Result.metric == "solved",
            Result.decoding == "greedy",
        )
        .order_by(TrackVersion.track_slug, TrackVersion.version, TaskVersion.task_slug, Result.scorer, Run.seed)
    ).all()
    values: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    known: dict[tuple[str, str, str, str], tuple[int, SamplingConfig]] = {}
    for track, version, task, result, job_json, _ in rows:
        asked = {one.task: one for one in _protocols(job_json)}.get(task)
        if asked is None or asked.scorer != result.scorer:
            continue  # another scorer's word on the same answers
        key = (f"{track} {version}", task, result.scorer, result.protocol)
        values[key].append(result.value)
        known[key] = (result.n, asked.sampling)
    return tuple(
        Untouched(track, task, statistics.mean_interval(found), known[key][0], scorer, protocol, known[key][1])
        for key, found in values.items()
        for track, task, scorer, protocol in [key]
    )


def _protocols(job_json: str) -> tuple[TaskProtocol, ...]:
    evaluate = JobSpec.model_validate_json(job_json).evaluate
    return evaluate.protocols if evaluate else ()
