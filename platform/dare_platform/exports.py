"""A board as a file: CSV and JSON with full precision, LaTeX with the rounding of the page."""

from __future__ import annotations

import csv as csv_module
import io
import json as json_module
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from dare_platform.board import Board, Cell, Column, Cost, Estimate, Row
from dare_platform.board_flags import EXPLANATIONS, Flag
from dare_platform.statistics import written

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet runs text that begins so."""
ROW_COLUMNS: Mapping[str, str] = {
    "rank_low": "First rank that the data allow: 1 + entries that are significantly better; empty if unranked.",
    "rank_high": "Last rank that the data allow; empty if unranked.",
    "name": "Name of the entry.",
    "algorithm": "Algorithm that the entry is a version of.",
    "kind": "reference (untouched backbone), baseline, control or method; only methods are ranked.",
    "status": "State of the entry's runs; only complete ones are ranked.",
    "scorer": "Scorer whose word the numbers are.",
    "seeds": "Seeds for which every ranked task is measured.",
    "tries": "Entries of this algorithm on this track, withdrawn ones included.",
    "gain": "Mean gain over the ranked tasks against the untouched backbone, as a share; points are 100 times it.",
    "gain_half_width": "Half-width of its 95 % t interval over seeds; empty for one seed.",
    "preliminary_gain": "The gain over the seeds that there are, of a row that has too few of them.",
    "reward_gain": "The same for the mean shaped reward of sampled completions.",
    "reward_gain_half_width": "Half-width of its interval.",
    "train_device_seconds": "Device seconds of training per seed; CPU seconds on a cpu track.",
    "gradient_forwards": "Gradient-carrying forwards per completion, per seed.",
    "optimiser_steps": "Optimiser steps per seed.",
    "device": "Device that the seconds are of.",
    "flags": "Codes of its flags with their task, as in `exactly_0:sudoku collapse`.",
    "entry": "Id of the entry.",
    "submitted_at": "UTC time of submission.",
}
TASK_COLUMNS: Mapping[str, str] = {
    "state": "measured, preliminary (fewer seeds than required, none under way), not_run, not_asked, not_scored "
    "(answers are stored, nobody could run the programs in them), queued, running, failed or retrying. "
    "Numbers of any state but measured are preliminary: in no mean, no test and no rank.",
    "solved": "Share of items solved by greedy decoding, mean over seeds.",
    "solved_half_width": "Half-width of its 95 % t interval over seeds; empty for one seed.",
    "seeds": "Seeds measured.",
    "items": "Items of the task.",
    "gain": "Solved minus that of the untouched backbone, seed by seed.",
    "gain_half_width": "Half-width of its interval.",
    "significant": "1: the interval of the gain excludes zero; empty while the number is preliminary.",
    "at_or_below_chance": "1: not significantly above the task's chance floor (exact binomial test, 5 %); or empty.",
    "sampled_reward": "Mean shaped reward of sampled completions.",
    "sampled_solved": "Share of sampled completions that solve their item.",
}


def column_dictionary(board: Board) -> dict[str, str]:
    """Every column of the CSV and what it says."""
    per_task = {
        f"{column.task}_{name}": f"{column.title}: {text}"
        for column in board.columns
        for name, text in TASK_COLUMNS.items()
    }
    return {**ROW_COLUMNS, **per_task}


def csv(board: Board, flags: Sequence[Flag] = ()) -> str:
    """One line per row, every number in full precision, missing ones empty."""
    out = io.StringIO()
    names = list(column_dictionary(board))
    writer = csv_module.DictWriter(out, names, lineterminator="\r\n")
    writer.writeheader()
    for row in board.rows:
        said = [flag for flag in flags if flag.where.entry_id == row.entry_id]
        writer.writerow({name: _safe(value) for name, value in _csv_row(board, row, said).items()})
    return out.getvalue()


def _csv_row(board: Board, row: Row, flags: Sequence[Flag]) -> dict[str, object]:
    cost = row.cost or Cost(float("nan"), float("nan"), float("nan"), "")
    submitted = datetime.fromtimestamp(row.submitted_at, UTC).isoformat(timespec="seconds")
    values: dict[str, object] = {
        "rank_low": row.rank[0] if row.rank else None,
        "rank_high": row.rank[1] if row.rank else None,
        "name": row.name,
        "algorithm": row.algorithm,
        "kind": row.kind,
        "status": row.status,
        "scorer": board.scorer,
        "seeds": row.seeds,
        "tries": row.tries,
        **_pair("gain", row.gain),
        "preliminary_gain": row.preliminary_gain.value if row.preliminary_gain else None,
        **_pair("reward_gain", row.reward_gain),
        "train_device_seconds": cost.train_device_seconds if row.cost else None,
        "gradient_forwards": cost.gradient_forwards if row.cost else None,
        "optimiser_steps": cost.optimiser_steps if row.cost else None,
        "device": cost.device,
        "flags": " ".join(dict.fromkeys(_code(flag) for flag in flags)),
        "entry": row.entry_id,
        "submitted_at": submitted,
    }
    for column in board.columns:
        cell = row.cells.get(column.task, Cell(state="not_asked"))
        values |= {f"{column.task}_{name}": value for name, value in _csv_cell(cell).items()}
    return values


def _csv_cell(cell: Cell) -> dict[str, object]:
    has_value, is_tested = cell.greedy is not None, cell.state == "measured" and cell.greedy is not None
    return {
        "state": cell.state,
        **_pair("solved", cell.greedy),
        "seeds": cell.seeds_done,
        "items": cell.items if has_value else None,
        **_pair("gain", cell.gain),
        "significant": int(cell.significant) if is_tested else None,
        "at_or_below_chance": int(cell.at_or_below_chance) if is_tested else None,
        "sampled_reward": cell.sampled.value if cell.sampled else None,
        "sampled_solved": cell.sampled_solved.value if cell.sampled_solved else None,
    }


def _code(flag: Flag) -> str:
    return f"{flag.code}:{flag.where.task}" if flag.where.task else flag.code


def _pair(name: str, estimate: Estimate | None) -> dict[str, object]:
    return {
        name: estimate.value if estimate else None,
        f"{name}_half_width": estimate.half_width if estimate else None,
    }


def _safe(value: object) -> object:
    """Text that a spreadsheet would run gets an apostrophe before it; numbers stay numbers."""
    if isinstance(value, str) and value.startswith(FORMULA):
        return "'" + value
    return "" if value is None else repr(value) if isinstance(value, float) else value


def json(board: Board, flags: Sequence[Flag] = ()) -> str:
    """The whole board with full precision, its flags, and what each column of the CSV and each flag means."""
    content = {
        "board": asdict(board),
        "flags": [
            {"code": flag.code, "entry": flag.where.entry_id, "task": flag.where.task, "sentence": flag.sentence}
            for flag in flags
        ],
        "columns": column_dictionary(board),
        "flag_meanings": dict(EXPLANATIONS),
    }
    return json_module.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


# --- LaTeX ----------------------------------------------------------------------------------------------------------

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def latex(board: Board, flags: Sequence[Flag] = ()) -> str:
    """A booktabs table, rounded as on the page, with comments that say which board it is and what is flagged."""
    columns = [column for column in board.columns if column.role != "transfer" or _has_numbers(board, column)]
    made = datetime.fromtimestamp(board.made_at, UTC)
    lines = [
        f"% DARE, track {board.track} {board.version}, backbone {board.backbone}, board {board.digest}",
        f"% {made:%Y-%m-%d %H:%M} UTC, scorer {board.scorer}; mean of seeds with 95 % t interval",
        r"% needs \usepackage{booktabs}",
        r"\begin{tabular}{ll" + "r" * (1 + len(columns)) + "}",
        r"\toprule",
        " & ".join(["Rank", "Entry", "Mean gain", *(_escaped(column.title) for column in columns)]) + r" \\",
        r"\midrule",
        *(_latex_row(row, columns) for row in board.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *(f"% {_code(flag)} {flag.where.entry_id}: {' '.join(flag.sentence.split())}" for flag in flags),
    ]
    return "\n".join(lines) + "\n"


def _has_numbers(board: Board, column: Column) -> bool:
    return any(column.task in row.cells and row.cells[column.task].greedy is not None for row in board.rows)


def _latex_row(row: Row, columns: list[Column]) -> str:
    low, high = row.rank or (0, 0)
    rank = (
        "ref"
        if row.kind == "reference"
        else "--"
        if row.rank is None
        else str(low)
        if low == high
        else f"{low}--{high}"
    )
    gain = "0" if row.kind == "reference" else _latex_number(row.gain, signed=True)
    cells = [_latex_cell(row.cells.get(column.task)) for column in columns]
    return " & ".join([rank, _escaped(row.name), gain, *cells]) + r" \\"


def _latex_cell(cell: Cell | None) -> str:
    if cell is None or cell.greedy is None:
        return "--" if cell is None or cell.state in ("not_asked", "not_run") else _escaped(cell.state)
    if cell.is_preliminary:
        value, _ = written(cell.greedy.value)
        return f"${value}$ ({cell.seeds_done} of {cell.seeds_required} seeds)"
    return _latex_number(cell.greedy)


def _latex_number(estimate: Estimate | None, signed: bool = False) -> str:
    if estimate is None:
        return "--"
    half = estimate.half_width if estimate.seeds > 2 else None
    value, width = written(estimate.value, half, signed=signed)
    number = value.replace("\u2212", "-")
    return f"${number} \\pm {width}$" if width is not None else f"${number}$"


def _escaped(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in " ".join(text.split()))
