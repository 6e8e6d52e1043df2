"""Entries that fail, cheat or run wild: each ends by its own name, costs what it should, and disturbs nobody."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from small import ARTEFACTS, COMPLETIONS, alive, home_with, leftovers, run_of, runs_of, small_track, submit, unread
from small import uploaded as good_entry
from sqlalchemy import func, select

from dare_platform import isolation, orders
from dare_platform.database import Database, open_database
from dare_platform.entries import Submitted
from dare_platform.models import Attempt, Entry, Result, Run, RunArtifact
from dare_platform.process_launcher import ProcessLauncher
from dare_platform.rankings import board
from dare_platform.settings import MIB, Limits, Settings
from dare_platform.tracks import Track
from dare_platform.worker import Worker

pytestmark = pytest.mark.full

SOURCE = '''"""d1 that goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from dare.algorithms.d1 import D1

os, sys, time = torch.os, torch.sys, __import__("time")
CALLS, HELD = [], []


@dataclass(frozen=True, kw_only=True)
class GoesWrong(D1):
    """{about}"""

    def loss(self, logp, old, ref, credit, views):
        terms = super().loss(logp, old, ref, credit, views)
        CALLS.append(len(credit.row))
        if {when}:
            {fault}
        return terms
'''
THIRD_STEP = f"CALLS[-1] == {COMPLETIONS} and len(CALLS) > 4"
"""Two inner epochs a step. A check has larger batches, so it passes: no check sees everything."""
AT_ONCE = "True"
TRACK = small_track(steps=6)
HURRIED = small_track(steps=6, wall_seconds=10, name="hurried")
SLEEPER = "86399.25"
"""Seconds that nobody else sleeps."""


@dataclass(frozen=True)
class Fault:
    """What an entry does, and how its training run must end."""

    code: str
    cause: str | None
    words: str
    exit_code: int | None = 1
    track: Track = TRACK


FAULTS = {
    "raises": Fault(
        'raise ValueError("the third step is one too many")',
        "user_error",
        r"The algorithm failed: loss \(line 23\) raised ValueError: the third step is one too many\.",
    ),
    "becomes NaN": Fault(
        'terms = replace(terms, num=terms.num * float("nan"))', "diverged", r"Training diverged: .*(nan|finite)"
    ),
    "never ends": Fault(
        "while True: time.time()", "timeout", r"still working after 15 s, its limit", -9, track=HURRIED
    ),
    "takes all memory": Fault(
        "while True: HELD.append(torch.ones(2**20)), time.sleep(0.005)",
        "oom_host",
        r"used \d+ MiB of memory; 700 MiB are allowed",
        -9,
    ),
    "prints without end": Fault('while True: print("x" * 1000)', "limit", r"printed more than 65536 bytes", -9),
    "fills the disk": Fault(
        'while True: open("big", "ab").write(bytes(2**20)), time.sleep(0.01)',
        "limit",
        r"wrote \d+ MiB of files; 64 MiB are allowed",
        -9,
    ),
    "leaves early": Fault(
        "os._exit(0)", "user_error", r"The entry ended the process before the run was finished \(.*missing\)", 0
    ),
    "forks": Fault(
        "[time.sleep(600) for _ in range(30) if os.fork() == 0]; time.sleep(600)",
        "limit",
        r"had \d+ processes; 12 are allowed",
        -9,
    ),
    "writes outside": Fault(
        'open("../../../outside", "w").write("here I am")',
        "user_error",
        r"The algorithm failed: loss .* raised OSError: .*Read-only file system",
    ),
    "hides a process": Fault(
        f'os.fork() or (os.setsid(), os.fork() and os._exit(0), os.execve("/bin/sleep", ["sleep", "{SLEEPER}"], {{}}))',
        None,
        r"Trained 6 steps",
        0,
    ),
}

AT_INTAKE = {
    "raises at intake": Fault(FAULTS["raises"].code, "user_error", r"Check `\w+`: loss \(line 23\) raised ValueError"),
    "leaves early at intake": replace(FAULTS["leaves early"], words=r"The entry ended the process before"),
}


@dataclass
class Aftermath:
    """The home after two workers met all of these entries, and two honest ones last."""

    settings: Settings
    database: Database
    entries: dict[str, Submitted]
    honest: list[Submitted]

    def run(self, name: str, kind: str) -> Run:
        return run_of(self.database, self.entries[name].entry_id, kind)

    def attempts(self, run: Run) -> list[Attempt]:
        query = select(Attempt).where(Attempt.run_id == run.id).order_by(Attempt.number)
        with self.database.read() as session:
            return list(session.execute(query).scalars())


LIMITS = Limits(
    wall_seconds=300,
    memory_bytes=700 * MIB,
    processes=12,
    directory_bytes=64 * MIB,
    log_bytes=65536,
    free_disk_bytes=1,
    grace_seconds=1,
)


def source_of(fault: Fault, when: str) -> str:
    return SOURCE.format(about="Goes wrong.", fault=fault.code, when=when)


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    settings = replace(home_with(tmp_path_factory.mktemp("faults") / "home", TRACK, HURRIED), limits=LIMITS)
    with open_database(settings) as database, pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "START_SECONDS", 5.0)
        met = {}
        for faults, when in ((FAULTS, THIRD_STEP), (AT_INTAKE, AT_ONCE)):
            for name, fault in faults.items():
                met[name] = submit(database, unread(fault.track, name.replace(" ", "-"), source_of(fault, when)))
        honest = [
            submit(database, good_entry(TRACK, name, blame=blame)) for name, blame in (("fair", 0.5), ("kind", 0.1))
        ]
        with ThreadPoolExecutor(2) as pool:
            for made in [pool.submit(Worker(settings, ["sdar"]).run, True) for _ in range(2)]:
                assert made.result() > len(FAULTS)
        yield Aftermath(settings, database, met, honest)


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.cause])
def test_a_fault_in_training_ends_by_its_name_and_costs_its_author(aftermath: Aftermath, name: str) -> None:
    if name == "writes outside" and not is_isolated(aftermath):
        pytest.skip("this machine has no namespaces to isolate with")
    fault, run = FAULTS[name], aftermath.run(name, "train")
    assert (run.state, run.cause) == ("failed", fault.cause), run.sentence
    assert re.search(fault.words, str(run.sentence)), run.sentence
    assert run.next_step
    assert run.charged is True
    (attempt,) = aftermath.attempts(run)
    assert (attempt.outcome, attempt.exit_code) == ("failed", fault.exit_code)
    assert attempt.peak_memory_bytes is None or attempt.peak_memory_bytes < 1200 * MIB


def is_isolated(aftermath: Aftermath) -> bool:
    return ProcessLauncher(aftermath.settings).isolation == isolation.NAMESPACES


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.cause])
def test_a_fault_in_training_leaves_no_number_anywhere(aftermath: Aftermath, name: str) -> None:
    evaluation = aftermath.run(name, "evaluate")
    assert (evaluation.state, evaluation.cause, evaluation.charged) == ("failed", "dependency", False)
    with aftermath.database.read() as session:
        ids = [run.id for run in runs_of(aftermath.database, aftermath.entries[name].entry_id)]
        for table in (Result, RunArtifact):
            assert session.execute(select(func.count()).where(table.run_id.in_(ids))).scalar_one() == 0
        (row,) = (
            row for row in board(session, FAULTS[name].track, "sdar-tiny").rows if row.name == name.replace(" ", "-")
        )
    assert row.status == "failed"
    assert [cell.greedy for cell in row.cells.values()] == [None, None]
    assert str(aftermath.run(name, "train").sentence) in str(row.cells["sudoku"].detail)


@pytest.mark.parametrize("name", AT_INTAKE)
def test_a_fault_at_intake_rejects_the_entry_with_its_log_free_of_charge(aftermath: Aftermath, name: str) -> None:
    fault, run = AT_INTAKE[name], aftermath.run(name, "check")
    assert (run.state, run.cause, run.charged) == ("failed", fault.cause, False)
    assert re.search(fault.words, str(run.sentence)), run.sentence
    with aftermath.database.read() as session:
        entry = session.get_one(Entry, aftermath.entries[name].entry_id)
        assert (entry.gate, entry.rejection) == ("rejected", run.sentence)
    behind = [aftermath.run(name, kind) for kind in ("train", "evaluate")]
    assert [(run.state, run.cause, run.charged) for run in behind] == [("failed", "dependency", False)] * 2
    assert "training" not in str(behind[0].sentence)  # it was a check that failed
    (attempt,) = aftermath.attempts(run)
    assert ("Traceback" in attempt.log_tail) == (name == "raises at intake")


def test_an_error_leaves_its_traceback_in_the_log(aftermath: Aftermath) -> None:
    (attempt,) = aftermath.attempts(aftermath.run("raises", "train"))
    assert "line 23, in loss" in attempt.log_tail
    assert "ValueError: the third step is one too many" in attempt.log_tail


def test_a_flood_leaves_its_first_and_last_lines_in_the_log(aftermath: Aftermath) -> None:
    (attempt,) = aftermath.attempts(aftermath.run("prints without end", "train"))
    assert "x" * 1000 in attempt.log_tail
    assert "bytes left out" in attempt.log_tail
    assert len(attempt.log_tail) <= 65536


def test_after_all_of_them_both_workers_still_do_honest_work(aftermath: Aftermath) -> None:
    for entry in aftermath.honest:
        assert [run.state for run in runs_of(aftermath.database, entry.entry_id)] == ["succeeded"] * 3
    with aftermath.database.read() as session:
        attempts = session.execute(select(Attempt).order_by(Attempt.started_at)).scalars().all()
    last = {attempt.worker_id: attempt.outcome for attempt in attempts}
    assert list(last.values()) == ["succeeded", "succeeded"]


def test_nothing_of_them_is_alive_or_left_on_disk(aftermath: Aftermath) -> None:
    assert alive([run.id for run in runs_of(aftermath.database)]) == []
    sleepers = [one.pid for one in psutil.process_iter(["cmdline"]) if SLEEPER in (one.info["cmdline"] or ())]
    assert sleepers == [] or not is_isolated(aftermath)
    assert leftovers(aftermath.settings, aftermath.database) == []
    write_table(aftermath)


def write_table(aftermath: Aftermath) -> None:
    rows = []
    for name in (*FAULTS, *AT_INTAKE):
        run = aftermath.run(name, "check" if name in AT_INTAKE else "train")
        rows.append({"fault": name, "state": run.state, "cause": run.cause, "charged": run.charged})
        rows[-1] |= {"sentence": run.sentence, "next_step": run.next_step}
        print(f"{name:24} {run.state:10} {run.cause or '':11} {run.sentence}")  # noqa: T201
    ARTEFACTS.mkdir(exist_ok=True)
    (ARTEFACTS / "faults.json").write_text(json.dumps(rows, indent=1))


def test_without_isolation_the_attempt_says_what_the_entry_could_have_done(tmp_path: Path) -> None:
    track = small_track(steps=3)
    settings = replace(home_with(tmp_path / "home", track), limits=LIMITS)
    with open_database(settings) as database:
        entry = submit(database, unread(track, "writes-outside", source_of(FAULTS["writes outside"], THIRD_STEP)))
        launcher = ProcessLauncher(settings, isolated=False)
        Worker(settings, ["sdar"], launcher=launcher).run(until_idle=True)
        runs = runs_of(database, entry.entry_id)
        assert [run.state for run in runs] == ["succeeded"] * 3
        with database.read() as session:
            said = session.execute(select(Attempt.isolation).distinct()).scalars().all()
        assert said == [isolation.NONE]
        assert leftovers(settings, database) == ["outside"]
