"""What a leaderboard is, as plain data: built by `rankings`, shown by pages, tables, charts and exports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CellState = Literal[
    "measured", "preliminary", "not_run", "not_asked", "not_scored", "queued", "running", "failed", "retrying"
]  # fmt: skip
RowKind = Literal["reference", "baseline", "control", "method"]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds. `half_width` is that of the 95 % t interval; None with fewer than two seeds."""

    value: float
    half_width: float | None
    seeds: int


@dataclass(frozen=True)
class Cell:
    """One row's result on one task. Scores are shares in [0, 1]; pages show percent.

    A cell with fewer seeds than the track requires keeps its numbers in whatever state it is: they are shown, and are
    in no mean, no test and no rank. `preliminary` is the state of one for which no further seed is under way.
    """

    state: CellState
    greedy: Estimate | None = None
    """Share of items solved by greedy decoding: the headline."""
    sampled: Estimate | None = None
    """Mean shaped reward of completions sampled at the rollout temperature."""
    sampled_solved: Estimate | None = None
    gain: Estimate | None = None
    """Headline minus that of the untouched backbone, seed by seed."""
    significant: bool = False
    """The gain's interval excludes zero; never with fewer seeds than required."""
    at_or_below_chance: bool = False
    exactly_zero: bool = False
    seeds_done: int = 0
    seeds_required: int = 0
    items: int = 0
    detail: str | None = None
    """One sentence for states other than measured."""

    @property
    def is_preliminary(self) -> bool:
        """There is a value, from fewer seeds than the track requires."""
        return self.greedy is not None and self.state != "measured"


@dataclass(frozen=True)
class Column:
    """A task of the track."""

    task: str
    title: str
    role: Literal["ranked", "shown", "transfer"]
    items: int | None
    chance_floor: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cost:
    """Mean over finished seeds. Device seconds are CPU seconds on a cpu track."""

    train_device_seconds: float
    gradient_forwards: float
    optimiser_steps: float
    device: str


@dataclass(frozen=True)
class Row:
    """One entry on one backbone."""

    entry_id: str
    name: str
    algorithm: str
    kind: RowKind
    built_in: bool
    extension: bool
    """Runs on a family that the method's paper does not cover: "our extension"."""
    status: Literal["waiting", "running", "complete", "partial", "failed", "rejected", "withdrawn"]
    cells: dict[str, Cell]
    gain: Estimate | None
    """Mean gain over the ranked tasks; None while this row or the reference misses a ranked cell."""
    reward_gain: Estimate | None
    """Mean gain of the sampled reward over the ranked tasks."""
    rank: tuple[int, int] | None
    """Range of ranks that the data allow; None for unranked rows."""
    cost: Cost | None
    seeds: int
    tries: int
    submitted_at: float
    class_name: str | None = None
    """Of the algorithm; None for the untouched backbone."""
    preliminary_gain: Estimate | None = None
    """What `gain` would be over the seeds that there are, while there are too few of them."""
    preliminary_reward_gain: Estimate | None = None


@dataclass(frozen=True)
class Board:
    """One track version on one backbone. `digest` hashes everything that is shown."""

    track: str
    version: str
    backbone: str
    family: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    """Reference first, then baselines and controls, then methods by rank and gain, then unranked ones."""
    verdict: str
    """Markdown: the finding, then the doubt."""
    made_at: float
    digest: str
    scorer: str
    entries: int
    tries: int
    withdrawn: int
    running: int
    device: str
