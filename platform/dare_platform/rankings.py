"""The leaderboard of one track on one backbone: who is ranked, where, and what may be said about it.

An entry is ranked when every ranked cell of its row, and of the reference's, has the seeds that the track requires;
what there is before that is shown as preliminary. Its rank is the range that Welch's test between
seeds leaves open after Holm's adjustment over all pairs; gains are taken against the untouched backbone seed by seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from dare.catalog import algorithms, families
from dare.tasks import load_task
from dare_platform import statistics
from dare_platform.board import Board, Cell, CellState, Column, Cost, Estimate, Row
from dare_platform.board_facts import BoardFacts, EntryFacts, RunFact, TaskFacts, collect
from dare_platform.database import now
from dare_platform.models import ACTIVE, FINISHED
from dare_platform.outputs import holds_programs
from dare_platform.tracks import Track, UnknownTrackError, tracks
from dare_platform.verdict import verdict
from dare_platform.viewer import NOBODY, Viewer


def board(
    session: Session, track: Track | str, backbone: str, viewer: Viewer = NOBODY, beside: str | None = None
) -> Board:
    """The board of this moment. UnknownTrackError for a track (`tiny 1.0`) or a backbone that there is not.

    There is one board for everybody: private entries are in none of its rows and numbers, and nobody is named who is
    anonymous. `beside` adds the unranked row of one private entry for somebody who sees it.
    """
    rules = track if isinstance(track, Track) else tracks().get(track)
    if rules is None:
        raise UnknownTrackError(f"there is no track {track!r}; known: {', '.join(tracks())}")
    rules.rules_of(backbone)
    facts = collect(session, rules.track, rules.version, backbone, viewer, beside)
    return assemble(rules, backbone, facts or BoardFacts(family="", tasks={}, entries=()), made_at=now(session))


def assemble(track: Track, backbone: str, facts: BoardFacts, made_at: float) -> Board:
    """A board from facts: pure."""
    public = [entry for entry in facts.entries if not entry.private]
    own = [entry for entry in facts.entries if entry.private]
    shown = latest_of_each_name(public)
    reference = next((entry for entry in shown if entry.kind == "reference"), None)
    rows = [_row(track, facts, entry, reference) for entry in shown]
    seeds = {entry.id: _seed_means(track, entry) for entry in shown}
    rows = _ranked(rows, seeds)
    counted = [entry for entry in public if entry.kind != "reference" and entry.gate != "rejected"]
    running = sum(row.status in ("running", "waiting") for row in rows if row.kind != "reference")
    hardware = {spent.hardware for entry in shown for spent in entry.spent}
    made = Board(
        track=track.track,
        version=track.version,
        backbone=backbone,
        family=facts.family,
        columns=_columns(track, facts.tasks),
        rows=(*rows, *(_row(track, facts, entry, reference) for entry in own)),
        verdict=verdict(rows, backbone, override=track.verdict_override, lead=_lead(rows, seeds), running=running),
        made_at=made_at,
        digest="",
        scorer=track.scorer,
        entries=sum(row.kind != "reference" for row in rows),
        tries=len(counted),
        withdrawn=sum(entry.gate == "withdrawn" for entry in counted),
        running=running,
        device=track.device if track.device == "cpu" or not hardware else " / ".join(sorted(hardware)),
    )
    return replace(made, digest=digest_of(made))


def canonical(board: Board) -> str:
    """Everything shown except when it was made, as the one JSON text that is hashed."""
    content = {key: value for key, value in vars(board).items() if key not in ("made_at", "digest")}
    return json.dumps(content, sort_keys=True, ensure_ascii=False, default=vars)


def digest_of(board: Board) -> str:
    """SHA-256 of what is shown: an unchanged board keeps its hash."""
    return hashlib.sha256(canonical(board).encode()).hexdigest()


def latest_of_each_name(entries: Sequence[EntryFacts]) -> list[EntryFacts]:
    """One entry per name, the last that was submitted and is neither withdrawn nor rejected; one reference in all."""
    latest: dict[str, EntryFacts] = {}
    for entry in entries:
        if entry.gate not in ("withdrawn", "rejected"):
            latest["\0reference" if entry.kind == "reference" else entry.name] = entry
    return list(latest.values())


# --- columns and cells ----------------------------------------------------------------------------------------------


def _columns(track: Track, tasks: Mapping[str, TaskFacts]) -> tuple[Column, ...]:
    columns = []
    for column in track.tasks:
        task, known = load_task(column.task), tasks.get(column.task)
        columns.append(
            Column(
                task=column.task,
                title=task.title,
                role=column.role,
                items=min(known.items, column.limit or known.items) if known else None,
                chance_floor=known.chance_floor if known else task.chance_floor,
                notes=tuple(task.notes),
            )
        )
    return tuple(columns)


def _published_for(algorithm: str) -> frozenset[str]:
    """Kinds of family that a built-in method was published for. One that has left the catalog is no extension."""
    source = algorithms().get(algorithm)
    return source.published_for if source else frozenset({"masked", "block"})


def by_seed(track: Track, entry: EntryFacts, task: str, metric: str, decoding: str) -> dict[int, float]:
    """The stored values of one number under the track's scorer."""
    return {
        number.seed: number.value
        for number in entry.numbers
        if (number.task, number.metric, number.decoding, number.scorer) == (task, metric, decoding, track.scorer)
    }


def _cell(track: Track, facts: BoardFacts, entry: EntryFacts, reference: EntryFacts | None, task: str) -> Cell:
    greedy = by_seed(track, entry, task, "solved", "greedy")
    state, detail = _state(track, entry, task, set(greedy))
    if not greedy:
        return Cell(state=state, seeds_required=track.seeds_required, detail=detail)
    untouched = by_seed(track, reference, task, "solved", "greedy") if reference else {}
    gains = statistics.differences(greedy, untouched)
    gain = statistics.mean_interval(list(gains.values())) if gains else None
    items = max(
        number.n
        for number in entry.numbers
        if (number.task, number.decoding, number.scorer) == (task, "greedy", track.scorer)
    )
    headline = statistics.mean_interval(list(greedy.values()))
    floor = facts.tasks[task].chance_floor if task in facts.tasks else 0.0
    return Cell(
        state=state,
        greedy=headline,
        sampled=_estimate(by_seed(track, entry, task, "reward", "sampled")),
        sampled_solved=_estimate(by_seed(track, entry, task, "solved", "sampled")),
        gain=gain,
        significant=state == "measured"
        and entry.kind != "reference"
        and gain is not None
        and gain.seeds >= track.seeds_required
        and statistics.excludes_zero(gain),
        at_or_below_chance=state == "measured"
        and floor > 0
        and not statistics.above_chance(headline.value, items, floor),
        exactly_zero=all(value == 0 for value in greedy.values()),
        seeds_done=len(greedy),
        seeds_required=track.seeds_required,
        items=items,
        detail=detail,
    )


def _estimate(values: Mapping[int, float]) -> Estimate | None:
    return statistics.mean_interval(list(values.values())) if values else None


def _state(track: Track, entry: EntryFacts, task: str, done: set[int]) -> tuple[CellState, str | None]:
    """State of a cell and the sentence behind it, from the runs of the seeds that have no number yet."""
    if len(done) >= track.seeds_required:
        return "measured", None
    if entry.runs and task not in entry.asked:
        return "not_asked", "Not part of this entry: the data of this task was not at hand."
    open_runs = [run for run in entry.runs if run.seed not in done]
    unscored = _why_not_scored(task, open_runs)
    failed = [run for run in open_runs if run.state == "failed" and run.cause != "dependency"]
    if unscored:
        failed = [run for run in failed if run.kind != "score"]
    if failed:
        own = next((run for run in failed if run.charged), failed[0])
        whose = "" if own.charged else " Nothing is charged."
        return "failed", f"Seed {own.seed}: {own.sentence or own.cause or 'failed'}{whose}"
    again = [run for run in open_runs if run.state == "queued" and run.cause is not None]
    if again:
        run = again[0]
        text = f"{run.sentence or 'The worker was lost.'} We retry it, {run.attempts} of {run.max_attempts}"
        return "retrying", f"{text}; nothing is charged."
    active = [run for run in open_runs if run.state in ACTIVE]
    waiting = [run for run in open_runs if run.state in ("blocked", "queued")]
    if active:
        return "running", _at_work(active[0])
    if waiting:
        seeds = len({run.seed for run in waiting})
        left = f"{seeds} {'seed waits' if seeds == 1 else 'seeds wait'} for a worker."
        return ("running" if done else "queued"), left
    if unscored:
        return "not_scored", unscored
    cancelled = any(run.state == "cancelled" for run in open_runs)
    if done:
        rest = "the others were cancelled" if cancelled else "no other is queued"
        return "preliminary", f"{len(done)} of {track.seeds_required} seeds; {rest}."
    return "not_run", "Cancelled before it was finished." if cancelled else "Required by the track, not run yet."


def _why_not_scored(task: str, open_runs: Sequence[RunFact]) -> str | None:
    """Of a task of programs: why answers that are stored have no score and will get none by themselves."""
    answered = {run.seed for run in open_runs if run.kind == "evaluate" and run.state == "succeeded"}
    if not answered or not holds_programs(task):
        return None
    scoring = [run for run in open_runs if run.kind == "score" and run.seed in answered]
    if any(run.state not in FINISHED for run in scoring):
        return None
    said = next((run.sentence for run in scoring if run.state == "failed" and run.sentence), None)
    return said or "The answers are stored; nobody has run the programs in them."


def _at_work(run: RunFact) -> str:
    verb = {"train": "is training", "evaluate": "is being evaluated", "score": "is being scored"}.get(
        run.kind, "is at work"
    )
    progress = f", {run.step} of {run.of}" if run.step is not None and run.of else ""
    return f"Seed {run.seed} {verb}{progress}."


# --- rows -----------------------------------------------------------------------------------------------------------


def _row(track: Track, facts: BoardFacts, entry: EntryFacts, reference: EntryFacts | None) -> Row:
    cells = {column.task: _cell(track, facts, entry, reference, column.task) for column in track.tasks}
    ranked = [column.task for column in track.tasks if column.role == "ranked"]
    is_complete = all(cells[task].state == "measured" for task in ranked)
    gain = _mean_gain(track, entry, reference, ranked, "solved", "greedy")
    reward_gain = _mean_gain(track, entry, reference, ranked, "reward", "sampled")
    counts = is_complete and gain is not None and gain.seeds >= track.seeds_required
    is_compared = entry.kind != "reference" and not counts
    withheld = entry.anonymous and not entry.built_in
    kind = families()[facts.family].kind if facts.family in families() else "masked"
    return Row(
        entry_id=entry.id,
        name=entry.name,
        algorithm="withheld" if withheld else entry.algorithm,
        kind=entry.kind,
        built_in=entry.built_in,
        extension=entry.built_in and entry.kind == "method" and kind not in _published_for(entry.algorithm),
        status=entry.status,
        cells=cells,
        gain=gain if counts else None,
        reward_gain=reward_gain if counts else None,
        rank=None,
        cost=_cost(track, entry),
        seeds=min((cells[task].seeds_done for task in ranked), default=0),
        tries=sum(_is_try_of(entry, other) for other in facts.entries if other.gate != "rejected"),
        submitted_at=entry.submitted_at,
        class_name=None if withheld else entry.class_name,
        preliminary_gain=gain if is_compared else None,
        preliminary_reward_gain=reward_gain if is_compared else None,
    )


def _is_try_of(entry: EntryFacts, other: EntryFacts) -> bool:
    """Whether both are tries of one algorithm. Nothing leads from an anonymous try to a public one."""
    if other.id == entry.id:
        return True
    if other.algorithm != entry.algorithm or other.private:
        return False
    return entry.built_in or entry.private or other.anonymous == entry.anonymous


def _mean_gain(
    track: Track, entry: EntryFacts, reference: EntryFacts | None, tasks: Sequence[str], metric: str, decoding: str
) -> Estimate | None:
    """Mean over tasks of the differences to the reference, seed by seed; None unless every task has the same seeds."""
    if reference is None:
        return None
    per_task = [
        statistics.differences(
            by_seed(track, entry, task, metric, decoding), by_seed(track, reference, task, metric, decoding)
        )
        for task in tasks
    ]
    seeds = set.intersection(*(set(gains) for gains in per_task)) if per_task else set()
    if not seeds:
        return None
    return statistics.mean_interval([sum(gains[seed] for gains in per_task) / len(tasks) for seed in sorted(seeds)])


def _seed_means(track: Track, entry: EntryFacts) -> list[float]:
    """Headline score per seed, averaged over the ranked tasks."""
    per_task = [
        by_seed(track, entry, column.task, "solved", "greedy") for column in track.tasks if column.role == "ranked"
    ]
    seeds = set.intersection(*(set(values) for values in per_task)) if per_task else set()
    return [sum(values[seed] for values in per_task) / len(per_task) for seed in sorted(seeds)]


def _cost(track: Track, entry: EntryFacts) -> Cost | None:
    if not entry.spent:
        return None
    count = len(entry.spent)
    hardware = sorted({spent.hardware for spent in entry.spent})
    return Cost(
        train_device_seconds=sum(spent.device_seconds for spent in entry.spent) / count,
        gradient_forwards=sum(spent.gradient_forwards for spent in entry.spent) / count,
        optimiser_steps=sum(spent.optimiser_steps for spent in entry.spent) / count,
        device="cpu" if track.device == "cpu" else " / ".join(hardware),
    )


def _ranked(rows: Sequence[Row], seeds: Mapping[str, Sequence[float]]) -> list[Row]:
    """Rows with their rank ranges, in the board's order."""
    candidates = [row for row in rows if row.kind == "method" and row.gain is not None]
    ranges = statistics.rank_ranges({row.entry_id: seeds[row.entry_id] for row in candidates})
    return sorted((replace(row, rank=ranges.get(row.entry_id)) for row in rows), key=_place)


def _place(row: Row) -> tuple[float, float, float, int, str]:
    """Reference, then baselines and controls by gain, methods by gain, and the unranked by how much they have."""
    group = 0.0 if row.kind == "reference" else 1.0 if row.kind in ("baseline", "control") else 2.0
    if row.gain is None and row.kind != "reference":
        measured = sum(cell.state == "measured" for cell in row.cells.values())
        seeds = sum(cell.seeds_done for cell in row.cells.values())
        return (group + 0.5 if group == 2 else group, 1.0, -measured, -seeds, row.name)
    return (group, 0.0, -row.gain.value if row.gain else 0.0, 0, row.name)


def _lead(rows: Sequence[Row], seeds: Mapping[str, Sequence[float]]) -> tuple[float, float] | None:
    """The 95 % interval of the difference between the first two ranked entries."""
    first = [row.entry_id for row in rows if row.rank is not None][:2]
    if len(first) < 2 or min(len(seeds[entry]) for entry in first) < 2:
        return None
    return statistics.difference_interval(seeds[first[0]], seeds[first[1]])
