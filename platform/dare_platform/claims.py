"""What papers and repositories state: shown beside our reruns with its source, never ranked, never in any mean.

A claim has no seeds and no interval, so that nothing can be tested against it. What can be said is whether it lies in
the interval of our own rerun under our own protocol, and that is all that is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from dare.catalog import algorithms
from dare.frozen import Frozen
from dare.tasks import task_names
from dare_platform.board import Board, Estimate
from dare_platform.errors import PlatformError
from dare_platform.uploads import UNTOUCHED

Quantity = Literal["solved", "reward"]
Comparison = Literal["inside", "outside", "not rerun", "other quantity", "no interval"]


class ClaimFileError(PlatformError):
    """A file of claims does not say what it must say."""


class _Table(Frozen):
    backbone: str
    algorithms: tuple[str, ...]
    tasks: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """Percent of items solved, in the order of `algorithms`."""
    rewards: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """Percent of a shaped reward: another quantity than solved items, whatever the source calls it."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for name in self.algorithms:
            if name != UNTOUCHED and name not in algorithms():
                raise ValueError(f"{name!r} is no algorithm here")
        for task, values in [*self.tasks.items(), *self.rewards.items()]:
            if task not in task_names():
                raise ValueError(f"{task!r} is no task here")
            if len(values) != len(self.algorithms):
                raise ValueError(f"{task} has {len(values)} numbers for {len(self.algorithms)} algorithms")
            if not all(0 <= value <= 100 for value in values):
                raise ValueError(f"{task} has a number outside 0 to 100 percent")
        return self


class ClaimFile(Frozen):
    """One source and what it states."""

    source: str
    url: str
    protocol: str
    """As far as the source says: what is not stated is not guessed."""
    claims: tuple[_Table, ...]


@dataclass(frozen=True)
class Claim:
    """One number that somebody states, as a share."""

    backbone: str
    algorithm: str
    task: str
    value: float
    quantity: Quantity
    source: str
    url: str
    protocol: str


@dataclass(frozen=True)
class Beside:
    """A claim beside what we measured ourselves."""

    claim: Claim
    ours: Estimate | None
    comparison: Comparison
    """inside, outside: of the 95 % interval of our rerun."""


def parse_claims(text: str, name: str) -> tuple[Claim, ...]:
    """The claims of one YAML file; ClaimFileError says which key of which file is wrong."""
    try:
        file = ClaimFile.model_validate(yaml.safe_load(text))
    except (ValidationError, yaml.YAMLError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ClaimFileError(f"claims file {name}: {where}: {first['msg']}") from error
    return tuple(
        Claim(table.backbone, algorithm, task, value / 100, quantity, file.source, file.url, file.protocol)
        for table in file.claims
        for quantity, numbers in _quantities(table)
        for task, values in numbers.items()
        for algorithm, value in zip(table.algorithms, values, strict=True)
    )


def _quantities(table: _Table) -> tuple[tuple[Quantity, dict[str, tuple[float, ...]]], ...]:
    return ("solved", table.tasks), ("reward", table.rewards)


@cache
def claims() -> tuple[Claim, ...]:
    """Everything that is shipped, file by file."""
    files = sorted(resources.files("dare_platform").joinpath("claim_files").iterdir(), key=lambda file: file.name)
    return tuple(
        claim for file in files if file.name.endswith(".yaml") for claim in parse_claims(file.read_text(), file.name)
    )


def beside(board: Board, known: tuple[Claim, ...] | None = None) -> tuple[Beside, ...]:
    """The claims about the tasks of a board on its backbone, each beside our rerun of that method."""
    tasks = {column.task for column in board.columns}
    cells = {row.algorithm: row.cells for row in board.rows if row.built_in}
    found = []
    for claim in claims() if known is None else known:
        if claim.backbone == board.backbone and claim.task in tasks:
            cell = cells.get(claim.algorithm, {}).get(claim.task)
            ours = cell.greedy if cell is not None and cell.state == "measured" else None
            found.append(Beside(claim, ours, _comparison(claim, ours)))
    return tuple(found)


def _comparison(claim: Claim, ours: Estimate | None) -> Comparison:
    if claim.quantity != "solved":
        return "other quantity"
    if ours is None:
        return "not rerun"
    if ours.half_width is None:
        return "no interval"
    return "inside" if abs(claim.value - ours.value) <= ours.half_width else "outside"
