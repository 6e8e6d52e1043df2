"""`dare entries`, `runs`, `queue`, `leaderboard`, `export`: everything that only looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dare_platform.cli.output import (
    AsJson,
    plain,
    say,
    service,
    show,
    table,
    write,
    write_json,
)

if TYPE_CHECKING:
    from dare_platform.board import Cell, Row
    from dare_platform.views import EntrySummary, EntryView, RunSummary, RunView

Track = Annotated[str, typer.Option(help="`tiny`, or `tiny@1.0` for a version.")]
Backbone = Annotated[str | None, typer.Option("--backbone", "-b", help="The track's first by default.")]


def add_to(app: typer.Typer, entries_panel: str, runs_panel: str) -> None:
    """Register the commands."""
    panels: list[tuple[str, Callable[..., None]]] = [
        *((entries_panel, command) for command in (entries, leaderboard, export)),
        *((runs_panel, command) for command in (runs, queue)),
    ]
    for panel, command in panels:
        app.command(rich_help_panel=panel)(command)


def _said(markdown: str) -> str:
    """A sentence of the pages for a terminal: without its stars and without what keeps names from being markup."""
    from dare_platform.verdict import unescaped

    return unescaped(plain(markdown))


def entries(
    id: Annotated[str | None, typer.Argument(help="One entry in full.")] = None,
    track: Annotated[str | None, typer.Option(help="Only those of one track.")] = None,
    as_json: AsJson = False,
) -> None:
    """List entries, newest first, or show one: `dare entries`, `dare entries ID`."""
    with service() as asked:
        one = asked.entry(id) if id else None
        listed = asked.entries(track) if not id else ()
    if one is not None:
        write_json(one) if as_json else _show_entry(one)
    elif as_json:
        write_json(listed)
    elif not listed:
        say("No entry yet. Submit the first one: dare submit bgpo")
    else:
        rows = [(e.id, _title(e), ", ".join(e.backbones), e.status, f"{e.runs_done}/{e.runs_total}") for e in listed]
        show(table("id", "entry", "backbones", "status", "runs:", rows=rows))


def _title(entry: EntrySummary) -> str:
    """Its name, and what it is a version of when that has another one."""
    return entry.name if entry.name == entry.algorithm else f"{entry.name} ({entry.algorithm})"


def _show_entry(entry: EntryView) -> None:
    summary = entry.summary
    write(f"{summary.name} ({summary.id}), {summary.kind}, track {summary.track}\n{_said(entry.headline)}")
    if entry.ending:
        write(
            f"{entry.ending.sentence} {'Charged' if entry.ending.charged else 'Not charged'}. {entry.ending.next_step}"
        )
    changed = [(s.name, s.default, s.value) for s in entry.settings if s.changed]
    if changed:
        show(table("hyperparameter", "default", "here", rows=changed))
    show(_runs_table([run for cell in entry.cells for run in cell.runs]))
    write(f"Again: {entry.rerun_command}")


def runs(
    id: Annotated[str | None, typer.Argument(help="One run in full.")] = None,
    entry: Annotated[str | None, typer.Option(help="Only those of one entry.")] = None,
    limit: int = 50,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first, or show one: `dare runs`, `dare runs --entry ID`, `dare runs ID`."""
    with service() as asked:
        one = asked.run(id) if id else None
        listed = asked.runs(entry, limit) if not id else ()
    if one is not None:
        write_json(one) if as_json else _show_run(one)
    elif as_json:
        write_json(listed)
    elif not listed:
        say("No run yet. Runs come with an entry: dare submit bgpo")
    else:
        show(_runs_table(listed))


def _runs_table(listed: Sequence[RunSummary]) -> Any:
    return table("id", "what", "state", rows=[(run.id, _named(run), _stands(run)) for run in listed])


def _named(run: RunSummary) -> str:
    return f"{run.entry_name} · {run.kind} · {run.backbone} · seed {run.seed}"


def _stands(run: RunSummary) -> str:
    """Its state; which attempt it is, when it is not the first; who works on it."""
    attempt = f", attempt {run.attempts} of {run.max_attempts}" if run.attempts > 1 else ""
    return f"{run.sentence}{attempt}{f' ({run.worker})' if run.worker else ''}"


def _show_run(run: RunView) -> None:
    summary = run.summary
    write(f"{summary.entry_name}, {summary.kind}, {summary.backbone}, seed {summary.seed} ({summary.id})")
    write(_said(run.headline))
    write(" ".join({"done": "✓", "active": "●", "failed": "✗"}.get(s.state, "○") + " " + s.name for s in run.stages))
    if run.isolation:
        write(run.isolation)
    if run.scores:
        rows = [
            (
                s.task,
                s.metric,
                s.decoding,
                s.scorer,
                f"{s.value:.4f}",
                "" if s.standard_error is None else f"{s.standard_error:.4f}",
                s.n,
            )
            for s in run.scores
        ]
        show(table("task", "metric", "decoding", "scorer", "value:", "item s.e.:", "n:", rows=rows))
    for missing in run.not_scored:
        write(f"{missing.task}: not scored. {missing.sentence}")
    if run.log_tail:
        write("\n".join(run.log_tail[-10:]))
    write(f"Again: {run.rerun_command}")


def queue(as_json: AsJson = False) -> None:
    """Show who works and who waits, for what, and how long at most."""
    from dare_platform.views.words import duration

    with service() as asked:
        view = asked.queue()
    if as_json:
        write_json(view)
        return
    write(_said(view.headline))
    if view.running:
        show(_runs_table(view.running))
    if view.waiting:
        rows = [
            (
                w.position, _named(w.run), w.waits_for, duration(w.since_seconds),
                "no worker" if w.at_most_seconds is None else duration(w.at_most_seconds),
            )
            for w in view.waiting
        ]  # fmt: skip
        show(table("pos:", "what", "waits for", "since:", "at most:", rows=rows))
    if view.workers:
        rows_ = [
            (
                w.name,
                ", ".join(w.queues),
                w.device,
                w.state if w.alive else "silent",
                w.run_id,
                duration(w.last_seen_seconds),
            )
            for w in view.workers
        ]
        show(table("worker", "queues", "device", "state", "run", "seen:", rows=rows_))


def leaderboard(track: Track = "tiny", backbone: Backbone = None, as_json: AsJson = False) -> None:
    """Show the board of one backbone: gains over the untouched model, with their uncertainty.

    `dare leaderboard` · `dare leaderboard -b sdar-tiny --json`
    """
    with service() as asked:
        if as_json:
            write(asked.export(track, backbone, "json"))
            return
        board = asked.board(track, backbone)
    write(_said(board.verdict))
    if not board.rows:
        say("No entry yet. Submit the first ones: dare submit untouched, dare submit bgpo")
        return
    titles = [f"{column.title}:" for column in board.columns if column.role != "transfer"]
    tasks = [column.task for column in board.columns if column.role != "transfer"]
    rows = [_board_row(row, tasks) for row in board.rows]
    show(table("rank", "entry", "gain, points:", *titles, "seeds:", "status", rows=rows))
    say(
        f"[dim]{board.backbone}, track {board.track} {board.version}; percent, mean of seeds ± 95 % t interval; "
        f"ranks that overlap cannot be told apart. {board.digest[:8]}, scorer {board.scorer}[/]"
    )


def _board_row(row: Row, tasks: Sequence[str]) -> list[object]:
    from dare_platform.statistics import in_words, written

    low, high = row.rank or (0, 0)
    rank = "ref" if row.kind != "method" else "—" if row.rank is None else str(low) if low == high else f"{low}–{high}"
    gain = "0" if row.kind == "reference" else in_words(row.gain, signed=True) if row.gain else "not ranked"
    if row.kind in ("baseline", "control") and row.gain is None:
        gain = "preliminary" if row.preliminary_gain else "incomplete"
    if row.preliminary_gain is not None:
        seeds = row.preliminary_gain.seeds
        value, _ = written(row.preliminary_gain.value, signed=True)
        gain += f"\n{value}, {seeds} {'seed' if seeds == 1 else 'seeds'}"
    return [rank, row.name, gain, *(_board_cell(row.cells[task]) for task in tasks), row.seeds, row.status]


def _board_cell(cell: Cell) -> str:
    """A value with what must be said of it, or its state."""
    from dare_platform.statistics import in_words, written

    if cell.greedy is None:
        return "—" if cell.state == "not_asked" else cell.state.replace("_", " ")
    if cell.state == "measured":
        return in_words(cell.greedy) + (" ≤ chance" if cell.at_or_below_chance else "")
    mark = {"running": "◔ ", "failed": "failed, ", "retrying": "retrying, "}.get(cell.state, "")
    return f"{written(cell.greedy.value)[0]}\n{mark}{cell.seeds_done} of {cell.seeds_required} seeds"


def export(
    format: Annotated[Literal["csv", "json", "latex"], typer.Option("--format", "-f", help="Kind of file.")] = "csv",
    track: Track = "tiny",
    backbone: Backbone = None,
) -> None:
    """Write the board as CSV, JSON (both in full precision) or a LaTeX table: `dare export -f latex > board.tex`."""
    with service() as asked:
        write(asked.export(track, backbone, format))
