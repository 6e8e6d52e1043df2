"""What the pages and the CLI are shown, as plain frozen data. Times are epoch seconds of the database's clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dare.spec import ItemStatus
from dare_platform.board import RowKind
from dare_platform.entry_settings import SettingView
from dare_platform.entry_status import EntryStatus
from dare_platform.models import State, Visibility, WorkKind

StageState = Literal["done", "active", "waiting", "failed"]


@dataclass(frozen=True)
class Stage:
    """One stop of a run: check, prepare, train or evaluate, finish."""

    name: str
    state: StageState


@dataclass(frozen=True)
class Point:
    """One value of one metric. `value` is None where the number was not finite: a gap in the line."""

    step: int
    device_seconds: float
    value: float | None


@dataclass(frozen=True)
class Series:
    """One metric of one run, in order of steps."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class SampleView:
    """The newest sample rollout: its text by token, and in which denoising step each token was committed."""

    prompt: str
    tokens: tuple[str, ...]
    step_map: tuple[int, ...]
    reward: float
    step: int | None


@dataclass(frozen=True)
class Alarm:
    """An alarm that the runner raised."""

    step: int | None
    name: str
    sentence: str


@dataclass(frozen=True)
class Ending:
    """How a run ended that did not succeed: its cause, one sentence, one next step, and who pays."""

    cause: str
    sentence: str
    next_step: str
    charged: bool
    """True: counts against the one who submitted. False: ours, nothing is charged."""


@dataclass(frozen=True)
class WorkerView:
    """A worker process, alive while its last sign of life is younger than the silence limit."""

    id: str
    name: str
    state: str
    queues: tuple[str, ...]
    """What it takes: families for run queues."""
    device: str
    hardware: str
    last_seen_seconds: float
    """Seconds since its last sign of life."""
    alive: bool
    run_id: str | None
    """What it works on; an empty text where that is private."""


@dataclass(frozen=True)
class QueuePlace:
    """Where a waiting run stands. `at_most_seconds` is None when no worker could take it."""

    position: int
    of: int
    waits_for: str
    """The queue or, for a blocked run, the run it waits for."""
    since_seconds: float
    at_most_seconds: float | None
    workers_alive: int
    sentence: str
    """Ready to print, Markdown."""


@dataclass(frozen=True)
class ScoreView:
    """One task's number of one evaluation run, as stored."""

    task: str
    metric: str
    decoding: Literal["greedy", "sampled"]
    value: float
    standard_error: float | None
    n: int
    """Items: what is independent, and what the error is taken over."""
    completions: int
    """Completions behind them: one an item when greedy, as many as the protocol asks when sampled."""
    n_no_answer: int
    """Of the completions."""
    n_truncated: int
    scorer: str
    protocol: str
    low: float | None = None
    """Bounds of the 95 % interval over items; None where one item says nothing about others."""
    high: float | None = None
    n_undecoded: int = 0
    """Mask tokens are left in the text: the decoder failed."""
    n_error: int = 0
    """The scorer failed; in neither `value` nor `n`."""
    scored_by: str | None = None
    """The score run that gave it; None where the evaluation or `dare rescore` did."""


@dataclass(frozen=True)
class NotScored:
    """A task whose answers are stored and have no number: never zero. `run_id` is of the run that shall score them."""

    task: str
    sentence: str
    run_id: str | None


@dataclass(frozen=True)
class Word:
    """What one scorer says of one answer."""

    solved: bool
    status: ItemStatus
    answer: str | None
    """What it has read out of the text."""


@dataclass(frozen=True)
class MovedAnswer:
    """An answer that two scorers judge apart."""

    item: str
    sample: int
    a: Word
    b: Word
    output: str
    """The text as it was stored."""


@dataclass(frozen=True)
class ScorerDifference:
    """Two scorers over the answers to one task that both have judged."""

    task: str
    a: str
    b: str
    answers: int
    equal: int
    only_a: int
    """Solved by the word of `a` alone."""
    only_b: int
    failed: int
    """One of the two failed on it, so that nothing can be compared."""
    moved: tuple[MovedAnswer, ...]


@dataclass(frozen=True)
class UsageView:
    """What a run cost, summed over its attempts where `attempts` says so."""

    prepare_seconds: float
    train_seconds: float
    evaluate_seconds: float
    overhead_seconds: float
    device_seconds: float
    optimiser_steps: int
    gradient_forwards: float
    forwards: float
    tokens_decoded: int
    tokens_kept: int
    energy_joules: float | None


@dataclass(frozen=True)
class EventView:
    """One line of a run's history: a change of its state or a note of the worker."""

    at: float
    actor: str
    """A worker by its name, another run by what it is."""
    kind: str
    sentence: str
    run_id: str
    run: str
    """`train · llada-tiny · seed 0`."""


@dataclass(frozen=True)
class ArtifactView:
    """A file that a run left behind."""

    path: str
    sha256: str
    bytes: int
    kept: bool
    purged_at: float | None = None
    """When retention removed it; the record stays."""


@dataclass(frozen=True)
class RunSummary:
    """One run in a list or in the matrix backbone x seed of an entry."""

    id: str
    entry_id: str
    entry_name: str
    algorithm: str
    kind: WorkKind
    backbone: str
    seed: int
    state: State
    cause: str | None
    attempts: int
    max_attempts: int
    step: int | None
    of: int | None
    created_at: float
    finished_at: float | None
    queue: str
    worker: str | None
    sentence: str
    """The state in words: `training 184 of 300`, `waiting`, `diverged`."""


@dataclass(frozen=True)
class RunView:
    """Everything that the page of one run shows."""

    summary: RunSummary
    headline: str
    """Markdown: bold finding, then the doubt or the next step."""
    stages: tuple[Stage, ...]
    progress: float | None
    """Share of steps or items done, 0 to 1."""
    time_left: str | None
    """`about 40 min`; None before ten steps, and after the end."""
    is_active: bool
    is_finished: bool
    place: QueuePlace | None
    worker: str | None
    last_sign_seconds: float | None
    """Seconds since the worker's last heartbeat of this run."""
    isolation: str | None
    """`Isolation of this run: ...`; None before a worker took it."""
    ending: Ending | None
    metrics: tuple[Series, ...]
    alarms: tuple[Alarm, ...]
    sample: SampleView | None
    log_tail: tuple[str, ...]
    log_bytes: int
    scores: tuple[ScoreView, ...]
    """Of an evaluation, by every scorer; of a score run, those that it gave."""
    not_scored: tuple[NotScored, ...]
    differences: tuple[ScorerDifference, ...]
    """The headline's scorer beside every other one, with the first moved answers."""
    usage: UsageView | None
    artifacts: tuple[ArtifactView, ...]
    provenance: tuple[tuple[str, str], ...]
    history: tuple[EventView, ...]
    job_json: str
    job_sha256: str
    self_reported: bool
    """Curves and rewards were written by the training container itself."""
    rerun_command: str
    can_cancel: bool
    can_retry: bool
    may_act: bool
    """Whoever looks may do so: it is theirs, or they operate this place."""
    withheld: bool
    """Log and order are not shown: an anonymous entry, and somebody else looks."""


@dataclass(frozen=True)
class EntrySummary:
    """One entry in a list."""

    id: str
    name: str
    algorithm: str
    kind: RowKind
    built_in: bool
    track: str
    """`tiny 1.0`."""
    backbones: tuple[str, ...]
    status: EntryStatus
    sentence: str
    runs_done: int
    runs_total: int
    try_number: int
    submitted_at: float
    code_sha256: str | None
    visibility: Visibility
    author: str | None
    """Handle of who sent it in; None where that is withheld, and where there is only one person."""


@dataclass(frozen=True)
class CellRuns:
    """The runs of one backbone and seed, in the order they are worked off."""

    backbone: str
    seed: int
    runs: tuple[RunSummary, ...]


@dataclass(frozen=True)
class EntryView:
    """Everything that the page of one entry shows."""

    summary: EntrySummary
    headline: str
    """Markdown: `**Complete.** 6 of 6 runs succeeded.`"""
    summary_sentence: str
    """The first sentence of the class, or of the module: what differs and from what."""
    class_name: str | None
    base: str | None
    settings: tuple[SettingView, ...]
    """Those that differ from the default first."""
    source: str | None
    settings_text: str
    overridden: tuple[str, ...]
    cells: tuple[CellRuns, ...]
    check: RunSummary | None
    ending: Ending | None
    """The most common failure among its runs, when something failed."""
    place: QueuePlace | None
    """Of its first waiting run."""
    tries: int
    """Entries of this algorithm on this track, withdrawn ones included."""
    others: tuple[EntrySummary, ...]
    """Other entries of the same algorithm, newest first."""
    withdrawn_at: float | None
    withdrawn_reason: str | None
    rerun_command: str
    digest: str
    history: tuple[EventView, ...]
    can_cancel: bool
    can_retry: bool
    may_act: bool
    """Whoever looks may do so: it is theirs, or they operate this place."""
    withheld: bool
    """Code, settings and logs are not shown: an anonymous entry, and somebody else looks."""


@dataclass(frozen=True)
class WaitingRun:
    """One row of the queue page."""

    position: int
    run: RunSummary
    waits_for: str
    since_seconds: float
    at_most_seconds: float | None


@dataclass(frozen=True)
class QueueView:
    """The queue page at one moment."""

    headline: str
    running: tuple[RunSummary, ...]
    waiting: tuple[WaitingRun, ...]
    blocked: int
    workers: tuple[WorkerView, ...]
    workers_alive: int
    oldest_wait_seconds: float | None
    at: float


@dataclass(frozen=True)
class SeedCurve:
    """One metric of one training run."""

    entry_id: str
    entry_name: str
    run_id: str
    seed: int
    points: tuple[Point, ...]
    alarms: tuple[Alarm, ...]


@dataclass(frozen=True)
class CurvesView:
    """One metric of several entries on one backbone, and which metrics there are to choose from."""

    metric: str
    backbone: str
    curves: tuple[SeedCurve, ...]
    metrics: tuple[str, ...]
    """Names that at least one of these runs logged."""
    without: tuple[str, ...]
    """Entries that did not log this metric."""
