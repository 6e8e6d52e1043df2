"""4x4 Sudoku: every grid, a solver, a generator of puzzles with one solution, and the judge.

A puzzle is 16 digits, row by row, 0 for a hole. There are only 288 grids, so a set of grids is an integer with one
bit for each, and the solutions of a puzzle are the conjunction of its givens' sets.
"""

from __future__ import annotations

import random
from functools import cache
from typing import NamedTuple

DIGITS = "1234"
CELLS = 16


class Grade(NamedTuple):
    """How good one answer is. The headline is `solved`; `cells` is partial credit with a floor of about a quarter."""

    solved: bool
    """The grid obeys the rules and the puzzle's givens, whichever of several solutions it is."""
    cells: float
    """Share of the holes filled as in the solution that agrees best; 0 for anything but 16 digits. It does not look
    at the givens, so an answer that overwrites one can have `cells` 1 without being solved."""


def peers(cell: int) -> frozenset[int]:
    """The other cells of a cell's row, column and 2x2 box."""
    row, column = divmod(cell, 4)
    box = (row // 2, column // 2)
    shares = {
        other
        for other in range(CELLS)
        if other // 4 == row or other % 4 == column or (other // 8, other % 4 // 2) == box
    }
    return frozenset(shares - {cell})


@cache
def grids() -> tuple[str, ...]:
    """All 288 filled grids, sorted. A grid's place in this tuple is its id everywhere."""
    partial = [""]
    for cell in range(CELLS):
        before = [other for other in peers(cell) if other < cell]
        partial = [p + digit for p in partial for digit in DIGITS if all(p[other] != digit for other in before)]
    return tuple(partial)


@cache
def _grids_with() -> tuple[dict[str, int], ...]:
    """For each cell, from a digit to the set of grids that have it there. A hole stands for every grid."""
    everything = (1 << len(grids())) - 1
    sets = tuple(dict.fromkeys(DIGITS, 0) | {"0": everything} for _ in range(CELLS))
    for number, grid in enumerate(grids()):
        for cell, digit in enumerate(grid):
            sets[cell][digit] |= 1 << number
    return sets


def _solution_set(puzzle: str) -> int:
    solutions = -1
    for having, digit in zip(_grids_with(), puzzle, strict=True):
        solutions &= having[digit]
    return solutions


def solutions(puzzle: str) -> tuple[str, ...]:
    """Every grid that keeps the givens, sorted; empty for a contradictory puzzle."""
    found = _solution_set(puzzle)
    return tuple(grid for number, grid in enumerate(grids()) if found >> number & 1)


def random_puzzle(generator: random.Random, grid: str, holes: int) -> str:
    """Digs `holes` holes into a grid, drawn again until the grid is the only solution."""
    only = 1 << grids().index(grid)
    while True:
        puzzle = list(grid)
        for cell in generator.sample(range(CELLS), holes):
            puzzle[cell] = "0"
        if _solution_set("".join(puzzle)) == only:
            return "".join(puzzle)


def read_grid(answer: str) -> str | None:
    """The 16 digits of an answer, whatever layout separates them; None when there are more or fewer.

    All ten ASCII digits count towards the length: 18 digits are no grid, and are never cut to one.
    """
    digits = "".join(character for character in answer if character in "0123456789")
    return digits if len(digits) == CELLS else None


def grade(puzzle: str, answer: str) -> Grade:
    """Grades an extracted answer."""
    grid = read_grid(answer)
    if grid is None:
        return Grade(solved=False, cells=0.0)
    possible = solutions(puzzle)
    solved = grid in possible
    holes = [cell for cell, digit in enumerate(puzzle) if digit == "0"]
    if not holes:
        return Grade(solved, cells=float(solved))
    right = max((sum(solution[cell] == grid[cell] for cell in holes) for solution in possible), default=0)
    return Grade(solved, cells=right / len(holes))
