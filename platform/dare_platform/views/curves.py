"""Curves of training runs, as the runners reported them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare_platform.models import Backbone, BackboneRevision, Entry, MetricPoint, Run
from dare_platform.viewer import NOBODY, Viewer
from dare_platform.views.rows import alarms
from dare_platform.views.shapes import CurvesView, Point, SeedCurve, Series

POINTS = 400


def series_of(session: Session, run_id: str, most: int | None = POINTS) -> tuple[Series, ...]:
    """All metrics of a run, each line thinned. Where a later attempt repeated a step, its number counts: a token grows
    with every lease, and the highest wins.
    """
    rows = session.execute(
        select(MetricPoint)
        .where(MetricPoint.run_id == run_id)
        .order_by(MetricPoint.name, MetricPoint.token, MetricPoint.step)
    ).scalars()
    points: dict[str, dict[int, Point]] = defaultdict(dict)
    for row in rows:
        points[row.name][row.step] = Point(row.step, row.device_seconds or 0.0, row.value)
    lines = {name: [found[step] for step in sorted(found)] for name, found in sorted(points.items())}
    return tuple(Series(name, tuple(line) if most is None else thinned(line, most)) for name, line in lines.items())


def thinned(points: Sequence[Point], most: int = POINTS) -> tuple[Point, ...]:
    """At most `most` points: of each bucket of steps its smallest, its largest and one gap, in their order."""
    if len(points) <= most:
        return tuple(points)
    buckets = most // 3
    kept: list[Point] = []
    for index in range(buckets):
        bucket = points[index * len(points) // buckets : (index + 1) * len(points) // buckets]
        finite = [(point.value, point) for point in bucket if point.value is not None]
        chosen = set([point for point in bucket if point.value is None][:1])
        if finite:
            chosen |= {min(finite, key=itemgetter(0))[1], max(finite, key=itemgetter(0))[1]}
        kept += sorted(chosen, key=lambda point: point.step)
    return tuple(kept)


def curves(
    session: Session, entry_ids: Sequence[str], backbone: str, metric: str, viewer: Viewer = NOBODY
) -> CurvesView:
    """One metric of the training runs of some entries on one backbone, in the order of the ids.

    Every point is kept: a mean over seeds needs the same steps of all of them. Charts thin what they draw.
    """
    rows = session.execute(
        select(Run, Entry.name)
        .join(Entry, Entry.id == Run.entry_id)
        .join(BackboneRevision, BackboneRevision.id == Run.backbone_revision_id)
        .join(Backbone, Backbone.id == BackboneRevision.backbone_id)
        .where(Run.entry_id.in_(list(entry_ids)), Run.kind == "train", Backbone.slug == backbone, viewer.sees())
        .order_by(Run.seed, Run.id)
    ).all()
    found: list[SeedCurve] = []
    names: set[str] = set()
    for run, entry_name in sorted(rows, key=lambda row: list(entry_ids).index(row[0].entry_id)):
        logged = {series.name: series.points for series in series_of(session, run.id, most=None)}
        names |= set(logged)
        if metric in logged:
            raised = alarms(session, run.id)
            found.append(SeedCurve(run.entry_id, entry_name, run.id, run.seed, logged[metric], raised))
    with_it = {curve.entry_id for curve in found}
    return CurvesView(
        metric=metric,
        backbone=backbone,
        curves=tuple(found),
        metrics=tuple(sorted(names)),
        without=tuple(entry for entry in dict.fromkeys(entry_ids) if entry not in with_it),
    )
