"""What a gain costs: each entry's training by four measures, and which entries nobody beats for their price.

Devices are never summed or converted: a measure that depends on one has a value only where all seeds ran on it, and
points of two devices are never on one front. What was not measured has a reason instead of a number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from dare_platform import statistics
from dare_platform.board import Board, Estimate, Row, RowKind
from dare_platform.models import AlgorithmVersion, Attempt, Entry, Run, Usage
from dare_platform.views.backbones import newest_revision

Measure = Literal["gpu_h", "nfe", "tokens", "tok_s"]
MEASURES: tuple[Measure, ...] = ("gpu_h", "nfe", "tokens", "tok_s")
ON_ONE_DEVICE: frozenset[Measure] = frozenset({"gpu_h", "tok_s"})
"""Measures that mean nothing without a device."""
MORE_IS_BETTER: frozenset[Measure] = frozenset({"tok_s"})
MEAN = "mean"
"""The score of a link that asks for the mean gain."""
Standing = Literal["frontier", "within noise", "dominated", "preliminary", "beside"]


class Spent(NamedTuple):
    """Training of one entry's finished seeds on one device, means over them."""

    device: str
    seeds: int
    device_seconds: float
    train_seconds: float
    forwards: float
    """Forwards of one sequence without a gradient: sampling and scoring."""
    tokens: float
    trains_on: str


@dataclass(frozen=True)
class Price:
    """One entry's cost by one measure, or the reason why there is none."""

    value: float | None
    device: str | None
    why_not: str = ""


@dataclass(frozen=True)
class CostPoint:
    """One entry at its price."""

    entry_id: str
    name: str
    kind: RowKind
    device: str
    cost: float
    gain: Estimate
    standing: Standing
    beaten_by: tuple[str, ...] = ()
    """Names on the frontier that cost no more and gain no less."""


@dataclass(frozen=True)
class Unpriced:
    """An entry that has no place in the picture, and why."""

    entry_id: str
    name: str
    why: str


@dataclass(frozen=True)
class CostView:
    """The picture of one board by one measure and one score, on one device where the measure needs one."""

    measure: Measure
    task: str
    devices: tuple[str, ...]
    """Between which a reader has to choose; one or none where there is nothing to choose."""
    device: str | None
    points: tuple[CostPoint, ...]
    """From the best price on."""
    unpriced: tuple[Unpriced, ...]

    @property
    def frontier(self) -> tuple[CostPoint, ...]:
        return tuple(point for point in self.points if point.standing == "frontier")


def spending(session: Session, board: Board) -> dict[str, tuple[Spent, ...]]:
    """What training took, by entry and device. Of the attempts that succeeded: what we lost is nobody's cost.

    One row for each entry and device, however many runs, steps and items there are.
    """
    rows = session.execute(
        select(
            Run.entry_id,
            Attempt.hardware,
            func.count(),
            func.avg(Usage.device_seconds),
            func.avg(Usage.train_seconds),
            func.avg(Usage.forwards),
            func.avg(Usage.tokens_decoded),
            func.max(AlgorithmVersion.trains_on),
        )
        .join(Entry, Entry.id == Run.entry_id)
        .join(AlgorithmVersion, AlgorithmVersion.id == Entry.algorithm_version_id)
        .join(Usage, Usage.run_id == Run.id)
        .join(Attempt, (Attempt.run_id == Usage.run_id) & (Attempt.token == Usage.token))
        .where(
            Run.entry_id.in_([row.entry_id for row in board.rows]),
            Run.backbone_revision_id == newest_revision(session, board.backbone),
            Run.kind == "train",
            Run.state == "succeeded",
            Attempt.outcome == "succeeded",
        )
        .group_by(Run.entry_id, Attempt.hardware)
        .order_by(Run.entry_id, Attempt.hardware)
    )
    found: dict[str, list[Spent]] = defaultdict(list)
    for entry, device, seeds, device_seconds, train_seconds, forwards, tokens, trains_on in rows:
        amounts = (float(device_seconds), float(train_seconds), float(forwards), float(tokens))
        found[entry].append(Spent(device, seeds, *amounts, trains_on))
    return {entry: tuple(parts) for entry, parts in found.items()}


def price(parts: Sequence[Spent], measure: Measure) -> Price:
    """One entry's cost; pure."""
    if not parts:
        return Price(None, None, "no training run has finished")
    if len(parts) > 1 and measure in ON_ONE_DEVICE:
        named = " and ".join(part.device for part in parts)
        return Price(None, None, f"its seeds ran on {named}, which is never summed")
    device = parts[0].device if len(parts) == 1 else "several devices"
    seeds = sum(part.seeds for part in parts)
    samples = parts[0].trains_on == "prompts"

    def mean(amounts: Sequence[float]) -> float:
        return sum(part.seeds * amount for part, amount in zip(parts, amounts, strict=True)) / seeds

    if measure == "gpu_h":
        return _measured(mean([part.device_seconds for part in parts]), device, "device time")
    if measure == "nfe":
        forwards = mean([part.forwards for part in parts])
        return Price(0.0, device) if not samples and forwards == 0 else _measured(forwards, device, "forwards")
    tokens = mean([part.tokens for part in parts])
    if not samples and tokens == 0:
        decodes_none = "it trains on given answers and decodes nothing"
        return Price(0.0, device) if measure == "tokens" else Price(None, None, decodes_none)
    if measure == "tokens" or tokens == 0:
        return _measured(tokens, device, "decoded tokens")
    seconds = mean([part.train_seconds for part in parts])
    return _measured(tokens / seconds if seconds else 0.0, device, "training time")


def _measured(amount: float, device: str, what: str) -> Price:
    """A run that trained has used some of it: a stored zero says that nobody counted."""
    return Price(amount, device) if amount > 0 else Price(None, None, f"nobody counted its {what}")


def cost_view(
    board: Board, spent: Mapping[str, Sequence[Spent]], measure: Measure, task: str = MEAN, device: str | None = None
) -> CostView:
    """Every entry of a board at its price, and the frontier; pure."""
    points: list[CostPoint] = []
    unpriced: list[Unpriced] = []
    for row in board.rows:
        if row.kind == "reference":
            continue
        cost, gain = price(spent.get(row.entry_id, ()), measure), _gain(row, task)
        if cost.value is None or cost.device is None:
            unpriced.append(Unpriced(row.entry_id, row.name, f"not measured: {cost.why_not}"))
        elif gain is None:
            unpriced.append(Unpriced(row.entry_id, row.name, "no score yet"))
        else:
            standing = _before_comparing(row, task)
            points.append(CostPoint(row.entry_id, row.name, row.kind, cost.device, cost.value, gain, standing))
    devices = tuple(sorted({point.device for point in points})) if measure in ON_ONE_DEVICE else ()
    chosen = device if device in devices else devices[0] if devices else None
    if chosen is not None:
        points = [point for point in points if point.device == chosen]
    compared = _compared(points, measure)
    return CostView(measure, task, devices, chosen, compared, tuple(unpriced))


def _gain(row: Row, task: str) -> Estimate | None:
    if task == MEAN:
        return row.gain or row.preliminary_gain
    cell = row.cells.get(task)
    return cell.gain if cell is not None else None


def _before_comparing(row: Row, task: str) -> Standing:
    if row.kind != "method":
        return "beside"
    cell = row.cells.get(task)
    is_final = row.gain is not None if task == MEAN else cell is not None and cell.state == "measured"
    return "frontier" if is_final else "preliminary"


def _compared(points: Sequence[CostPoint], measure: Measure) -> tuple[CostPoint, ...]:
    """Which of the finished methods nobody beats; of equal prices and gains, both.

    A method is provably worse by Welch's test between seeds, after Holm's adjustment over all pairs of the picture.
    """
    sign = -1 if measure in MORE_IS_BETTER else 1
    ordered = sorted(points, key=lambda point: (sign * point.cost, -point.gain.value, point.name))
    finished = [point for point in ordered if point.standing == "frontier"]

    def beats(other: CostPoint, point: CostPoint) -> bool:
        no_dearer, no_worse = sign * other.cost <= sign * point.cost, other.gain.value >= point.gain.value
        return no_dearer and no_worse and (other.cost, other.gain.value) != (point.cost, point.gain.value)

    front = [point for point in finished if not any(beats(other, point) for other in finished)]
    separated = statistics.pairs_of_estimates([point.gain for point in finished]).separated
    place = {point.entry_id: number for number, point in enumerate(finished)}
    shown = []
    for point in ordered:
        above = [other for other in front if point.standing == "frontier" and beats(other, point)]
        if above:
            provably = any(separated[place[other.entry_id], place[point.entry_id]] for other in above)
            names = tuple(other.name for other in above)
            point = replace(point, standing="dominated" if provably else "within noise", beaten_by=names)
        shown.append(point)
    return tuple(shown)
