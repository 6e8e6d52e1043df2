"""What pages and the CLI are shown: each state of a run and an entry, in words and in data; on a real database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from played import built_in, given, isolation, register, steps, succeed, take, tiny, upload, work_off, worker
from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from dare_platform import checks, endings, entries, rankings, views
from dare_platform.database import Database, now
from dare_platform.lease import Claim
from dare_platform.models import Entry, MetricPoint, Run, Worker
from dare_platform.uploads import read_builtin
from dare_platform.viewer import LOCAL
from dare_platform.views.curves import thinned
from dare_platform.views.shapes import Point
from dare_platform.views.words import about, duration, log_lines, seconds_left


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with database.write() as opened:
        register(opened)
        yield opened


def submit(session: Session, name: str = "bgpo", settings: str | None = None, *backbones: str) -> str:
    return entries.submit(session, LOCAL, built_in(name, settings, *backbones), f"key-{name}-{settings}").entry_id


def taken(session: Session) -> Claim:
    claimed = take(session)
    assert claimed is not None
    return claimed


def run_view(session: Session, run: str) -> views.RunView:
    session.expire_all()
    view = views.run_view(session, run, viewer=LOCAL)
    assert view is not None
    return view


def entry_view(session: Session, entry: str) -> views.EntryView:
    session.expire_all()
    view = views.entry_view(session, entry, viewer=LOCAL)
    assert view is not None
    return view


def run_of(session: Session, kind: str, seed: int = 0) -> str:
    return session.execute(select(Run.id).where(Run.kind == kind, Run.seed == seed)).scalar_one()


def states(view: views.RunView) -> str:
    return " ".join(f"{stage.name}:{stage.state}" for stage in view.stages)


# --- a run ----------------------------------------------------------------------------------------------------------


def test_an_unknown_id_is_none(session: Session) -> None:
    assert views.run_view(session, "nosuch") is None
    assert views.entry_view(session, "nosuch") is None
    assert views.runs_list(session, "nosuch") == ()
    assert views.entries_list(session) == ()


def test_a_waiting_run_without_a_worker(session: Session) -> None:
    submit(session)
    view = run_view(session, run_of(session, "train", 0))
    assert view.headline == (
        "**Waiting for a worker for llada.** None is alive. Nothing is lost; it starts when one comes."
    )
    assert view.place is not None
    assert (view.place.position, view.place.of, view.place.at_most_seconds) == (1, 3, None)
    assert states(view) == "prepare:waiting train:waiting finish:waiting"
    assert (view.is_active, view.is_finished, view.can_cancel, view.can_retry) == (False, False, True, False)
    assert (view.time_left, view.isolation, view.worker) == (None, None, None)


def test_a_waiting_run_behind_others(session: Session) -> None:
    submit(session)
    worker(session)
    view = run_view(session, run_of(session, "train", 2))
    assert view.headline == (
        "**Waiting: position 3 of 3 in family_llada.** At most 20 min ahead. 1 worker alive, last seen 0 s ago."
    )


def test_a_blocked_run_says_for_what_it_waits(session: Session) -> None:
    submit(session)
    train = run_of(session, "train", 1)
    view = run_view(session, run_of(session, "evaluate", 1))
    assert view.headline == f"**Waiting for its training run.** It starts when run `{train}` has succeeded."
    assert states(view) == "train:waiting prepare:waiting evaluate:waiting finish:waiting"


def test_a_working_run_shows_progress_curves_alarm_sample_and_log(session: Session) -> None:
    submit(session)
    claimed = taken(session)
    isolation(session, claimed, "The run could write only into its own directory.")
    steps(session, claimed, 12)
    view = run_view(session, claimed.run_id)
    assert view.headline == "**Training 12 of 32.** About 20 s left."  # 20 steps of one second
    assert view.time_left == "about 20 s"
    assert view.progress == pytest.approx(12 / 32)
    assert states(view) == "prepare:done train:active finish:waiting"
    assert [series.name for series in view.metrics] == ["kl", "reward"]
    assert view.metrics[1].points[-1] == Point(12, 12.0, pytest.approx(0.32))
    assert [(alarm.name, alarm.step) for alarm in view.alarms] == [("collapse", 12)]
    assert view.sample is not None
    assert (view.sample.tokens, view.sample.step_map, view.sample.step) == (("1", "2"), (2, 1), 12)
    assert view.log_tail[:2] == ("loading", "step 1")
    assert len(view.log_tail[2]) == 2000
    assert view.isolation == "Isolation of this run: The run could write only into its own directory."
    assert view.worker == "w1"
    assert view.self_reported
    assert view.rerun_command == f"dare reproduce {claimed.run_id}"
    assert dict(view.provenance)["hardware"] == "a processor"


def test_time_left_needs_ten_steps(session: Session) -> None:
    submit(session)
    claimed = taken(session)
    steps(session, claimed, 9)
    assert run_view(session, claimed.run_id).time_left is None


def test_a_silent_worker_is_said(session: Session) -> None:
    submit(session)
    claimed = taken(session)
    session.execute(update(Worker).values(last_seen_at=now(session) - 50))
    view = run_view(session, claimed.run_id)
    assert view.headline.startswith("**No sign from the worker for 50 s.** If it stays silent we restart the run")
    assert view.last_sign_seconds == pytest.approx(50, abs=2)


def test_a_finished_run_shows_scores_usage_and_how_its_reward_rose(session: Session) -> None:
    submit(session)
    claimed = taken(session)
    steps(session, claimed, 12)
    succeed(session, claimed, lambda run, task: 0.5)
    view = run_view(session, claimed.run_id)
    assert view.headline == "**Finished in 0 s.** Reward 0.21 → 0.32. All done."
    session.execute(update(Run).where(Run.id == claimed.run_id).values(sentence="Trained. Reward 0.20 → 0.30."))
    assert run_view(session, claimed.run_id).headline == "**Finished in 0 s.** Trained. Reward 0.20 → 0.30."
    assert states(view) == "prepare:done train:done finish:done"
    assert view.usage is not None
    assert view.usage.device_seconds == 8.0
    assert (view.is_finished, view.can_cancel, view.can_retry) == (True, False, False)
    assert view.history[-1].sentence == "finalizing → succeeded"
    work_off(session, {"bgpo": 0.5})
    evaluated = run_view(session, run_of(session, "evaluate", 0))
    assert [(s.task, s.metric, s.decoding, s.value) for s in evaluated.scores][:3] == [
        ("countdown", "solved", "greedy", 0.5),
        ("countdown", "solved", "sampled", 0.5),
        ("countdown", "reward", "sampled", 0.5),
    ]
    sudoku = [score for score in evaluated.scores if score.task == "sudoku"]
    assert {(s.decoding, s.completions // s.n) for s in sudoku} == {("greedy", 1), ("sampled", 2)}
    assert states(evaluated) == "train:done prepare:done evaluate:done finish:done"
    assert not evaluated.self_reported


def test_a_failed_run_says_why_who_pays_and_what_to_do(session: Session) -> None:
    submit(session)
    claimed = taken(session)
    steps(session, claimed, 3)
    endings.fail(session, claimed.run_id, "diverged", "NaN in the loss at step 3.", actor="w", token=claimed.token)
    view = run_view(session, claimed.run_id)
    assert view.ending is not None
    assert (view.ending.cause, view.ending.charged) == ("diverged", True)
    assert view.headline.startswith("**NaN in the loss at step 3.** It is charged. Look at the curves")
    assert states(view) == "prepare:done train:failed finish:waiting"
    assert view.can_retry
    behind = run_view(session, run_of(session, "evaluate", claimed.job.seed))
    assert behind.ending is not None
    assert (behind.ending.cause, behind.ending.charged) == ("dependency", False)


def test_a_lost_run_waits_for_its_next_attempt(session: Session) -> None:
    submit(session)
    claimed = taken(session)
    endings.fail(session, claimed.run_id, "lost_worker", actor="reaper", token=claimed.token, outcome="lost")
    view = run_view(session, claimed.run_id)
    assert view.headline.endswith(
        "Attempt 1 failed: The worker stopped answering while it held the run. Nothing is charged."
    )
    assert view.summary.sentence == "waits for a new attempt"
    assert view.ending is None


def test_a_cancelled_run_says_where_it_was(session: Session) -> None:
    submit(session)
    claimed = taken(session)
    steps(session, claimed, 3)
    entries.cancel(session, LOCAL, claimed.run_id)
    assert run_view(session, claimed.run_id).headline == "**Stopping.** Its worker has been asked to end it."
    endings.end_cancelled(session, claimed.run_id, claimed.token, claimed.actor)
    assert run_view(session, claimed.run_id).headline == "**Cancelled at step 3.** Nothing more will be done."


def test_a_later_attempt_replaces_the_steps_that_it_repeats(session: Session) -> None:
    submit(session)
    first = taken(session)
    steps(session, first, 5)
    endings.fail(session, first.run_id, "lost_worker", actor="reaper", token=first.token, outcome="lost")
    session.execute(update(Run).where(Run.id == first.run_id).values(not_before=0.0, priority=9))
    second = taken(session)
    assert second.run_id == first.run_id
    session.add(
        MetricPoint(run_id=first.run_id, token=second.token, name="reward", step=4, value=0.9, device_seconds=1.0)
    )
    session.flush()
    reward = next(series for series in run_view(session, first.run_id).metrics if series.name == "reward")
    assert [point.step for point in reward.points] == [1, 2, 3, 4, 5]
    assert reward.points[3].value == 0.9
    curve = views.curves(session, [view.summary.entry_id for view in [run_view(session, first.run_id)]], "llada-tiny",
                         "reward").curves[0]  # fmt: skip
    assert curve.points == reward.points


def test_of_each_step_the_highest_token_wins_in_whatever_order_they_were_written(session: Session) -> None:
    submit(session)
    claimed = taken(session)
    tokens = [claimed.token]
    for _ in range(2):
        endings.fail(session, claimed.run_id, "lost_worker", actor="reaper", token=claimed.token, outcome="lost")
        session.execute(update(Run).where(Run.id == claimed.run_id).values(not_before=0.0, priority=9))
        claimed = taken(session)
        tokens.append(claimed.token)
    assert tokens == sorted(tokens)
    for attempt, repeated in ((1, (1, 2, 3, 4, 5)), (3, (3, 4)), (2, (2, 3, 4, 5))):
        for step in repeated:
            session.add(
                MetricPoint(
                    run_id=claimed.run_id,
                    token=tokens[attempt - 1],
                    name="m",
                    step=step,
                    value=attempt + step / 10,
                    device_seconds=1.0,
                )
            )
    session.flush()
    merged = next(series for series in run_view(session, claimed.run_id).metrics if series.name == "m")
    assert [(point.step, point.value) for point in merged.points] == [
        (1, 1.1), (2, 2.2), (3, 3.3), (4, 3.4), (5, 2.5),
    ]  # fmt: skip


def test_a_long_run_sends_at_most_400_points_a_line_and_curves_keep_them_all(session: Session) -> None:
    entry = submit(session)
    claimed = taken(session)
    session.execute(
        insert(MetricPoint),
        [
            {
                "run_id": claimed.run_id, "token": 1, "name": name, "step": step, "device_seconds": 1.0,
                "value": step % 7,
            }
            for name in ("reward", "kl")
            for step in range(1, 1501)
        ],
    )  # fmt: skip
    for series in run_view(session, claimed.run_id).metrics:
        assert 200 < len(series.points) <= 400
    assert len(views.curves(session, [entry], "llada-tiny", "reward").curves[0].points) == 1500


def test_a_history_names_the_run_and_the_worker(session: Session) -> None:
    entry = submit(session)
    claimed = taken(session)
    succeed(session, claimed, lambda run, task: 0.5)
    endings.release_dependants(session, claimed.run_id)
    history = entry_view(session, entry).history
    seed = claimed.job.seed
    leased = next(event for event in history if event.sentence == "queued → leased")
    assert (leased.actor, leased.run, leased.run_id) == (
        "worker w1",
        f"train · llada-tiny · seed {seed}",
        claimed.run_id,
    )
    released = next(event for event in history if event.sentence == "blocked → queued")
    assert (released.actor, released.run) == (f"end of training, seed {seed}", f"evaluate · llada-tiny · seed {seed}")


def test_a_failure_in_somebodys_words_stays_text(session: Session) -> None:
    submit(session)
    claimed = taken(session)
    said = "`loss` raised ValueError: [x](https://evil.example) **$y$**"
    endings.fail(session, claimed.run_id, "user_error", said, actor="w", token=claimed.token)
    headline = run_view(session, claimed.run_id).headline
    assert headline.startswith("**`loss` raised ValueError\\: \\[x\\]\\(")
    assert "://" not in headline


# --- an entry -------------------------------------------------------------------------------------------------------


def test_an_entry_shows_its_settings_cells_and_command(session: Session) -> None:
    entry = submit(session, "d1", "prompt_mask: 0.5\nclip_low: 1.0e-5\n", "llada-tiny", "sdar-tiny")
    view = entry_view(session, entry)
    assert view.headline == "**Waiting.** 0 of 12 runs done."
    assert [(s.name, s.default, s.value) for s in view.settings if s.changed] == [
        ("clip_low", 0.5, 1e-5),
        ("prompt_mask", 0.15, 0.5),
    ]
    assert view.settings_text == "clip_low: 1.0e-05\nprompt_mask: 0.5\n"
    assert [(cell.backbone, cell.seed, len(cell.runs)) for cell in view.cells] == [
        (backbone, seed, 2) for backbone in ("llada-tiny", "sdar-tiny") for seed in (0, 1, 2)
    ]
    assert view.class_name == "D1"
    assert view.summary_sentence.startswith("d1 (diffu-GRPO)")
    assert view.rerun_command == (
        "dare submit d1 --track tiny --backbone llada-tiny --backbone sdar-tiny "
        "--set clip_low=1e-05 --set prompt_mask=0.5"
    )
    assert view.place is not None


def test_the_reference_has_no_code(session: Session) -> None:
    view = entry_view(session, submit(session, "untouched"))
    assert (view.source, view.class_name, view.settings, view.summary.algorithm) == (None, None, (), "untouched")


def test_an_entry_through_its_life(session: Session) -> None:
    entry = submit(session)
    claimed = taken(session)
    assert entry_view(session, entry).headline == "**Running.** 1 of 6 runs at work, 0 done."
    endings.fail(session, claimed.run_id, "oom_gpu", actor="w", token=claimed.token)
    work_off(session)
    view = entry_view(session, entry)
    assert view.headline == "**4 of 6 runs succeeded.** Not ranked while others are missing."
    assert view.ending is not None
    assert view.ending.cause == "oom_gpu"
    assert view.can_retry
    entries.withdraw(session, LOCAL, entry, "wrong weights")
    view = entry_view(session, entry)
    assert view.headline == "**Withdrawn.** Results stay readable; they are not ranked."
    assert (view.withdrawn_reason, view.withdrawn_at is not None) == ("wrong weights", True)


def test_a_complete_entry_with_too_few_seeds_says_so(session: Session) -> None:
    few = given(read_builtin("bgpo", None, tiny(), ["llada-tiny"], seeds=(0,)))
    entry = entries.submit(session, LOCAL, few, "k").entry_id
    work_off(session)
    assert entry_view(session, entry).headline == (
        "**Complete.** 2 of 2 runs succeeded. Preliminary: 1 of the 3 seeds that a place on the board needs."
    )
    row = rankings.board(session, "tiny 1.0", "llada-tiny").rows[0]
    assert (row.class_name, row.status, row.cells["sudoku"].state) == ("BGPO", "complete", "preliminary")


def test_a_rejected_entry_says_what_failed(session: Session) -> None:
    entry = entries.submit(session, LOCAL, upload(), "k").entry_id
    claimed = taken(session)
    endings.fail(session, claimed.run_id, "user_error", "`gives_gradient` failed.", actor="w", token=claimed.token)
    checks.conclude_check(session, claimed.run_id, passed=False, message="`gives_gradient` failed.", log="")
    view = entry_view(session, entry)
    assert view.headline == "**Rejected before queuing, nothing is charged.** `gives_gradient` failed."
    assert view.check is not None
    assert view.check.id == claimed.run_id
    assert view.source is not None


def test_other_tries_are_beside_it(session: Session) -> None:
    first = submit(session, "bgpo", "mc_samples: 4\n")
    second = submit(session, "bgpo", "mc_samples: 8\n")
    view = entry_view(session, second)
    assert (view.tries, view.summary.try_number) == (2, 2)
    assert [other.id for other in view.others] == [first]


def test_lists_are_newest_first(session: Session) -> None:
    first, second = submit(session), submit(session, "d1")
    assert [entry.id for entry in views.entries_list(session, "tiny 1.0")] == [second, first]
    assert views.entries_list(session, "matched 1.0") == ()
    assert len(views.runs_list(session)) == 12
    assert len(views.runs_list(session, limit=5)) == 5
    assert {run.entry_id for run in views.runs_list(session, first)} == {first}


# --- queue and curves -----------------------------------------------------------------------------------------------


def test_the_queue_through_its_states(session: Session) -> None:
    assert views.queue_view(session).headline == "**Nothing is waiting.** No worker is alive."
    submit(session)
    assert views.queue_view(session).headline == (
        "**No worker is alive.** 3 runs wait and lose nothing. Start one: `dare worker`."
    )
    claimed = taken(session)
    queue = views.queue_view(session)
    assert queue.headline == "**1 running, 2 waiting, 3 behind them.** 1 worker is alive."
    assert [run.id for run in queue.running] == [claimed.run_id]
    assert [waiting.position for waiting in queue.waiting] == [1, 2]
    assert (queue.workers[0].run_id, queue.workers[0].alive) == (claimed.run_id, True)
    assert queue.workers[0].queues == ("family_llada", "family_sdar")
    succeed(session, claimed, lambda run, task: 0.5)
    work_off(session)
    assert views.queue_view(session).headline == "**Nothing is waiting.** 1 worker is alive."


def test_curves_say_who_did_not_log_a_metric(session: Session) -> None:
    first, second = submit(session), submit(session, "d1")
    claimed = taken(session)
    steps(session, claimed, 5)
    found = views.curves(session, [first, second], "llada-tiny", "reward")
    assert [(curve.entry_name, curve.seed, len(curve.points)) for curve in found.curves] == [
        ("bgpo", claimed.job.seed, 5)
    ]
    assert (found.metrics, found.without) == (("kl", "reward"), (second,))
    assert len(found.curves[0].alarms) == 1
    assert views.curves(session, [first], "sdar-tiny", "reward").curves == ()


def test_thinning_keeps_the_extremes() -> None:
    points = [Point(step, 0.0, 1.0 if step == 777 else -1.0 if step == 1234 else 0.0) for step in range(3000)]
    points[2000] = Point(2000, 0.0, None)
    kept = thinned(points)
    assert len(kept) <= 400
    assert {777, 1234, 2000} <= {point.step for point in kept}
    assert [point.step for point in kept] == sorted(point.step for point in kept)


# --- the board from the database ------------------------------------------------------------------------------------


def test_a_board_from_real_rows(session: Session) -> None:
    for name in ("untouched", "bgpo", "d1", "sft"):
        submit(session, name)
    work_off(session, {"untouched": 0.2, "bgpo": 0.6, "d1": 0.4, "sft": 0.3})
    board = rankings.board(session, "tiny 1.0", "llada-tiny")
    assert [(row.name, row.kind, row.rank, row.status) for row in board.rows] == [
        ("untouched", "reference", None, "complete"),
        ("sft", "baseline", None, "complete"),
        ("bgpo", "method", (1, 1), "complete"),
        ("d1", "method", (2, 2), "complete"),
    ]
    first = board.rows[2]
    assert first.gain is not None
    assert first.gain.value == pytest.approx(0.4)
    assert first.cost is not None
    assert first.cost.train_device_seconds == 8.0
    assert [column.task for column in board.columns if column.items] == ["sudoku", "countdown"]
    assert first.cells["sudoku_published"].state == "not_asked"
    assert (board.family, board.device, board.entries) == ("llada", "cpu", 3)
    assert board.digest == rankings.board(session, "tiny 1.0", "llada-tiny").digest
    assert rankings.board(session, "tiny 1.0", "sdar-tiny").rows == ()


def test_a_board_follows_withdrawals(session: Session) -> None:
    submit(session, "untouched")
    old = submit(session, "bgpo", "mc_samples: 4\n")
    new = submit(session, "bgpo", "mc_samples: 8\n")
    work_off(session)
    assert [row.entry_id for row in rankings.board(session, "tiny 1.0", "llada-tiny").rows][1:] == [new]
    entries.withdraw(session, LOCAL, new)
    session.expire_all()
    board = rankings.board(session, "tiny 1.0", "llada-tiny")
    assert [row.entry_id for row in board.rows][1:] == [old]
    assert (board.tries, board.withdrawn) == (2, 1)


def test_views_read_only(database: Database) -> None:
    with database.write() as session:
        register(session)
        entry = submit(session)
        run = session.execute(select(Run.id)).scalars().first()
    with database.read() as session:
        assert views.entry_view(session, entry) is not None
        assert views.run_view(session, str(run)) is not None
        views.queue_view(session)
        rankings.board(session, "tiny 1.0", "llada-tiny")


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (3, "a few s"),
        (31, "about 40 s"),
        (70, "about 2 min"),
        (2300, "about 40 min"),
        (4100, "about 1 h 10 min"),
        (53000, "about 15 h"),
    ],
)
def test_time_left_is_rounded_up_and_coarse(seconds: float, said: str) -> None:
    assert about(seconds) == said


def test_durations() -> None:
    assert [duration(s) for s in (40, 720, 4200, 11100, 200_000)] == [
        "40 s", "12 min", "1 h 10 min", "3 h 05 min", "2 days",
    ]  # fmt: skip


def test_time_left_follows_the_budget_that_ends_first() -> None:
    clock = [float(step) for step in range(12)]
    forwards = [2.0 * step for step in range(12)]
    assert seconds_left(clock, 100) == 100
    assert seconds_left(clock, 100, forwards, 10.0) == 5
    assert seconds_left(clock, 3, forwards, 10.0) == 3
    assert seconds_left([*clock, 500.0], 10) == 10  # the median does not mind one slow step


def test_logs_lose_their_colours_and_endless_lines() -> None:
    assert log_lines("\x1b[1;31mred\x1b[0m\r\na\rb\n" + "x" * 5000, 10) == ("red", "a", "b", "x" * 1999 + "…")
    assert log_lines("a\nb\nc", 2) == ("b", "c")


def test_pages_need_no_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys, dare_platform.views, dare_platform.rankings, dare_platform.entries, dare_platform.exports, "
        "dare_platform.cli; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=tmp_path).returncode == 0


def test_every_status_has_a_sentence(session: Session) -> None:
    submit(session)
    assert session.execute(select(Entry)).scalars().all()
    for summary in views.entries_list(session):
        assert summary.sentence.startswith("**")
