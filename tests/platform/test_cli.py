"""The command `dare` on a real database: what it prints, its exit codes, and one sentence for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from played import MY_RULE, steps, succeed, take, work_off
from sqlalchemy import update
from typer.testing import CliRunner

from dare_platform import endings
from dare_platform.cli import app
from dare_platform.cli.reading import _said
from dare_platform.database import Database
from dare_platform.models import Run
from dare_platform.settings import Settings

FAILED, USAGE, NOT_FOUND, REFUSED = 1, 2, 3, 4


class Dare:
    """The command with a home of its own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.environment = {"DARE_HOME": str(settings.home), "DARE_DATA": "", "COLUMNS": "200", "DARE_BROKER_URL": ""}

    def __call__(self, *arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, list(arguments), env=self.environment)
        assert result.exit_code == code, result.output + (repr(result.exception) if result.exception else "")
        self.errors = result.stderr
        return result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def dare(sqlite_settings: Settings) -> Dare:
    command = Dare(sqlite_settings)
    command("migrate")
    return command


def test_help_is_instant_and_teaches() -> None:
    started = time.process_time()
    result = subprocess.run(
        [sys.executable, "-m", "dare_platform", "--help"], capture_output=True, text=True, check=True
    )
    code = (
        "import sys, dare_platform.cli as c; sys.exit(any(m in sys.modules for m in ('sqlalchemy', 'numpy', 'torch')))"
    )
    assert "dare submit bgpo" in result.stdout
    assert "Exit codes" in result.stdout
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "command",
    ["submit", "sweep", "check", "cancel", "retry", "withdraw", "entries", "leaderboard", "export", "runs", "logs",
     "queue", "api", "worker", "reproduce", "rescore", "scores", "migrate", "doctor", "clean", "backbone"],
)  # fmt: skip
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert len(result.stdout) > 200


# --- submitting -----------------------------------------------------------------------------------------------------


def test_submit_prints_the_entry_and_the_same_again_finds_it(dare: Dare) -> None:
    first = dare("submit", "bgpo", "-b", "llada-tiny", "--set", "mc_samples=4").strip()
    assert "6 runs queued for `bgpo`." in dare.errors
    assert dare("submit", "bgpo", "-b", "llada-tiny", "--set", "mc_samples=4").strip() == first
    assert "This entry is identical to" in dare.errors
    done = dare.json("submit", "d1", "-b", "llada-tiny")
    assert (done["created"], done["runs"]) == (True, 6)


def test_submit_takes_all_backbones_of_the_track_by_default(dare: Dare) -> None:
    entry = dare("submit", "untouched").strip()
    assert len(dare.json("entries", entry)["cells"]) == 6


def test_submit_a_file_with_settings(dare: Dare, tmp_path: Path) -> None:
    (tmp_path / "my_rule.py").write_text(MY_RULE)
    (tmp_path / "settings.yaml").write_text("clip_low: 0.05\n")
    arguments = [
        "--settings",
        str(tmp_path / "settings.yaml"),
        "-b",
        "llada-tiny",
        "--name",
        "narrow",
        "--track",
        "tiny@1.0",
    ]
    entry = dare.json("entries", dare("submit", str(tmp_path / "my_rule.py"), *arguments).strip())
    assert (entry["summary"]["name"], entry["class_name"], entry["settings_text"]) == (
        "narrow",
        "MyRule",
        "clip_low: 0.05\n",
    )
    assert entry["check"]["kind"] == "check"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["bgop"], NOT_FOUND, "There is no built-in algorithm `bgop`. Did you mean `bgpo`?"),
        (["bgpo", "--set", "mc_sample=4"], REFUSED, "unknown hyperparameter `mc_sample`. Did you mean `mc_samples`?"),
        (["bgpo", "--set", "mc_samples"], USAGE, "--set 'mc_samples' is not of the form name=value"),
        (["bgpo", "--set", "a=1", "--set", "a=2"], USAGE, "--set a is given twice"),
        (["bgpo", "-b", "nosuch"], REFUSED, "Track tiny 1.0 has no backbone `nosuch`."),
        (["bgpo", "--track", "nosuch"], NOT_FOUND, "there is no track 'nosuch'"),
        (["nosuch.py"], NOT_FOUND, "there is no file nosuch.py"),
        (["bgpo", "--settings", "nosuch.yaml"], NOT_FOUND, "there is no file nosuch.yaml"),
        (["bgpo", "--no-such-option"], USAGE, "No such option"),
    ],
)
def test_a_mistake_is_one_sentence_on_standard_error(
    dare: Dare, arguments: list[str], code: int, sentence: str
) -> None:
    assert dare("submit", *arguments, code=code) == ""
    assert sentence in dare.errors
    assert "Traceback" not in dare.errors


def test_without_a_database_there_is_one_sentence(tmp_path: Path) -> None:
    from dataclasses import replace

    empty = Dare(replace(Settings.from_environment({"DARE_HOME": str(tmp_path / "new")})))
    empty("runs", code=FAILED)
    assert "run `dare migrate`" in empty.errors
    assert not (tmp_path / "new").exists()


def test_migrating_twice_changes_nothing(dare: Dare) -> None:
    dare("migrate")
    assert "Track tiny 1.0 is registered." in dare.errors


# --- looking --------------------------------------------------------------------------------------------------------


def test_empty_lists_say_what_to_do(dare: Dare) -> None:
    for command in ("entries", "runs", "leaderboard"):
        dare(command)
        assert "dare submit" in dare.errors
    assert dare.json("entries") == dare.json("runs") == []


def test_unknown_ids_are_not_found(dare: Dare) -> None:
    for command in (["entries", "x"], ["runs", "x"], ["logs", "x"], ["cancel", "x"], ["retry", "x"], ["withdraw", "x"]):
        dare(*command, code=NOT_FOUND)
        assert "there is no" in dare.errors


def test_the_whole_way_to_a_board(dare: Dare, sqlite: Database) -> None:
    for name in ("untouched", "bgpo", "d1"):
        dare("submit", name, "-b", "llada-tiny")
    assert dare("queue").startswith("No worker is alive. 9 runs wait and lose nothing.")
    with sqlite.write() as session:
        work_off(session, {"untouched": 0.2, "bgpo": 0.6, "d1": 0.4})
    text = dare("leaderboard", "-b", "llada-tiny")
    assert "This board shows that the pipeline works." in text
    assert "+40.0 ± 0.0" in text
    rows = dare.json("leaderboard", "-b", "llada-tiny")["board"]["rows"]
    assert [row["name"] for row in rows] == ["untouched", "bgpo", "d1"]
    assert dare("export", "-f", "csv").startswith("rank_low,rank_high,name")
    assert r"\begin{tabular}" in dare("export", "-f", "latex")
    assert json.loads(dare("export", "-f", "json"))["board"]["rows"] == rows
    assert "complete" in dare("entries")
    run = next(run for run in dare.json("runs") if run["kind"] == "evaluate")
    assert "sudoku" in dare("runs", run["id"])


def test_a_board_of_too_few_seeds_shows_what_there_is(dare: Dare, sqlite: Database) -> None:
    for name in ("untouched", "bgpo", "cj_grpo"):
        dare("submit", name, "-b", "llada-tiny")
    with sqlite.write() as session:
        session.execute(update(Run).where(Run.seed > 0).values(state="cancelled", finished_at=1.0))
        work_off(session, {"untouched": 0.2, "bgpo": 0.6, "cj_grpo": 0.5})
    text = dare("leaderboard", "-b", "llada-tiny")
    assert text.count("1 of 3 seeds") == 6
    assert "+40.0, 1 seed" in text
    assert text.count("not ranked") == 2
    assert "±" not in text


def test_a_name_is_not_escaped_on_a_terminal() -> None:
    assert _said("**a\\_b leads.** `x`") == "a_b leads. `x`"


def test_logs_of_a_run(dare: Dare, sqlite: Database) -> None:
    dare("submit", "bgpo", "-b", "llada-tiny")
    with sqlite.write() as session:
        claimed = take(session)
        assert claimed is not None
    assert dare("logs", claimed.run_id) == ""
    assert "No log yet: preparing." in dare.errors
    with sqlite.write() as session:
        steps(session, claimed, 3)
        succeed(session, claimed, lambda run, task: 0.5)
    assert dare("logs", claimed.run_id).splitlines()[-1] == "last line"
    assert dare("logs", claimed.run_id, "-f").splitlines()[0] == "loading"
    assert "Finished in" in dare.errors
    assert dare.json("logs", claimed.run_id)["state"] == "succeeded"
    assert "training" not in dare("runs", claimed.run_id)


# --- changing -------------------------------------------------------------------------------------------------------


def test_cancel_retry_and_withdraw(dare: Dare) -> None:
    entry = dare("submit", "bgpo", "-b", "llada-tiny").strip()
    dare("retry", entry, code=REFUSED)
    assert "is waiting; only a failed" in dare.errors
    assert dare.json("cancel", entry)["at_once"] == 6
    dare("cancel", entry)
    assert "everything has already finished" in dare.errors
    again = dare("retry", entry).strip()
    assert again != entry
    dare("withdraw", again, "--reason", "a test")
    assert dare.json("entries", again)["withdrawn_reason"] == "a test"
    dare("withdraw", again, code=REFUSED)


# --- check ----------------------------------------------------------------------------------------------------------


def test_check_reads_at_once(dare: Dare, tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(MY_RULE)
    (tmp_path / "bad.py").write_text("import os\n" + MY_RULE.replace("0.1", "'x'", 1))
    assert dare("check", str(tmp_path / "good.py"), "--only-read") == ""
    assert "class `MyRule`, 4 hyperparameters" in dare.errors
    dare("check", str(tmp_path / "bad.py"), code=REFUSED)
    assert "`bad.py` line 1: `import os` is not allowed." in dare.errors
    assert "the default of `clip_low` is the text" in dare.errors
    dare("check", str(tmp_path / "good.py"), "--set", "nosuch=1", "--only-read", code=REFUSED)
    dare("check", str(tmp_path / "absent.py"), code=NOT_FOUND)


# --- this machine ---------------------------------------------------------------------------------------------------


def test_doctor_finds_what_is_there(dare: Dare) -> None:
    found = {finding["subject"]: finding for finding in dare.json("doctor")}
    assert found["database"]["state"] == "ok"
    assert found["backbone llada-tiny"]["finding"].endswith("verified")
    assert found["workers"]["remedy"] == "start one: `dare worker`"
    assert found["broker"]["finding"] == "none: workers poll the database"


def test_doctor_says_how_to_mend(tmp_path: Path) -> None:
    empty = Dare(Settings.from_environment({"DARE_HOME": str(tmp_path / "new")}))
    text = empty("doctor", code=FAILED)
    assert "not made yet; run `dare migrate`" in text


def test_clean_removes_directories_of_finished_runs_only(dare: Dare, sqlite: Database) -> None:
    dare("submit", "bgpo", "-b", "llada-tiny")
    with sqlite.write() as session:
        finished, active = take(session), take(session)
        assert finished is not None
        assert active is not None
        endings.fail(session, finished.run_id, "diverged", actor="w", token=finished.token)
    jobs = dare.settings.jobs
    for run in (finished.run_id, active.run_id, "stranger"):
        (jobs / run / "1" / "entry").mkdir(parents=True)
        (jobs / run / "1" / "events.jsonl").write_text("x" * 1000)
        (jobs / run / "1" / "entry").chmod(0o555)
    dare("clean")
    assert "that can go: 1, 1.0 kB. Do it: dare clean --yes" in dare.errors
    assert (jobs / finished.run_id).exists()
    assert dare.json("clean", "--yes")["removed_bytes"] == 1000
    assert sorted(folder.name for folder in jobs.iterdir() if not folder.name.startswith(".")) == sorted(
        [active.run_id, "stranger"]
    )
    dare("clean", "--yes")
    assert "Nothing can go." in dare.errors


def test_backbones_are_listed(dare: Dare) -> None:
    assert {record["name"] for record in dare.json("backbone", "list")} >= {"llada-tiny", "sdar-tiny"}
    assert "llada-tiny" in dare("backbone", "list")


def test_a_worker_of_an_unknown_family_is_refused(dare: Dare) -> None:
    dare("worker", "--family", "nosuch", code=USAGE)
    assert "unknown family 'nosuch'; known: dream, llada, llada2, sdar" in dare.errors
    dare("worker", "--until-idle")
    assert "0 attempts made." in dare.errors


def test_reproducing_needs_a_finished_run(dare: Dare, sqlite: Database, tmp_path: Path) -> None:
    dare("submit", "bgpo", "-b", "llada-tiny")
    run = dare.json("runs")[0]["id"]
    dare("reproduce", run, "--out", str(tmp_path / "again"), code=FAILED)
    assert "only one that has succeeded can be reproduced" in dare.errors
    dare("reproduce", "nosuch", code=NOT_FOUND)
