"""A task as a column of boards: its items, how hard each is, where scorers agree, and one item with answers to it.

What is said of items is said of at most `MOST_CHECKPOINTS` checkpoints, the newest ones, whose rows are found by the
beginning of the primary key: a page costs the same however many answers are stored. Private entries are in none of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import ColumnElement, Subquery, case, func, select
from sqlalchemy.orm import Session, aliased

from dare import tasks
from dare.spec import JobSpec, TaskProtocol
from dare.tasks import Task, load_task
from dare_platform.models import Entry, Prediction, Result, Run, ScoreItem, TaskItem, TaskVersion, TrackVersion
from dare_platform.views.backbones import newest_revision

MOST_CHECKPOINTS = 40
"""More would not move a tenth of a histogram; forty of 1,319 items are 50,000 rows of an index."""
PAGE = 20
BINS = 10
TEXT_IS_KEPT_BACK: Mapping[str, str] = {
    "gpqa": "Its authors ask that its items not be shown in plain text.",
}
"""Tasks whose items stand in no public place, and why."""
Order = Literal["hardest", "dividing", "position"]
ORDERS: tuple[Order, ...] = ("hardest", "dividing", "position")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Agreement:
    """What another scorer says of the greedy answers that the headline's scorer has judged."""

    scorer: str
    answers: int
    equal: int
    failed: int
    """One of the two failed: neither agreement nor disagreement."""
    runs: tuple[str, ...]
    """Runs with answers that they judge apart, a few of them: their pages show both verdicts and the output."""


@dataclass(frozen=True)
class ItemRow:
    """One item: how many of the checkpoints that answered it solve it."""

    item_id: str
    position: int
    solved: int
    answered: int


@dataclass(frozen=True)
class Answer:
    """An answer of an entry that everybody sees."""

    run_id: str
    entry: str
    seed: int
    output: str
    read: str | None
    solved: bool
    tokens: int
    truncated: bool


@dataclass(frozen=True)
class ItemView:
    """One item. `prompt` is None where its text is kept back or its data is not at hand; `why_not` says which."""

    item_id: str
    sha256: str
    prompt: str | None
    gold: str | None
    prompt_sha256: str | None
    """Of what a policy was really asked, chat template and all; None before anything was."""
    right: Answer | None
    wrong: Answer | None
    why_not: str = ""


@dataclass(frozen=True)
class TaskView:
    """Everything that the page of one task shows."""

    task: Task
    version: str
    versions: tuple[str, ...]
    split: str
    items: int
    items_sha256: str
    hidden: bool
    backbone: str
    track: str
    checkpoints: int
    checkpoints_in_all: int
    without_items: int
    """Of these checkpoints, those whose answers are not stored item by item."""
    scorer: str
    difficulty: tuple[int, ...]
    """Items by share of checkpoints that solve them, in tenths; never and always solved ones in the outer two."""
    never: int
    always: int
    agreements: tuple[Agreement, ...]
    protocols: tuple[TaskProtocol, ...]
    """How these checkpoints were asked; more than one are not compared with one another on any board."""
    rows: tuple[ItemRow, ...]
    page: int
    pages: int
    item: ItemView | None
    unknown_item: bool


def task_view(
    session: Session,
    slug: str,
    track: tuple[str, str],
    backbone: str,
    scorer: str,
    *,
    version: str | None = None,
    item: str | None = None,
    order: Order = "hardest",
    page: int = 1,
    data: Path | None = None,
) -> TaskView | None:
    """One task as one track asked it of one backbone; None for a task or version that is not registered here.

    Whoever looks is shown the same, so that it may be kept for all.
    """
    known = session.execute(
        select(TaskVersion).where(TaskVersion.task_slug == slug).order_by(TaskVersion.id.desc())
    ).scalars()
    versions = {row.version: row for row in known}
    found = versions.get(version) if version else next(iter(versions.values()), None)
    if found is None or slug not in tasks.task_names():
        return None
    runs, in_all = _checkpoints(session, found, track, backbone, scorer)
    by_item = _by_item(found, [run for run, *_ in runs], scorer)
    difficulty, never, always = _difficulty(session, by_item)
    pages = max(1, -(-found.n_items // PAGE))
    here = min(max(1, page), pages)
    rows = () if found.hidden else _items(session, found, by_item, order, here)
    shown = None if found.hidden or not item else _item(session, found, item, runs, scorer, data)
    return TaskView(
        task=load_task(slug),
        version=found.version,
        versions=tuple(versions),
        split=found.split,
        items=found.n_items,
        items_sha256=found.items_sha256,
        hidden=found.hidden,
        backbone=backbone,
        track=" ".join(track),
        checkpoints=len(runs),
        checkpoints_in_all=in_all,
        without_items=len(runs) - _with_items(session, found, [run for run, *_ in runs]),
        scorer=scorer,
        difficulty=difficulty,
        never=never,
        always=always,
        agreements=_agreements(session, found, [run for run, *_ in runs], scorer),
        protocols=_protocols([job for _, job, _ in runs], slug),
        rows=rows,
        page=here,
        pages=pages,
        item=shown,
        unknown_item=bool(item) and shown is None and not found.hidden,
    )


_Checkpoint = tuple[str, str, bool]
"""Run, its order, and whether its answers may be shown to everybody."""


def _checkpoints(
    session: Session, version: TaskVersion, track: tuple[str, str], backbone: str, scorer: str
) -> tuple[list[_Checkpoint], int]:
    """The newest policies of this board that were asked, the untouched backbone among them."""
    conditions: tuple[ColumnElement[bool], ...] = (
        Result.task_version_id == version.id,
        Result.scorer == scorer,
        Result.metric == "solved",
        Result.decoding == "greedy",
        Run.backbone_revision_id == newest_revision(session, backbone),
        Run.state == "succeeded",
        Entry.visibility != "private",
        Entry.gate == "accepted",
        TrackVersion.track_slug == track[0],
        TrackVersion.version == track[1],
    )
    chosen = (
        select(Run.id, Run.job_json, Entry.visibility == "public")
        .join(Result, Result.run_id == Run.id)
        .join(Entry, Entry.id == Run.entry_id)
        .join(TrackVersion, TrackVersion.id == Entry.track_version_id)
        .where(*conditions)
    )
    rows = session.execute(chosen.order_by(Run.finished_at.desc(), Run.id.desc()).limit(MOST_CHECKPOINTS)).all()
    in_all = session.execute(select(func.count()).select_from(chosen.subquery())).scalar_one()
    return [(run, job, bool(is_public)) for run, job, is_public in rows], in_all


def _by_item(version: TaskVersion, runs: Sequence[str], scorer: str) -> Subquery:
    """Item -> how many of these checkpoints have a greedy answer with a number, and how many solve it."""
    return (
        select(
            ScoreItem.item_id,
            func.count().label("answered"),
            func.sum(case((ScoreItem.score > 0.5, 1), else_=0)).label("solved"),
        )
        .where(
            ScoreItem.run_id.in_(runs),
            ScoreItem.task_version_id == version.id,
            ScoreItem.sample == 0,
            ScoreItem.scorer == scorer,
            ScoreItem.status != "error",
        )
        .group_by(ScoreItem.item_id)
        .subquery()
    )


def _with_items(session: Session, version: TaskVersion, runs: Sequence[str]) -> int:
    any_item = (
        select(Prediction.item_id).where(Prediction.run_id == Run.id, Prediction.task_version_id == version.id).exists()
    )
    query = select(func.count()).select_from(Run).where(Run.id.in_(runs), any_item)
    return session.execute(query).scalar_one()


def _difficulty(session: Session, by_item: Subquery) -> tuple[tuple[int, ...], int, int]:
    """Counts by tenth, and of the outer two those that none and that all solve."""
    bins, never, always = [0] * BINS, 0, 0
    columns = (by_item.c.solved, by_item.c.answered)
    for solved, answered, items in session.execute(select(*columns, func.count()).group_by(*columns)):
        bins[min(BINS - 1, BINS * int(solved) // int(answered))] += items
        never += items if solved == 0 else 0
        always += items if solved == answered else 0
    return tuple(bins), never, always


def _items(session: Session, version: TaskVersion, by_item: Subquery, order: Order, page: int) -> tuple[ItemRow, ...]:
    """One page of items; those that nobody has answered stand last."""
    share = 1.0 * by_item.c.solved / by_item.c.answered
    first: Mapping[Order, tuple[ColumnElement[Any], ...]] = {
        "hardest": (by_item.c.answered.is_(None), share),
        "dividing": (by_item.c.answered.is_(None), func.abs(share - 0.5)),
        "position": (),
    }
    rows = session.execute(
        select(TaskItem.item_id, TaskItem.position, by_item.c.solved, by_item.c.answered)
        .outerjoin(by_item, by_item.c.item_id == TaskItem.item_id)
        .where(TaskItem.task_version_id == version.id)
        .order_by(*first[order], TaskItem.position)
        .limit(PAGE)
        .offset(PAGE * (page - 1))
    )
    return tuple(
        ItemRow(item, position, int(solved or 0), int(answered or 0)) for item, position, solved, answered in rows
    )


def _agreements(session: Session, version: TaskVersion, runs: Sequence[str], scorer: str) -> tuple[Agreement, ...]:
    """The headline's scorer beside every other one that has judged the same greedy answers."""
    first, second = aliased(ScoreItem), aliased(ScoreItem)
    failed = (first.status == "error") | (second.status == "error")
    equal = ~failed & ((first.score > 0.5) == (second.score > 0.5))
    pairs = (
        select(first.run_id, second.scorer, func.count(), _sum(equal), _sum(failed))
        .join(
            second,
            (second.run_id == first.run_id)
            & (second.task_version_id == first.task_version_id)
            & (second.item_id == first.item_id)
            & (second.sample == first.sample)
            & (second.scorer != first.scorer),
        )
        .where(
            first.run_id.in_(runs),
            first.task_version_id == version.id,
            first.sample == 0,
            first.scorer == scorer,
        )
        .group_by(first.run_id, second.scorer)
        .order_by(second.scorer, first.run_id)
    )
    by_scorer: dict[str, list[tuple[str, int, int, int]]] = {}
    for run, other, answers, same, broken in session.execute(pairs):
        by_scorer.setdefault(other, []).append((run, int(answers), int(same), int(broken)))
    return tuple(
        Agreement(
            scorer=other,
            answers=sum(answers for _, answers, _, _ in found),
            equal=sum(same for _, _, same, _ in found),
            failed=sum(broken for _, _, _, broken in found),
            runs=tuple(run for run, answers, same, broken in found if same + broken < answers)[:5],
        )
        for other, found in by_scorer.items()
    )


def _sum(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.sum(case((condition, 1), else_=0))


def _protocols(jobs: Sequence[str], slug: str) -> tuple[TaskProtocol, ...]:
    found: dict[str, TaskProtocol] = {}
    for job in jobs:
        for protocol in _asked(job):
            if protocol.task == slug:
                found.setdefault(protocol.digest(), protocol)
    return tuple(found.values())


@lru_cache(maxsize=256)
def _asked(job_json: str) -> tuple[TaskProtocol, ...]:
    """Of one order, which never changes."""
    evaluate = JobSpec.model_validate_json(job_json).evaluate
    return evaluate.protocols if evaluate else ()


# --- one item -------------------------------------------------------------------------------------------------------


def _item(
    session: Session,
    version: TaskVersion,
    item_id: str,
    checkpoints: Sequence[_Checkpoint],
    scorer: str,
    data: Path | None,
) -> ItemView | None:
    row = session.get(TaskItem, (version.id, item_id))
    if row is None:
        return None
    kept_back = TEXT_IS_KEPT_BACK.get(version.task_slug)
    texts = {} if kept_back else _texts(version.task_slug, version.version, version.split, data)
    text = texts.get(row.item_sha256)
    public = [run for run, _, is_public in checkpoints if is_public]
    asked = session.execute(
        select(Prediction.prompt_sha256)
        .where(
            Prediction.run_id.in_([run for run, *_ in checkpoints]),
            Prediction.task_version_id == version.id,
            Prediction.item_id == item_id,
            Prediction.sample == 0,
        )
        .limit(1)
    ).scalar_one_or_none()
    return ItemView(
        item_id=item_id,
        sha256=row.item_sha256,
        prompt=text[0] if text else None,
        gold=text[1] if text else None,
        prompt_sha256=asked,
        right=None if kept_back else _answer(session, version, item_id, public, scorer, solved=True),
        wrong=None if kept_back else _answer(session, version, item_id, public, scorer, solved=False),
        why_not="" if text else kept_back or "The published file of this task is not on this machine.",
    )


def _answer(
    session: Session, version: TaskVersion, item_id: str, runs: Sequence[str], scorer: str, solved: bool
) -> Answer | None:
    judged = ScoreItem.score > 0.5 if solved else ScoreItem.score <= 0.5
    row = session.execute(
        select(Run.id, Entry.name, Run.seed, Prediction, ScoreItem.answer)
        .join(Prediction, Prediction.run_id == Run.id)
        .join(
            ScoreItem,
            (ScoreItem.run_id == Prediction.run_id)
            & (ScoreItem.task_version_id == Prediction.task_version_id)
            & (ScoreItem.item_id == Prediction.item_id)
            & (ScoreItem.sample == Prediction.sample),
        )
        .join(Entry, Entry.id == Run.entry_id)
        .where(
            Run.id.in_(runs),
            Prediction.task_version_id == version.id,
            Prediction.item_id == item_id,
            Prediction.sample == 0,
            ScoreItem.scorer == scorer,
            ScoreItem.status != "error",
            judged,
        )
        .order_by(Run.finished_at.desc(), Run.id)
        .limit(1)
    ).first()
    if row is None:
        return None
    run, entry, seed, said, read = row
    return Answer(run, entry, seed, said.output, read, solved, said.tokens, said.truncated)


@lru_cache(maxsize=8)
def _texts(slug: str, version: str, split: str, data: Path | None) -> Mapping[str, tuple[str, str]]:
    """Prompt and gold by the item's hash; nothing where the task has moved on or its file is not at hand."""
    task = load_task(slug)
    if task.version != version:
        return {}
    try:
        items = task.items(split, data)
    except (tasks.MissingDataError, tasks.UnknownSplitError) as error:
        _log.info("no text of items: %s", error)
        return {}
    return {item.sha256: (tasks.text_of(item.prompt), _gold(item.gold)) for item in items}


def _gold(gold: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in gold.items())
