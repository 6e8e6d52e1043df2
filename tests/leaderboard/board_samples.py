"""Boards, entries and runs made by hand, one for each thing that a page must be able to show. Numbers are invented."""

from __future__ import annotations

from dataclasses import replace

from dare_platform.board import Board, Cell, CellState, Column, Cost, Estimate, Row
from dare_platform.views import (
    Alarm,
    Ending,
    EventView,
    Point,
    RunSummary,
    RunView,
    SampleView,
    Series,
    Stage,
)
from leaderboard.links import BoardChoices, BoardView, sorts_of

SUDOKU = Column("sudoku", "Sudoku 4x4", "ranked", 256, 0.004)
COUNTDOWN = Column("countdown", "Countdown", "shown", 256, 0.021)
PUBLISHED = Column("sudoku_published", "Sudoku, published", "transfer", 1319, 0.0)
COLUMNS = (SUDOKU, COUNTDOWN, PUBLISHED)
NOT_ASKED = Cell("not_asked")


def measured(
    greedy: float, half: float | None = 0.02, *, untouched: float = 0.119, sampled: float | None = None, seeds: int = 3
) -> Cell:
    """A finished cell whose gain has the same width as its score."""
    gain = Estimate(greedy - untouched, half, seeds)
    return Cell(
        "measured",
        greedy=Estimate(greedy, half, seeds),
        sampled=None if sampled is None else Estimate(sampled, half, seeds),
        gain=gain,
        significant=half is not None and abs(gain.value) > half,
        seeds_done=seeds,
        seeds_required=3,
        items=256,
    )


def preliminary(
    greedy: float,
    seeds: int = 1,
    *,
    untouched: float = 0.119,
    sampled: float | None = None,
    state: CellState = "preliminary",
) -> Cell:
    """A cell with fewer seeds than the three that are required."""
    half = None if seeds == 1 else 0.05
    return Cell(
        state,
        greedy=Estimate(greedy, half, seeds),
        sampled=None if sampled is None else Estimate(sampled, half, seeds),
        gain=Estimate(greedy - untouched, half, seeds),
        seeds_done=seeds,
        seeds_required=3,
        items=256,
        detail="Seed 2 is training." if state == "running" else f"{seeds} of 3 seeds; no other is queued.",
    )


REFERENCE = Row(
    entry_id="e_ref", name="untouched", algorithm="untouched", kind="reference", built_in=True, extension=False,
    status="complete", seeds=3, tries=1, submitted_at=1000.0, gain=None, reward_gain=None, rank=None, cost=None,
    cells={
        "sudoku": measured(0.119, 0.0, sampled=0.41), "countdown": measured(0.03, 0.0), "sudoku_published": NOT_ASKED,
    },
)  # fmt: skip


def method(
    name: str,
    sudoku: Cell,
    countdown: Cell = NOT_ASKED,
    *,
    rank: tuple[int, int] | None = None,
    seconds: float | None = 420.0,
) -> Row:
    """A method whose mean gain is that of its one ranked task."""
    sampled = sudoku.sampled
    return Row(
        entry_id=f"e_{name.lower()}", name=name, algorithm=name.lower(), kind="method", built_in=True, extension=False,
        status="complete" if sudoku.state == "measured" else "partial",
        cells={"sudoku": sudoku, "countdown": countdown, "sudoku_published": NOT_ASKED},
        gain=sudoku.gain, reward_gain=None if sampled is None else replace(sampled, value=sampled.value - 0.41),
        rank=rank, cost=None if seconds is None else Cost(seconds, 64.0, 400.0, "cpu"),
        seeds=3, tries=1, submitted_at=2000.0,
    )  # fmt: skip


BGPO = method("BGPO", measured(0.394, 0.038, sampled=0.621), measured(0.052), rank=(1, 2))
D1 = replace(method("d1", measured(0.36, 0.031, sampled=0.602), rank=(1, 2)), extension=True, tries=2)
ESPO = method("ESPO", measured(0.066, 0.024, sampled=0.35), rank=(3, 3))
SHUFFLED = replace(method("shuffled-d1", measured(0.124, 0.012, sampled=0.418)), kind="control")
SFT = replace(method("sft", measured(0.201, 0.018, sampled=0.5)), kind="baseline")
RUNNING = replace(
    method("VRPO", Cell("running", seeds_done=2, seeds_required=3, detail="Seed 2 is training."), seconds=None),
    status="running",
)
FAILED = method(
    "tree-lite", Cell("failed", detail="Diverged at step 212: NaN in the loss. Counts as the floor of 0.0.")
)

EARLY = replace(
    method("SPG", preliminary(0.848, sampled=0.767), seconds=12.0), status="complete", gain=None, reward_gain=None,
    seeds=1, preliminary_gain=Estimate(0.729, None, 1), preliminary_reward_gain=Estimate(0.357, None, 1),
)  # fmt: skip
HALF = replace(
    EARLY, name="wd1", entry_id="e_wd1", status="running", seeds=2,
    cells={**EARLY.cells, "sudoku": preliminary(0.5, 2, sampled=0.6, state="running")},
    preliminary_gain=Estimate(0.381, 0.05, 2), preliminary_reward_gain=Estimate(0.19, 0.05, 2),
)  # fmt: skip


def board(*rows: Row, columns: tuple[Column, ...] = COLUMNS, **changes: object) -> Board:
    """A board of the tiny track with the untouched backbone and these rows."""
    made = Board(
        track="tiny", version="1.0", backbone="llada-tiny", family="llada", columns=columns, rows=(REFERENCE, *rows),
        verdict="**This board shows that the pipeline works. It does not rank methods.** A rise of the reward over the "
        "shuffled-advantage control is the only claim.",
        made_at=1_790_000_000.0, digest="9f3c01ab" * 8, scorer="dare-1", entries=len(rows), tries=len(rows) + 1,
        withdrawn=0, running=2, device="cpu",
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


FULL = board(SFT, SHUFFLED, BGPO, D1, ESPO, FAILED, RUNNING)
CHOICES = BoardChoices(("llada-tiny", "sdar-tiny"), ("tiny",), sorts_of(FULL))
VIEW = BoardView("llada-tiny", "tiny")


def run_summary(**changes: object) -> RunSummary:
    """A training run at step 184 of 400."""
    made = RunSummary(
        id="r_88c1", entry_id="e_bgpo", entry_name="BGPO", algorithm="bgpo", kind="train", backbone="llada-tiny",
        seed=1, state="working", cause=None, attempts=1, max_attempts=3, step=184, of=400, created_at=1_790_000_000.0,
        finished_at=None, queue="family_llada", worker="laptop-1", sentence="training 184 of 400",
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


SAMPLE = SampleView(
    prompt="S1020304000300100",
    tokens=tuple("1423314242132341"),
    step_map=(1, 3, 2, 4) * 4,
    reward=0.75,
    step=180,
)


EVENT = EventView(
    1_790_000_000.0, "worker laptop-1", "state", "queued to leased", "r_88c1", "train · llada-tiny · seed 1"
)


def run_view(**changes: object) -> RunView:
    """The page of that run."""
    rewards = tuple(Point(step, step / 2, 0.4 + 0.2 * step / 184 if step != 90 else None) for step in range(1, 185))
    drift = tuple(Point(step, step / 2, 0.001 * step) for step in range(1, 185))
    made = RunView(
        summary=run_summary(), headline="**Training, step 184 of 400.** Reward 0.40 to 0.60.",
        stages=(Stage("prepare", "done"), Stage("train", "active"), Stage("finish", "waiting")),
        progress=0.46, time_left="about 2 min", is_active=True, is_finished=False, place=None, worker="laptop-1",
        last_sign_seconds=4.0, isolation="Isolation of this run: process sandbox (laptop), no file isolation.",
        ending=None, metrics=(Series("kl", drift), Series("reward", rewards), Series("log_ratio_abs", drift)),
        alarms=(Alarm(90, "nan", "The reward was not a finite number."),), sample=SAMPLE,
        log_tail=("step 183", "step 184 <b>not bold</b>", "\x1b[31mred\x1b[0m"), log_bytes=60, scores=(), not_scored=(),
        differences=(), usage=None,
        artifacts=(), provenance=(("python", "3.11"), ("torch", "2.13.0")),
        history=(EVENT,),
        job_json='{"kind": "train"}', job_sha256="ab" * 32, self_reported=True,
        rerun_command="dare reproduce r_88c1", can_cancel=True, can_retry=False, may_act=True,
        withheld=False,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


ENDING = Ending("diverged", "Training diverged at step 212.", "Look at the curves before the alarm.", charged=True)
