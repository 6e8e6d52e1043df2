"""Runs, workers, scores and history as small tables: plain data in, HTML out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import tzinfo
from html import escape

from dare_platform.views import (
    Alarm,
    ArtifactView,
    CellRuns,
    EntrySummary,
    EntryView,
    EventView,
    NotScored,
    RunSummary,
    RunView,
    ScorerDifference,
    ScoreView,
    Stage,
    UsageView,
    WaitingRun,
    Word,
    WorkerView,
)
from leaderboard import links, quantities
from leaderboard.plain_tables import Text, plain_table

_STAGE_MARKS = {"done": "✓", "active": "●", "waiting": "○", "failed": "✕"}
_STAGE_WORDS = {"done": "done", "active": "now", "waiting": "not yet", "failed": "failed"}


def run_name(run: RunSummary) -> str:
    """`bgpo · llada-tiny · seed 1`, and what kind of work it is where that is not training."""
    if not run.id:
        return run.entry_name
    kind = "" if run.kind == "train" else f" · {run.kind}"
    return f"{run.entry_name} · {run.backbone} · seed {run.seed}{kind}"


def running_runs(runs: Sequence[RunSummary]) -> str:
    """What is being worked on."""
    rows = [
        (
            _queued(run),
            Text(run.sentence),
            Text(run.worker or "—", code=run.worker is not None),
            Text(f"{run.attempts} of {run.max_attempts}" if run.id else "—", number=True),
        )
        for run in runs
    ]
    return plain_table(("Running", "State", "Worker", "Attempt"), rows, "Runs under way")


def _queued(run: RunSummary) -> Text:
    """The name of a run and the way to it; of one that is not this reader's to see, neither."""
    return Text(run_name(run), href=links.run_link(run.id)) if run.id else Text(run.entry_name, mark="second")


def waiting_runs(waiting: Sequence[WaitingRun]) -> str:
    """What waits, in order."""
    rows = [
        (
            Text(str(place.position), number=True),
            _queued(place.run),
            Text(place.waits_for, code=True),
            Text(quantities.duration(place.since_seconds), number=True),
            Text("no worker", mark="attention", number=True)
            if place.at_most_seconds is None
            else Text(quantities.duration(place.at_most_seconds), number=True),
        )
        for place in waiting
    ]
    return plain_table(("Position", "Waiting", "Waits for", "Since", "At most"), rows, "Runs that wait")


def workers(found: Sequence[WorkerView]) -> str:
    """Who works, on what, and when each gave its last sign of life."""
    rows = [
        (
            Text(worker.name, code=True),
            Text(", ".join(worker.queues)),
            Text(worker.device),
            Text(worker.state if worker.alive else "silent", mark="" if worker.alive else "attention"),
            _work_of(worker),
            Text(f"{quantities.duration(worker.last_seen_seconds)} ago", number=True),
        )
        for worker in found
    ]
    return plain_table(("Worker", "Takes", "Device", "State", "Run", "Seen"), rows, "Workers")


def _work_of(worker: WorkerView) -> Text:
    if worker.run_id is None:
        return Text("—")
    if not worker.run_id:
        return Text("private entry", mark="second")
    return Text(worker.run_id[-8:], href=links.run_link(worker.run_id), code=True)


def cell_runs(cells: Sequence[CellRuns]) -> str:
    """Backbone and seed against kind of work; each state leads to its run."""
    kinds = [kind for kind in ("train", "evaluate", "score") if kind != "score" or _has_kind(cells, kind)]
    rows = []
    for cell in cells:
        by_kind = {run.kind: run for run in cell.runs}
        rows.append(
            (
                Text(f"{cell.backbone} · seed {cell.seed}"),
                *(_run_cell(by_kind[kind]) if kind in by_kind else Text("—", mark="second") for kind in kinds),
            )
        )
    return plain_table(("Backbone and seed", *(kind.capitalize() for kind in kinds)), rows, "Runs of this entry")


def _has_kind(cells: Sequence[CellRuns], kind: str) -> bool:
    return any(run.kind == kind for cell in cells for run in cell.runs)


def _run_cell(run: RunSummary) -> Text:
    marks = {"succeeded": "positive", "failed": "attention"}
    return Text(run.sentence, href=links.run_link(run.id), mark=marks.get(run.state, ""))


def stages(found: Sequence[Stage]) -> str:
    """Where a run is: one mark and one word each."""
    items = "".join(
        f'<li class="{"now" if stage.state == "active" else ""}"'
        f"{' aria-current=step' if stage.state == 'active' else ''}>"
        f'<span aria-hidden="true">{_STAGE_MARKS[stage.state]}</span> {escape(stage.name)}'
        f'<span class="sr"> {_STAGE_WORDS[stage.state]}</span></li>'
        for stage in found
    )
    return f'<div class="dare"><ol class="stages">{items}</ol></div>'


def scores(found: Sequence[ScoreView]) -> str:
    """The numbers of one evaluation by every scorer, as they were stored; the interval is over items."""
    rows = [
        (
            Text(score.task),
            Text(score.scorer, code=True),
            Text(f"{score.metric}, {score.decoding}"),
            Text(quantities.share(score.value), number=True),
            Text(_bounds(score), number=True),
            Text(quantities.count(score.n), number=True),
            Text(quantities.count(score.completions), number=True),
            *(_seldom(number) for number in (score.n_no_answer, score.n_truncated, score.n_undecoded, score.n_error)),
        )
        for score in found
    ]
    heads = (
        "Task", "Scorer", "Measure", "Per cent", "95 % interval", "Items", "Completions", "No answer", "Cut off",
        "Undecoded", "Scorer failed",
    )  # fmt: skip
    return plain_table(heads, rows, "Scores of this run")


def _bounds(score: ScoreView) -> str:
    if score.low is None or score.high is None:
        return "—"
    return f"{quantities.fixed(100 * score.low, 1)} to {quantities.fixed(100 * score.high, 1)}"


def _seldom(number: int) -> Text:
    """A count that should be 0; what is not stands out."""
    return Text(quantities.count(number), number=True, mark="attention" if number else "second")


def not_scored(found: Sequence[NotScored]) -> str:
    """Tasks whose answers are stored and have no number, each with why and where its scoring stands."""
    rows = [
        (
            Text(one.task),
            Text("not scored", mark="second"),
            Text(one.sentence),
            Text("score run", href=links.run_link(one.run_id)) if one.run_id else Text("—", mark="second"),
        )
        for one in found
    ]
    return plain_table(("Task", "Score", "Why", "By"), rows, "Tasks without a score")


def moved(difference: ScorerDifference) -> str:
    """Answers that two scorers judge apart: what each says, and what it has read."""
    rows = [
        (
            Text(one.item, code=True),
            Text("greedy" if one.sample == 0 else f"sample {one.sample}"),
            *(_word(word) for word in (one.a, one.b)),
        )
        for one in difference.moved
    ]
    heads = ("Item", "Answer", difference.a, difference.b)
    return plain_table(heads, rows, f"Answers to {difference.task} that the scorers judge apart")


def _word(word: Word) -> Text:
    said = "solved" if word.solved else "not solved"
    status = "" if word.status == "ok" else f", {word.status.replace('_', ' ')}"
    read = "" if word.answer is None else f": {shortened(word.answer)}"
    return Text(f"{said}{status}{read}", title=word.answer, mark="positive" if word.solved else "")


def shortened(text: str, most: int = 80) -> str:
    """One line of it; the whole text is in the title."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def usage(spent: UsageView) -> str:
    """What a run cost, by clock and by count."""
    rows = [
        (Text("train"), Text(quantities.duration(spent.train_seconds), number=True)),
        (Text("evaluate"), Text(quantities.duration(spent.evaluate_seconds), number=True)),
        (
            Text("prepare and overhead"),
            Text(quantities.duration(spent.prepare_seconds + spent.overhead_seconds), number=True),
        ),
        (Text("device time"), Text(quantities.duration(spent.device_seconds), number=True)),
        (Text("optimiser steps"), Text(quantities.count(spent.optimiser_steps), number=True)),
        (
            Text("gradient-carrying forwards per completion"),
            Text(quantities.count(spent.gradient_forwards), number=True),
        ),
        (Text("all forwards of one sequence"), Text(quantities.count(spent.forwards), number=True)),
        (
            Text("tokens decoded, kept"),
            Text(
                f"{quantities.count(spent.tokens_decoded)}, {quantities.count(spent.tokens_kept)}",
                number=True,
            ),
        ),
    ]
    if spent.energy_joules is not None:
        rows.append((Text("energy"), Text(f"{spent.energy_joules / 3.6e6:.3f}{quantities.THIN}kWh", number=True)))
    return plain_table(("Cost", "Amount"), rows, "What this run cost")


def pairs(found: Sequence[tuple[str, str]], caption: str) -> str:
    """Names and values, both as they were recorded."""
    return plain_table(("Name", "Value"), [(Text(name), Text(value, code=True)) for name, value in found], caption)


def history(events: Sequence[EventView], zone: tzinfo, of_one_run: bool = False) -> str:
    """What happened to which run, in the order given."""
    rows = []
    for event in events:
        when, what = Text(quantities.moment(event.at, zone)), Text(event.sentence)
        by, run = Text(event.actor, mark="second"), Text(event.run, href=links.run_link(event.run_id))
        rows.append((when, what, by) if of_one_run else (when, run, what, by))
    return plain_table(("When", "What", "By") if of_one_run else ("When", "Run", "What", "By"), rows, "History")


def artifacts(found: Sequence[ArtifactView]) -> str:
    """Files that a run left behind."""
    rows = [
        (
            Text(file.path, code=True),
            Text(quantities.size(file.bytes), number=True),
            Text(quantities.short_hash(file.sha256), title=file.sha256, code=True),
            Text("kept" if file.purged_at is None else f"purged on {quantities.moment(file.purged_at)}"),
        )
        for file in found
    ]
    return plain_table(("File", "Size", "SHA-256", ""), rows, "Files of this run")


def entries(found: Sequence[EntrySummary], zone: tzinfo) -> str:
    """Other entries of one algorithm."""
    rows = [
        (
            Text(entry.name, href=links.entry_link(entry.id)),
            Text(entry.status),
            Text(entry.sentence.replace("**", "")),
            Text(quantities.moment(entry.submitted_at, zone)),
        )
        for entry in found
    ]
    return plain_table(("Entry", "Status", "State", "Submitted"), rows, "Other entries of this algorithm")


def entry_line(view: EntryView) -> str:
    """Where an entry comes from, its id and its track."""
    entry = view.summary
    slug = entry.track.split(" ")[0]
    parts = [
        "built in" if entry.built_in else "submitted",
        entry.kind if entry.kind != "method" else "",
        "" if entry.visibility == "public" else entry.visibility,
        f"by <bdi>{escape(entry.author)}</bdi>" if entry.author else "",
        f"class <bdi>{escape(view.class_name)}</bdi>" if view.class_name else "",
        f"entry <code>{escape(entry.id)}</code>",
        f"code <code>{escape(quantities.short_hash(entry.code_sha256))}</code>" if entry.code_sha256 else "",
        f'track <a href="{escape(links.rules_link(slug))}">{escape(entry.track)}</a>',
        f'<a href="{escape(links.compare_link(entry.id, slug))}">compare</a>',
        f'<a href="{escape(links.curves_link([entry.id], slug))}">curves</a>',
        f"try {entry.try_number}" if entry.try_number > 1 else "",
    ]
    return f'<div class="dare"><p class="second">{" · ".join(part for part in parts if part)}</p></div>'


def run_line(run: RunView) -> str:
    """The entry that it belongs to, attempt, worker and last sign of life."""
    summary = run.summary
    parts = [
        f'entry <a href="{escape(links.entry_link(summary.entry_id))}"><bdi>{escape(summary.entry_name)}</bdi></a>',
        f"run <code>{escape(summary.id)}</code>",
        f"attempt {summary.attempts} of {summary.max_attempts}" if summary.attempts else "not started",
    ]
    if run.worker:
        parts.append(f"worker <code>{escape(run.worker)}</code>")
    return f'<div class="dare"><p class="second">{" · ".join(parts)}</p></div>'


def check_line(run: RunSummary) -> str:
    """The contract check at intake."""
    return (
        f'<div class="dare"><p>Check before queuing: <a href="{escape(links.run_link(run.id))}">'
        f"{escape(run.sentence)}</a></p></div>"
    )


def method_facts(entry: EntryView) -> str:
    """Class, what it builds on, what it overrides, and the hash of all that."""
    facts = [("class", entry.class_name or ""), ("builds on", entry.base or "")]
    facts.append(("overrides", ", ".join(entry.overridden)))
    facts.append(("hash of code and settings", "" if entry.withheld else entry.digest))
    rows = [(Text(name), Text(value, code=True)) for name, value in facts if value]
    return plain_table(("Fact", "Value"), rows, "What this method is made of")


def change_it(entry_id: str) -> str:
    """The way from a method to a changed version of it."""
    href = escape(links.submit_link(entry_id))
    return f'<div class="dare"><p><a href="{href}">Change it and submit the result</a></p></div>'


def alarms(found: Sequence[Alarm]) -> str:
    """Alarms in order of steps."""
    rows = [
        (
            Text("—" if alarm.step is None else str(alarm.step), number=True),
            Text(alarm.name, mark="attention"),
            Text(alarm.sentence),
        )
        for alarm in found
    ]
    return plain_table(("Step", "Alarm", "What it says"), rows, "Alarms")


_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")
MOST_CHARACTERS = 2000


def log(lines: Sequence[str], scrolls: bool = True) -> str:
    """The end of a log: escaped, without terminal codes, long lines cut. `scrolls`: by itself, not by what it is in."""
    cut = []
    for line in lines:
        plain = "".join(c for c in _ANSI.sub("", line) if c == "\t" or c.isprintable())
        cut.append(plain if len(plain) <= MOST_CHARACTERS else plain[:MOST_CHARACTERS] + " … cut")
    name = "log" if scrolls else "log grows"
    return f'<div class="dare"><pre class="{name}" tabindex="0">{escape(chr(10).join(cut))}</pre></div>'


def source(text: str) -> str:
    """A file with its line numbers, in a box that scrolls and that the keyboard can reach, unlike Streamlit's own."""
    lines = text.splitlines() or [""]
    width = len(str(len(lines)))
    numbered = "\n".join(
        f'<span class="line" aria-hidden="true">{number:>{width}}</span>{escape(line)}'
        for number, line in enumerate(lines, start=1)
    )
    return (
        '<div class="dare"><pre class="log source" tabindex="0" role="region" aria-label="Source">'
        f"<bdi>{numbered}</bdi></pre></div>"
    )


def order(text: str) -> str:
    """A job to the letter, since its hash is of the letters; lines are broken for the eye only."""
    return (
        f'<div class="dare"><pre class="log" tabindex="0" role="region" aria-label="Order">{escape(text)}</pre></div>'
    )
