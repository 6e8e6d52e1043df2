"""Programs are judged in a run of their own, over the answers as they were stored; until then they have no number."""

from __future__ import annotations

import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from evaluated import (
    REPORT,
    answer,
    asked,
    evaluated,
    held,
    judged,
    outputs_of,
    programs,
    right,
    stricter,
    track,
)
from played import tiny, worker
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session
from world import state_of

from dare.scoring import write_items
from dare.scoring_run import run_score
from dare.spec import ItemOutcome, JobSpec
from dare.tasks import Item, load_task
from dare_platform import entries, rankings, reproduction, rescoring, views
from dare_platform.answers import stored_answers
from dare_platform.database import Database
from dare_platform.endings import add_run
from dare_platform.errors import JobDirectoryError, OutputError, ScorerChangedError
from dare_platform.isolation import NAMESPACES
from dare_platform.job_directory import answers_for, write_job_directory
from dare_platform.lease import Claim, claim
from dare_platform.models import Attempt, Prediction, Result, Run, ScoreItem, Worker
from dare_platform.outputs import protocols_of, read_outputs, read_result
from dare_platform.results import finish, finish_badly
from dare_platform.settings import Limits, Settings
from dare_platform.tracks import Track
from dare_platform.viewer import LOCAL
from dare_platform.worker import Worker as Platform

__all__ = ["programs"]


def score_run(database: Database, settings: Settings) -> tuple[Claim, Path]:
    """The score run that waits, claimed, with its directory."""
    with database.write() as session:
        claimed = held(session)
        assert claimed.job.kind == "score"
        answers = answers_for(session, settings, claimed)
    return claimed, write_job_directory(settings, claimed, (), answers)


def finished(database: Database, claimed: Claim, directory: Path) -> None:
    outputs = outputs_of(database, directory, claimed.job)
    with database.write() as session:
        assert finish(session, claimed.run_id, claimed.token, outputs, REPORT, actor="t") == "succeeded"


def test_an_evaluation_of_programs_has_a_score_run_behind_it(
    sqlite: Database, sqlite_settings: Settings, programs: str
) -> None:
    evaluation = evaluated(sqlite, sqlite_settings, track("sudoku", programs))
    with sqlite.read() as session:
        run = session.execute(select(Run).where(Run.kind == "score")).scalar_one()
        assert (run.depends_on, run.state) == (evaluation, "queued")
        job = JobSpec.model_validate_json(run.job_json)
        assert job.score is not None
        assert [(p.task, p.scorers) for p in job.score.protocols] == [(programs, ("dare-1",))]
        whole = JobSpec.model_validate_json(session.get_one(Run, evaluation).job_json)
        assert whole.evaluate is not None
        assert whole.evaluate.programs == "later"


def test_an_evaluation_without_programs_has_none(sqlite: Database, sqlite_settings: Settings) -> None:
    evaluated(sqlite, sqlite_settings, track("sudoku"))
    with sqlite.read() as session:
        assert session.execute(select(func.count()).where(Run.kind == "score")).scalar_one() == 0
        job = JobSpec.model_validate_json(session.execute(select(Run.job_json)).scalar_one())
        assert job.evaluate is not None
        assert job.evaluate.programs == "here"


def test_a_score_run_gets_the_answers_read_only_and_neither_weights_nor_entry(
    sqlite: Database, sqlite_settings: Settings, programs: str
) -> None:
    evaluated(sqlite, sqlite_settings, track("sudoku", programs))
    _, directory = score_run(sqlite, sqlite_settings)
    assert sorted(path.name for path in directory.iterdir()) == ["home", "job.json", "predictions", "tmp"]
    file = directory / "predictions" / f"{programs}.jsonl"
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o444, 0o555)
    assert file.read_text().count("import os") == 2 * 3


def test_its_numbers_stand_with_the_evaluation_and_say_who_gave_them(
    database: Database, settings: Settings, programs: str
) -> None:
    evaluation = evaluated(database, settings, track("sudoku", programs))
    claimed, directory = score_run(database, settings)
    assert run_score(directory).outcome == "succeeded"
    finished(database, claimed, directory)
    with database.read() as session:
        rows = session.execute(select(Result).where(Result.scored_by == claimed.run_id)).scalars().all()
        assert {(row.run_id, row.metric, row.decoding, row.value, row.n) for row in rows} == {
            (evaluation, metric, decoding, 0.5, 4)
            for metric in ("solved", "reward")
            for decoding in ("greedy", "sampled")
        }
        whole = JobSpec.model_validate_json(session.get_one(Run, evaluation).job_json)
        assert whole.evaluate is not None
        assert {row.protocol for row in rows} == {whole.evaluate.protocols[1].digest()}
        assert session.execute(select(func.count()).where(ScoreItem.run_id == claimed.run_id)).scalar_one() == 0
        view = views.run_view(session, claimed.run_id)
        assert view is not None
        assert {score.task for score in view.scores} == {programs}


def test_what_the_evaluation_itself_says_of_programs_is_left_out(
    sqlite: Database, sqlite_settings: Settings, programs: str
) -> None:
    """One word for each program, from where nothing else runs."""
    evaluation = evaluated(sqlite, sqlite_settings, track("sudoku", programs))
    with sqlite.read() as session:
        tasks = session.execute(
            text("SELECT DISTINCT task_slug FROM result JOIN task_version v ON v.id = task_version_id")
        )
        assert tasks.scalars().all() == ["sudoku"]
        stored = session.execute(select(func.count()).where(Prediction.run_id == evaluation)).scalar_one()
        assert stored == 2 * 4 * 3


def test_a_machine_without_a_sandbox_leaves_answers_and_no_number(
    sqlite: Database, sqlite_settings: Settings, programs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = track("sudoku", programs)
    import_of(programs, monkeypatch)
    evaluation = evaluated(sqlite, sqlite_settings, rules)
    with sqlite.read() as session:
        view = views.run_view(session, evaluation)
        assert view is not None
        assert [(m.task, m.sentence) for m in view.not_scored] == [(programs, "Its score run: waiting.")]
        assert cell(session, rules, programs).state == "queued"
    claimed, directory = score_run(sqlite, sqlite_settings)
    result = run_score(directory)
    assert (result.outcome, result.cause) == ("failed", "scoring")
    with sqlite.write() as session:
        ended = finish_badly(session, claimed.run_id, claimed.token, "scoring", result.message, REPORT, actor="t")
        assert ended == "failed"
    with sqlite.read() as session:
        found = cell(session, rules, programs)
        assert (found.state, found.greedy) == ("not_scored", None)
        assert "this machine has no sandbox" in str(found.detail)
        assert cell(session, rules, "sudoku").state == "measured"
        view = views.run_view(session, evaluation)
        assert view is not None
        assert "this machine has no sandbox" in view.not_scored[0].sentence


def import_of(programs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load_task(programs)
    monkeypatch.setattr(sys.modules[f"dare.tasks.{programs}"], "SANDBOX", False)


def cell(session, rules: Track, task: str):
    (row,) = rankings.board(session, rules, "llada-tiny").rows
    return row.cells[task]


def test_only_programs_may_come_without_a_score(
    sqlite: Database, sqlite_settings: Settings, programs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_of(programs, monkeypatch)
    evaluation = evaluated(sqlite, sqlite_settings, track("sudoku", programs))
    with sqlite.read() as session:
        run = session.get_one(Run, evaluation)
        job = JobSpec.model_validate_json(run.job_json)
    directory = sqlite_settings.jobs / evaluation / "1"
    items = {p.task: tuple(item_ids(p.task)) for p in job.evaluate.protocols}
    assert set(read_outputs(directory, job, read_result(directory, job), items).outcomes) == {"sudoku"}
    (directory / "items" / f"{programs}.jsonl").write_text("")
    with pytest.raises(OutputError, match=r"is there, but result\.json has no score of it"):
        read_outputs(directory, job, read_result(directory, job), items)
    (directory / "items" / f"{programs}.jsonl").unlink()
    (directory / "items" / "sudoku.jsonl").unlink()
    with pytest.raises(OutputError, match=r"the file items/sudoku\.jsonl is missing"):
        read_outputs(directory, job, read_result(directory, job), items)


def item_ids(task: str) -> list[str]:
    return [item.id for item in load_task(task).items("test", None)]


def test_any_worker_may_score(sqlite: Database, sqlite_settings: Settings, programs: str) -> None:
    evaluated(sqlite, sqlite_settings, track("sudoku", programs))
    with sqlite.write() as session:
        worker(session)
        other = Worker(
            name="w2", host="h", pid=2, boot_id="b", device="gpu", families="dream", state="idle", hardware="a GPU",
            software_version="0", started_at=1.0, last_seen_at=1.0,
        )  # fmt: skip
        session.add(other)
        session.flush()
        waiting = session.execute(select(Run).where(Run.kind == "score")).scalar_one()
        assert views.run_view(session, waiting.id) is not None
        (line,) = views.queue_view(session).waiting
        assert line.run.kind == "score"
        claimed = claim(session, other, 60.0)
        assert claimed is not None
        assert claimed.run_id == waiting.id


def test_cancelling_an_entry_counts_each_run_once_with_its_score_runs(sqlite: Database, programs: str) -> None:
    with sqlite.write() as session:
        entry = asked(session, track("sudoku", programs))
        assert entries.cancel(session, LOCAL, entry).at_once == 2
        states = session.execute(select(Run.kind, Run.state).order_by(Run.kind)).all()
        assert [tuple(row) for row in states] == [("evaluate", "cancelled"), ("score", "cancelled")]


def test_a_score_run_can_be_done_again(
    sqlite: Database, sqlite_settings: Settings, programs: str, tmp_path: Path
) -> None:
    evaluation = evaluated(sqlite, sqlite_settings, track("sudoku", programs))
    claimed, directory = score_run(sqlite, sqlite_settings)
    run_score(directory)
    finished(sqlite, claimed, directory)
    with sqlite.read() as session:
        reproduction.prepare(session, sqlite_settings, claimed.run_id, tmp_path / "again")
        run_score(tmp_path / "again")
        assert reproduction.compare(session, claimed.run_id, tmp_path / "again").verdict == "equal"
        earlier = sqlite_settings.jobs / evaluation / "1"
        assert reproduction.compare(session, evaluation, earlier).verdict == "equal"


def test_an_answer_that_was_changed_is_never_scored(sqlite: Database, sqlite_settings: Settings, programs: str) -> None:
    """The file that the run left still has it; without that, nobody knows what was answered."""
    evaluation = evaluated(sqlite, sqlite_settings, track("sudoku", programs))
    with sqlite.write() as session:
        protocol = protocols_of(JobSpec.model_validate_json(session.get_one(Run, evaluation).job_json))[1]
        session.execute(text("DROP TRIGGER tr_prediction_no_update"))
        session.execute(text("UPDATE prediction SET output = 'print(1)' WHERE item_id = 'p1' AND sample = 2"))
    with sqlite.read() as session:
        answers = stored_answers(session, sqlite_settings, evaluation, protocol)
        assert {a.output for a in answers if a.item == "p1"} == {"import os"}
    forget_files(sqlite_settings)
    with pytest.raises(JobDirectoryError, match=r"item 'p1' of toy_programs, sample 2, is not the one that was stored"):
        score_run(sqlite, sqlite_settings)


def test_a_text_that_no_database_can_hold_is_scored_from_the_file_that_the_run_left(
    database: Database, settings: Settings
) -> None:
    evaluation = evaluated(database, settings, track("sudoku"))
    with database.read() as session:
        (protocol,) = protocols_of(JobSpec.model_validate_json(session.get_one(Run, evaluation).job_json))
        answers = stored_answers(session, settings, evaluation, protocol)
        assert sum("\x00" in answer.output for answer in answers) == 6
        assert [(a.item, a.sample) for a in answers[:4]] == [
            ("test-0000", 0), ("test-0000", 1), ("test-0000", 2), ("test-0001", 0),
        ]  # fmt: skip
        forget_files(settings)
        with pytest.raises(JobDirectoryError, match="is not the one that was stored"):
            stored_answers(session, settings, evaluation, protocol)


def forget_files(settings: Settings) -> None:
    for file in settings.artifacts.rglob("*"):
        if file.is_file():
            file.unlink()


def test_a_score_run_that_is_repeated_adds_nothing_and_one_that_contradicts_is_refused(
    sqlite: Database, sqlite_settings: Settings, programs: str
) -> None:
    evaluated(sqlite, sqlite_settings, track("sudoku", programs))
    claimed, directory = score_run(sqlite, sqlite_settings)
    run_score(directory)
    finished(sqlite, claimed, directory)
    with sqlite.write() as session:
        ask_again(session, claimed.run_id, seed=7)
        before = session.execute(select(func.count()).select_from(ScoreItem)).scalar_one()
    again, directory = score_run(sqlite, sqlite_settings)
    run_score(directory)
    finished(sqlite, again, directory)
    with sqlite.read() as session:
        assert session.execute(select(func.count()).select_from(ScoreItem)).scalar_one() == before
        assert state_of(session, again.run_id) == "succeeded"
    with sqlite.write() as session:
        ask_again(session, claimed.run_id, seed=8)
    third, directory = score_run(sqlite, sqlite_settings)
    (directory / "predictions").chmod(0o755)
    (directory / "predictions" / f"{programs}.jsonl").unlink()
    answer(directory, third.job, lambda item, sample: str(item.gold["program"]))
    judged(directory, third.job)
    outputs = outputs_of(sqlite, directory, third.job)
    said = r"dare-1 says otherwise of 6 of 12 stored answers .* item 'p1', sample 0, was not solved"
    with pytest.raises(ScorerChangedError, match=said), sqlite.write() as session:
        finish(session, third.run_id, third.token, outputs, REPORT, actor="t")


def ask_again(session: Session, run_id: str, seed: int) -> None:
    """The same score run once more, which no entry asks for."""
    run = session.get_one(Run, run_id)
    job = JobSpec.model_validate_json(run.job_json).model_copy(update={"seed": seed})
    add_run(
        session,
        entry_id=run.entry_id,
        backbone_revision_id=run.backbone_revision_id,
        job=job,
        device="cpu",
        depends_on=run.depends_on,
    )


@pytest.mark.full
def test_a_worker_scores_what_is_stored_with_the_real_runner(sqlite: Database, sqlite_settings: Settings) -> None:
    """One of another family, apart from the host and without a weight, from answers that it cannot change."""
    evaluation = evaluated(sqlite, sqlite_settings, track("sudoku"))
    with sqlite.write() as session:
        run = session.get_one(Run, evaluation)
        ordered = add_run(
            session,
            entry_id=run.entry_id,
            backbone_revision_id=run.backbone_revision_id,
            job=rescoring.order(session, evaluation, "dare-1"),
            device="cpu",
            depends_on=evaluation,
        )
    roomy = replace(sqlite_settings, limits=Limits(free_disk_bytes=1), lease_seconds=60.0)
    assert Platform(roomy, ["sdar"]).run(until_idle=True) == 1
    with sqlite.read() as session:
        ended = session.get_one(Run, ordered.id)
        assert (ended.state, ended.sentence) == ("succeeded", "Scored 4 items; sudoku solved 50.0%.")
        assert session.execute(select(func.count()).select_from(ScoreItem)).scalar_one() == 12


@pytest.mark.full
@pytest.mark.shared
def test_programs_are_run_by_a_worker_and_their_numbers_reach_the_board(
    sqlite: Database, sqlite_settings: Settings, shared: Path
) -> None:
    """The whole way with HumanEval: a sandbox inside a run that is kept apart itself."""
    data = shared / "data"

    def solutions(item: Item, sample: int) -> str:
        if "puzzle" in item.gold:
            return right(item, sample)
        wrong = item.id.endswith("1")
        return f"```python\n{item.row['prompt']}{'    return None' if wrong else item.row['canonical_solution']}\n```"

    roomy = replace(sqlite_settings, limits=Limits(free_disk_bytes=1), lease_seconds=60.0, data=data)
    rules = track("sudoku", "humaneval")
    evaluation = evaluated(sqlite, roomy, rules, solutions, data=data)
    assert Platform(roomy, ["llada"]).run(until_idle=True) == 1
    with sqlite.read() as session:
        scoring = session.execute(select(Run).where(Run.kind == "score")).scalar_one()
        attempt = session.execute(select(Attempt).where(Attempt.run_id == scoring.id)).scalar_one()
        if attempt.isolation == NAMESPACES:
            assert (scoring.state, cell(session, rules, "humaneval").greedy.value) == ("succeeded", 0.75)
        else:
            assert cell(session, rules, "humaneval").state in ("measured", "not_scored")
        view = views.run_view(session, evaluation)
        assert {score.task for score in view.scores} >= {"sudoku"}


# --- two scorers of one evaluation ----------------------------------------------------------------------------------


def test_two_scorers_of_one_evaluation_are_both_stored(database: Database, settings: Settings) -> None:
    evaluation = evaluated(database, settings, track("sudoku", further_scorers=("strict-1",)), others=stricter)
    with database.read() as session:
        found = session.execute(
            select(Result.scorer, Result.value).where(Result.metric == "solved", Result.decoding == "greedy")
        )
        assert dict(found.all()) == {"dare-1": 0.5, "strict-1": 0.5}
        assert views.scorers_of(session, evaluation) == {"sudoku": ("dare-1", "strict-1")}
        both = views.difference(session, evaluation, "sudoku", "dare-1", "strict-1")
        assert (both.answers, both.equal, both.only_a, both.only_b, both.failed) == (12, 6, 3, 3, 0)
        first = both.moved[0]
        assert (first.item, first.sample, first.a.solved, first.b.solved) == ("test-0000", 0, True, False)
        assert first.b.answer == "read otherwise"


def test_the_board_shows_the_word_of_the_tracks_scorer(sqlite: Database, sqlite_settings: Settings) -> None:
    def kinder(protocol, outcomes):
        return [o.model_copy(update={"scorer": "kind-1", "score": 1.0}) for o in outcomes]

    rules = track("sudoku", scorer="kind-1", further_scorers=("dare-1",))
    evaluated(sqlite, sqlite_settings, rules, others=kinder)
    with sqlite.read() as session:
        board = rankings.board(session, rules, "llada-tiny")
        assert board.scorer == "kind-1"
        assert board.rows[0].cells["sudoku"].greedy.value == 1.0


def test_naming_a_scorer_changes_no_older_track() -> None:
    assert tiny().digest() == tiny().model_copy(update={"scorer": "dare-1"}).digest()
    assert tiny().digest() != tiny().model_copy(update={"scorer": "other"}).digest()
    assert "scorer" not in tiny().model_dump()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: [r for r in rows if r.scorer != "dare-1"], "by dare-1 lacks item 'test-0000', sample 0"),
        (lambda rows: rows[:-1], "by strict-1 lacks item"),
        (lambda rows: [*rows, rows[-1]], "by strict-1 has more than the 12 lines"),
        (lambda rows: [*rows, rows[-1].model_copy(update={"scorer": "third"})], "asked was 'dare-1' and 'strict-1'"),
        (
            lambda rows: [r.model_copy(update={"status": "undecoded"}) if r.sample == 0 else r for r in rows],
            "says n_undecoded of solved of 'sudoku' .greedy, dare-1. is 0, its items say 4",
        ),
    ],
)
def test_each_scorer_is_complete_or_refused(sqlite: Database, sqlite_settings: Settings, change, words: str) -> None:
    rules = track("sudoku", further_scorers=("strict-1",))
    evaluation = evaluated(sqlite, sqlite_settings, rules, others=stricter)
    directory = sqlite_settings.jobs / evaluation / "1"
    with sqlite.read() as session:
        job = JobSpec.model_validate_json(session.get_one(Run, evaluation).job_json)
    file = directory / "items" / "sudoku.jsonl"
    rows = [ItemOutcome.model_validate_json(line) for line in file.read_text().split("\n") if line]
    write_items(file, change(rows))
    with pytest.raises(OutputError, match=words):
        outputs_of(sqlite, directory, job)


def test_a_further_scorer_may_have_said_nothing(sqlite: Database, sqlite_settings: Settings) -> None:
    evaluation = evaluated(sqlite, sqlite_settings, track("sudoku", further_scorers=("strict-1",)))
    with sqlite.read() as session:
        assert views.scorers_of(session, evaluation) == {"sudoku": ("dare-1",)}
