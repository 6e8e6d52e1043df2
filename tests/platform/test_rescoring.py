"""Stored answers are judged again by whoever is at hand: new rows beside the old ones, and never a changed one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evaluated import evaluated, programs, right, stricter, track
from sqlalchemy import func, select, text
from test_cli import FAILED, NOT_FOUND, USAGE, Dare, dare

from dare import scoring, scoring_run
from dare.scoring_run import run_score
from dare.spec import JobSpec
from dare.tasks import Item
from dare_platform import rescoring
from dare_platform.database import Database
from dare_platform.errors import RescoringError, ScorerChangedError, UnknownRunError
from dare_platform.models import LOCAL_ACCOUNT, AuditLog, Result, Run, ScoreItem
from dare_platform.scores import Taken
from dare_platform.settings import Settings

__all__ = ["dare", "programs"]


def rescored(
    database: Database, settings: Settings, run_id: str, directory: Path, scorer: str = "dare-1", *tasks: str
) -> tuple[Taken, ...]:
    """What `dare rescore` does, with the runner in this process."""
    directory.mkdir()
    with database.read() as session:
        job = rescoring.order(session, run_id, scorer, tasks)
        rescoring.prepare(session, settings, run_id, job, directory)
    run_score(directory)
    with database.write() as session:
        return rescoring.take(session, LOCAL_ACCOUNT, run_id, job, directory)


def rows(database: Database) -> tuple[list[Any], list[Any]]:
    with database.read() as session:
        items = session.execute(text("SELECT * FROM score_item ORDER BY run_id, item_id, sample, scorer")).all()
        numbers = session.execute(text("SELECT * FROM result ORDER BY scorer, metric, decoding")).all()
    return list(items), list(numbers)


def another_version(monkeypatch: pytest.MonkeyPatch, name: str = "dare-2") -> None:
    """This installation's scorer has another name, as after an upgrade."""
    for module in (scoring, scoring_run, rescoring):
        monkeypatch.setattr(module, "SCORER", name)


def test_the_same_scorer_says_the_same_and_adds_nothing(database: Database, settings: Settings, tmp_path: Path) -> None:
    run_id = evaluated(database, settings, track("sudoku"))
    before = rows(database)
    assert rescored(database, settings, run_id, tmp_path / "a") == (Taken("sudoku", "dare-1", "equal", 12),)
    assert rows(database) == before
    with database.read() as session:
        assert session.execute(select(AuditLog)).first() is None


def test_another_version_adds_rows_beside_the_old_ones_and_says_who_asked(
    database: Database, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = evaluated(database, settings, track("sudoku"))
    items, numbers = rows(database)
    another_version(monkeypatch)
    assert rescored(database, settings, run_id, tmp_path / "a", "dare-2") == (Taken("sudoku", "dare-2", "added", 12),)
    more_items, more_numbers = rows(database)
    assert [row for row in more_items if row.scorer == "dare-1"] == items
    assert [row for row in more_numbers if row.scorer == "dare-1"] == numbers
    assert (len(more_items), len(more_numbers)) == (2 * len(items), 2 * len(numbers))
    assert rescored(database, settings, run_id, tmp_path / "b", "dare-2")[0].outcome == "equal"
    with database.read() as session:
        job = JobSpec.model_validate_json(session.get_one(Run, run_id).job_json)
        assert job.evaluate is not None
        found = session.execute(select(Result).where(Result.scorer == "dare-2")).scalars().all()
        assert {(row.protocol, row.scored_by) for row in found} == {(job.evaluate.protocols[0].digest(), None)}
        note = session.execute(select(AuditLog)).scalar_one()
        assert (note.action, note.subject, note.actor_id) == ("rescore", run_id, LOCAL_ACCOUNT)
        assert note.note == "added: sudoku by dare-2"


def test_a_scorer_that_says_otherwise_under_its_old_name_is_refused_and_writes_nothing(
    sqlite: Database, sqlite_settings: Settings, tmp_path: Path
) -> None:
    run_id = evaluated(sqlite, sqlite_settings, track("sudoku"))
    with sqlite.write() as session:  # what an older release, which read less, had written
        session.execute(text("DROP TRIGGER tr_score_item_no_update"))
        session.execute(text("UPDATE score_item SET score = 0 WHERE item_id = 'test-0000' AND sample = 0"))
    before = rows(sqlite)
    with pytest.raises(ScorerChangedError, match=r"dare-1 says otherwise of 1 of 12 .*'test-0000', sample 0, was not"):
        rescored(sqlite, sqlite_settings, run_id, tmp_path / "a")
    assert rows(sqlite) == before


def test_programs_are_judged_in_a_sandbox_or_left_out(
    sqlite: Database, sqlite_settings: Settings, tmp_path: Path, programs: str
) -> None:
    run_id = evaluated(sqlite, sqlite_settings, track("sudoku", programs))
    taken = rescored(sqlite, sqlite_settings, run_id, tmp_path / "a", "dare-1", programs)
    assert taken == (Taken(programs, "dare-1", "added", 12),)


def test_what_cannot_be_ordered_is_said_in_a_sentence(sqlite: Database, sqlite_settings: Settings) -> None:
    run_id = evaluated(sqlite, sqlite_settings, track("sudoku"))
    with sqlite.write() as session:
        for given, words in (
            ((run_id, "gpt-judge"), "there is no scorer 'gpt-judge' here; known: dare-1"),
            ((run_id, "dare-1", ["gsm8k"]), "was not asked for task 'gsm8k'; it has: sudoku"),
        ):
            with pytest.raises(RescoringError, match=words):
                rescoring.order(session, *given)
        with pytest.raises(UnknownRunError):
            rescoring.order(session, "nothing", "dare-1")
        session.execute(text("UPDATE run SET state = 'cancelled'"))
        session.expire_all()
        with pytest.raises(RescoringError, match="is cancelled; its answers are stored when it has succeeded"):
            rescoring.order(session, run_id, "dare-1")


# --- the commands ---------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_rescoring_from_the_command_line(dare: Dare, sqlite: Database) -> None:
    run_id = evaluated(sqlite, dare.settings, track("sudoku"))
    assert dare("rescore", run_id) == "sudoku: equal. dare-1 says the same of all 12 answers; nothing to add.\n"
    found = json.loads(dare("rescore", run_id, "--task", "sudoku", "--json"))
    assert found["taken"] == [{"task": "sudoku", "scorer": "dare-1", "outcome": "equal", "answers": 12}]
    assert [path.name for path in dare.settings.home.iterdir() if path.name.startswith(".rescore")] == []
    with sqlite.write() as session:
        session.execute(text("DROP TRIGGER tr_score_item_no_update"))
        session.execute(text("UPDATE score_item SET score = 0 WHERE item_id = 'test-0000' AND sample = 0"))
    dare("rescore", run_id, code=FAILED)
    assert "Nothing was written" in dare.errors


@pytest.mark.full
@pytest.mark.shared
def test_opencompass_judges_what_is_stored(dare: Dare, sqlite: Database, shared: Path) -> None:
    """An answer that only one of the two reads: OpenCompass takes the last number, we the one that is announced."""
    pytest.importorskip("opencompass")
    data = shared / "data"

    def said(item: Item, sample: int) -> str:
        if "puzzle" in item.gold:
            return right(item, sample)
        checked = " I checked it 7 times." if item.id == "test-0000" else ""
        return f"The answer is {item.gold['answer']}.{checked}"

    run_id = evaluated(sqlite, dare.settings, track("gsm8k", "sudoku"), said, data=data)
    dare.environment["DARE_DATA"] = str(data)
    dare("rescore", run_id, "--scorer", "opencompass-0.5.4", "--task", "sudoku", code=USAGE)
    assert "OpenCompass cannot judge the stored answers to sudoku" in dare.errors
    said_now = dare("rescore", run_id, "--scorer", "opencompass-0.5.4")
    assert said_now == "gsm8k: 12 answers judged by opencompass-0.5.4, added.\n"
    (found,) = dare.json("scores", "diff", run_id, "--scorers", "dare-1", "opencompass-0.5.4")
    assert (found["task"], found["answers"], found["only_a"], found["only_b"]) == ("gsm8k", 12, 3, 0)
    assert {(m["item"], m["a"]["answer"], m["b"]["answer"]) for m in found["moved"]} == {("test-0000", "18", "7")}
    with sqlite.read() as session:
        assert "gsm8k/gsm8k_gen" in str(session.execute(select(AuditLog.note)).scalar_one())


def test_mistakes_of_rescoring_have_their_exit_codes(dare: Dare, sqlite: Database) -> None:
    run_id = evaluated(sqlite, dare.settings, track("sudoku"))
    dare("rescore", "nothing", code=NOT_FOUND)
    dare("rescore", run_id, "--scorer", "gpt-judge", code=USAGE)
    assert "known: dare-1" in dare.errors
    dare("rescore", run_id, "--task", "gsm8k", code=USAGE)
    with sqlite.read() as session:
        assert session.execute(select(func.count()).select_from(ScoreItem)).scalar_one() == 12


def test_two_scorers_are_compared_item_by_item(dare: Dare, sqlite: Database) -> None:
    run_id = evaluated(sqlite, dare.settings, track("sudoku", further_scorers=("strict-1",)), others=stricter)
    said = dare("scores", "diff", run_id, "--scorers", "dare-1", "strict-1")
    assert "sudoku: 6 of 12 answers judged alike; solved by dare-1 only: 3, by strict-1 only: 3." in said
    assert "not solved: read otherwise" in said
    (found,) = dare.json("scores", "diff", run_id, "--scorers", "strict-1", "dare-1")
    assert (found["equal"], found["only_a"], found["only_b"], len(found["moved"])) == (6, 3, 3, 6)
    moved = found["moved"][0]
    assert (moved["item"], moved["sample"], moved["a"]["solved"], moved["b"]["solved"]) == ("test-0000", 0, False, True)
    assert moved["output"]
    dare("scores", "diff", run_id, "--scorers", "dare-1", "strict-1", "--most", "2")
    assert "4 more" in dare.errors
    dare("scores", "diff", run_id, "--scorers", "dare-1", "dare-1", code=USAGE)
    dare("scores", "diff", run_id, "--scorers", "dare-1", "dare-9", code=NOT_FOUND)
    assert "who was heard: sudoku: dare-1, strict-1" in dare.errors
    dare("scores", "diff", "nothing", "--scorers", "dare-1", "dare-2", code=NOT_FOUND)


def test_the_scorers_at_hand_are_listed(dare: Dare) -> None:
    assert "dare-1" in dare("scores", "scorers")
    assert next(iter(dare.json("scores", "scorers"))) == "dare-1"
