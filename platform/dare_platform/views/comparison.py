"""Two entries beside one another on one task of one backbone: what may be said of the algorithms, and what of two
checkpoints; the items that they answer apart; what was set and written differently.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from dare_platform import statistics
from dare_platform.board import Estimate
from dare_platform.entry_settings import SettingView
from dare_platform.item_statistics import ItemDifference, item_test
from dare_platform.models import (
    Backbone,
    BackboneRevision,
    Entry,
    Prediction,
    Result,
    Run,
    ScoreItem,
    TaskItem,
    TaskVersion,
    TrackVersion,
)
from dare_platform.power import Settling, what_would_settle
from dare_platform.tracks import Track
from dare_platform.viewer import NOBODY, Viewer
from dare_platform.views.entries import entry_view
from dare_platform.views.shapes import EntryView

PAGE = 20
Shown = Literal["differ", "both-wrong", "all"]
SHOWN: tuple[Shown, ...] = ("differ", "both-wrong", "all")


@dataclass(frozen=True)
class Side:
    """One of the two."""

    entry: EntryView
    by_seed: Mapping[int, float]
    """Share of items solved by greedy decoding."""
    mean: Estimate | None
    runs: Mapping[int, str]
    """Seed -> the evaluation that the items are of."""


@dataclass(frozen=True)
class Algorithms:
    """What may be said of the two algorithms: seeds are the draws."""

    difference: float
    low: float
    high: float
    p: float
    settling: Settling

    @property
    def differ(self) -> bool:
        """Whether the seeds separate them. One test alone: a board adjusts for all of its pairs."""
        return self.p < statistics.ALPHA


@dataclass(frozen=True)
class Answered:
    """What both checkpoints answered to one item."""

    item_id: str
    solved: tuple[bool, bool]
    outputs: tuple[str, str]
    tokens: tuple[int, int]
    truncated: tuple[bool, bool]


@dataclass(frozen=True)
class ComparisonView:
    """Everything that the page shows."""

    a: Side
    b: Side
    task: str
    algorithms: Algorithms | None
    """None with fewer than two seeds on a side."""
    seed: int | None
    """Of the two checkpoints that are compared item by item; None where no seed has both."""
    checkpoints: ItemDifference | None
    counts: tuple[int, int, int, int]
    """Items: both right, only a, only b, both wrong."""
    items: tuple[Answered, ...]
    of_items: int
    """How many this choice has on all of its pages."""
    settings: tuple[tuple[str, object, object], ...]
    """Hyperparameters that differ, or that one of them has alone (None)."""
    source_diff: str | None
    """Unified; empty for equal sources, None where one of them is withheld."""


def comparison(
    session: Session,
    ids: tuple[str, str],
    track: Track,
    backbone: str,
    task: str,
    viewer: Viewer = NOBODY,
    *,
    seed: int | None = None,
    shown: Shown = "differ",
    page: int = 1,
) -> ComparisonView | None:
    """None where one of the two is unknown, private, or of another track."""
    views = [entry_view(session, id, viewer) for id in ids]
    if views[0] is None or views[1] is None or any(v is None or v.summary.track != track.name for v in views):
        return None
    first, second = (_side(session, view, backbone, task, track.scorer) for view in views if view is not None)
    both = sorted(first.runs.keys() & second.runs.keys())
    chosen = seed if seed in both else both[0] if both else None
    rows = _items(session, first.runs[chosen], second.runs[chosen], task, track.scorer) if chosen is not None else []
    right = [(a > 0.5, b > 0.5) for _, _, a, b in rows]
    counts = tuple(right.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False)))
    kept = [row for row, pair in zip(rows, right, strict=True) if _is_shown(pair, shown)]
    begin = (max(page, 1) - 1) * PAGE
    runs = (first.runs[chosen], second.runs[chosen]) if chosen is not None else ("", "")
    return ComparisonView(
        a=first,
        b=second,
        task=task,
        algorithms=_algorithms(first, second),
        seed=chosen,
        checkpoints=_checkpoints(rows),
        counts=(counts[0], counts[1], counts[2], counts[3]),
        items=_answers(session, runs, task, kept[begin : begin + PAGE]),
        of_items=len(kept),
        settings=_settings(first.entry.settings, second.entry.settings),
        source_diff=_source_diff(first.entry, second.entry),
    )


_Row = tuple[str, str | None, float, float]
"""Item, cluster, score of a, score of b."""


def _side(session: Session, entry: EntryView, backbone: str, task: str, scorer: str) -> Side:
    rows = session.execute(
        select(Run.seed, Run.id, Result.value)
        .join(Result, Result.run_id == Run.id)
        .join(TaskVersion, TaskVersion.id == Result.task_version_id)
        .join(BackboneRevision, BackboneRevision.id == Run.backbone_revision_id)
        .join(Backbone, Backbone.id == BackboneRevision.backbone_id)
        .where(
            Run.entry_id == entry.summary.id, Run.kind == "evaluate", Run.state == "succeeded",
            Backbone.slug == backbone, TaskVersion.task_slug == task, Result.scorer == scorer,
            Result.metric == "solved", Result.decoding == "greedy",
        )
        .order_by(Run.seed, Run.id)
    ).all()  # fmt: skip
    by_seed = {seed: value for seed, _, value in rows}
    mean = statistics.mean_interval(list(by_seed.values())) if by_seed else None
    return Side(entry, by_seed, mean, {seed: run for seed, run, _ in rows})


def _algorithms(a: Side, b: Side) -> Algorithms | None:
    first, second = list(a.by_seed.values()), list(b.by_seed.values())
    if min(len(first), len(second)) < 2:
        return None
    low, high = statistics.difference_interval(first, second)
    difference = sum(first) / len(first) - sum(second) / len(second)
    spread = statistics.pooled_spread(first, second)
    settling = what_would_settle(difference, spread, min(len(first), len(second)))
    return Algorithms(difference, low, high, statistics.welch_p(first, second), settling)


def _items(session: Session, a: str, b: str, task: str, scorer: str) -> list[_Row]:
    """What both answered greedily, in the order of the task."""
    one, other = aliased(ScoreItem), aliased(ScoreItem)
    query = (
        select(TaskItem.item_id, TaskItem.cluster_id, one.score, other.score)
        .join(TaskVersion, TaskVersion.id == TaskItem.task_version_id)
        .join(one, (one.task_version_id == TaskItem.task_version_id) & (one.item_id == TaskItem.item_id))
        .join(other, (other.task_version_id == TaskItem.task_version_id) & (other.item_id == TaskItem.item_id))
        .where(TaskVersion.task_slug == task)
        .where(*(side.run_id == run for side, run in ((one, a), (other, b))))
        .where(*((side.sample == 0) & (side.scorer == scorer) for side in (one, other)))
        .order_by(TaskItem.position)
    )
    return [(item, cluster, first, second) for item, cluster, first, second in session.execute(query)]


def _checkpoints(rows: Sequence[_Row]) -> ItemDifference | None:
    if len(rows) < 2:
        return None
    clusters = [cluster for _, cluster, _, _ in rows]
    return item_test([a for _, _, a, _ in rows], [b for _, _, _, b in rows], clusters if any(clusters) else None)


def _is_shown(pair: tuple[bool, bool], shown: Shown) -> bool:
    return shown == "all" or (pair[0] != pair[1] if shown == "differ" else not any(pair))


def _answers(session: Session, runs: tuple[str, str], task: str, rows: Sequence[_Row]) -> tuple[Answered, ...]:
    """Texts of one page only."""
    wanted = [item for item, *_ in rows]
    query = (
        select(Prediction)
        .join(TaskVersion, TaskVersion.id == Prediction.task_version_id)
        .where(
            Prediction.run_id.in_(runs), TaskVersion.task_slug == task, Prediction.sample == 0,
            Prediction.item_id.in_(wanted),
        )
    )  # fmt: skip
    said = {(row.run_id, row.item_id): row for row in session.execute(query).scalars()}
    found = []
    for item, _, score_a, score_b in rows:
        first, second = said[runs[0], item], said[runs[1], item]
        found.append(
            Answered(
                item, (score_a > 0.5, score_b > 0.5), (first.output, second.output), (first.tokens, second.tokens),
                (first.truncated, second.truncated),
            )
        )  # fmt: skip
    return tuple(found)


def _settings(a: Sequence[SettingView], b: Sequence[SettingView]) -> tuple[tuple[str, object, object], ...]:
    first, second = ({setting.name: setting.value for setting in side} for side in (a, b))
    names = list(dict.fromkeys([*first, *second]))
    return tuple((name, first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name))


def _source_diff(a: EntryView, b: EntryView) -> str | None:
    if a.source is None or b.source is None:
        return None
    lines = difflib.unified_diff(
        a.source.splitlines(), b.source.splitlines(), a.summary.name, b.summary.name, lineterm="", n=3
    )
    return "\n".join(lines)


def entries_to_compare(session: Session, track: Track, viewer: Viewer = NOBODY) -> tuple[tuple[str, str], ...]:
    """Id and name of what can be chosen, newest first."""
    query = (
        select(Entry.id, Entry.name)
        .join(TrackVersion, TrackVersion.id == Entry.track_version_id)
        .where(TrackVersion.track_slug == track.track, TrackVersion.version == track.version, viewer.sees())
        .order_by(Entry.created_at.desc(), Entry.id)
    )
    return tuple((id, name) for id, name in session.execute(query))
