"""What a submission writes, what is refused, and what can be done with an entry afterwards; on a real database."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest
from played import MY_RULE, built_in, given, register, steps, take, tiny, upload, work_off
from sqlalchemy import select
from sqlalchemy.orm import Session

from dare.spec import JobSpec
from dare_platform import checks, endings, entries
from dare_platform.database import Database
from dare_platform.entry_status import status_of, statuses
from dare_platform.errors import RegistryError
from dare_platform.models import AlgorithmVersion, AuditLog, Entry, Outbox, Run
from dare_platform.uploads import Submission, UploadReport, read_builtin, read_upload
from dare_platform.viewer import LOCAL


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """One writing transaction on a database in which the tiny track is registered."""
    with database.write() as opened:
        register(opened)
        yield opened


def submit(session: Session, submission: Submission, key: str = "k1") -> entries.Submitted:
    return entries.submit(session, LOCAL, submission, key)


def runs(session: Session, entry: str) -> list[Run]:
    return list(session.execute(select(Run).where(Run.entry_id == entry).order_by(Run.created_at, Run.id)).scalars())


def status(session: Session, entry: str) -> str:
    return statuses(session, {entry: session.get_one(Entry, entry, populate_existing=True).gate})[entry]


# --- submitting -----------------------------------------------------------------------------------------------------


def test_a_builtin_trains_at_once_and_is_evaluated_afterwards(session: Session) -> None:
    done = submit(session, built_in("bgpo", "mc_samples: 4\n"))
    found = runs(session, done.entry_id)
    assert done.created
    assert Counter((run.kind, run.state) for run in found) == {("train", "queued"): 3, ("evaluate", "blocked"): 3}
    assert {run.seed for run in found} == {0, 1, 2}
    parents = {run.id: run for run in found}
    for run in found:
        job = JobSpec.model_validate_json(run.job_json)
        assert run.job_sha256 == job.digest()
        if run.kind == "evaluate":
            assert parents[str(run.depends_on)].seed == run.seed
            assert job.evaluate is not None
            assert job.evaluate.trained
        else:
            assert job.train is not None
            assert job.train.algorithm.hyperparameters["mc_samples"] == 4
            assert job.train.algorithm.hyperparameters["advantage"] == "grpo"  # every value, defaults included
    messages = [json.loads(row.payload_json)["run_id"] for row in session.execute(select(Outbox)).scalars()]
    assert sorted(messages) == sorted(run.id for run in found if run.state == "queued")


def test_the_untouched_reference_is_evaluated_only(session: Session) -> None:
    done = submit(session, built_in("untouched"))
    entry = session.get_one(Entry, done.entry_id)
    assert (entry.kind, entry.algorithm_version_id) == ("reference", None)
    found = runs(session, done.entry_id)
    assert [(run.kind, run.state) for run in found] == [("evaluate", "queued")] * 3
    job = JobSpec.model_validate_json(found[0].job_json)
    assert job.evaluate is not None
    assert not job.evaluate.trained


def test_a_submitted_file_is_checked_once_per_family_before_it_trains(session: Session) -> None:
    done = submit(session, upload(MY_RULE, "llada-tiny", "sdar-tiny"))
    found = runs(session, done.entry_id)
    assert session.get_one(Entry, done.entry_id).gate == "validating"
    assert Counter((run.kind, run.state) for run in found) == {
        ("check", "queued"): 2, ("train", "blocked"): 6, ("evaluate", "blocked"): 6,
    }  # fmt: skip
    by_id = {run.id: run for run in found}
    for run in found:
        if run.kind == "train":
            check = by_id[str(run.depends_on)]
            assert (check.kind, check.queue) == ("check", run.queue)
    version = session.execute(select(AlgorithmVersion)).scalar_one()
    assert (version.source, version.built_in, version.class_name) == (MY_RULE, False, "MyRule")
    assert work_off(session) == 14
    assert session.get_one(Entry, done.entry_id, populate_existing=True).gate == "accepted"
    assert status(session, done.entry_id) == "complete"


def test_a_check_that_passed_is_not_asked_again(session: Session) -> None:
    first = submit(session, upload())
    work_off(session)
    entries.withdraw(session, LOCAL, first.entry_id, "wrong weights")
    again = submit(session, upload(), "k2")
    assert again.created
    assert {run.kind for run in runs(session, again.entry_id)} == {"train", "evaluate"}
    assert session.get_one(Entry, again.entry_id).gate == "accepted"


def test_a_failed_check_rejects_the_entry_free_of_charge(session: Session) -> None:
    done = submit(session, upload())
    claimed = take(session)
    assert claimed is not None
    endings.fail(
        session, claimed.run_id, "user_error", "`ratio_is_one` failed.", actor=claimed.actor, token=claimed.token
    )
    checks.conclude_check(session, claimed.run_id, passed=False, message="`ratio_is_one` failed.", log="")
    session.expire_all()
    assert status(session, done.entry_id) == "rejected"
    assert all(run.state in ("failed", "cancelled") for run in runs(session, done.entry_id))
    assert not any(run.charged for run in runs(session, done.entry_id))


# --- the same again -------------------------------------------------------------------------------------------------


def test_the_same_key_leads_to_the_same_entry(session: Session) -> None:
    first = submit(session, built_in("bgpo"))
    second = submit(session, built_in("bgpo"), "k1")
    assert (second.entry_id, second.created) == (first.entry_id, False)


def test_identical_content_leads_to_the_entry_that_is_there(session: Session) -> None:
    first = submit(session, built_in("bgpo"))
    spelled_out = submit(session, built_in("bgpo", "mc_samples: 16\nadvantage: grpo\n"), "k2")
    assert (spelled_out.entry_id, spelled_out.created) == (first.entry_id, False)
    assert spelled_out.sentence.startswith(f"This entry is identical to `{first.entry_id}` (bgpo, ")
    assert submit(session, built_in("bgpo", None, "llada-tiny", "sdar-tiny"), "k3").created
    assert submit(session, built_in("bgpo", "mc_samples: 8\n"), "k4").created
    assert len(session.execute(select(Entry)).all()) == 3


def test_a_first_look_grows_into_all_seeds(session: Session) -> None:
    """Also when its check has passed in between: nothing may wait for a run that has already ended."""
    text = MY_RULE.encode()
    first = submit(session, given(read_upload("my_rule.py", text, None, tiny(), ["llada-tiny"], seeds=[0])))
    assert Counter(run.kind for run in runs(session, first.entry_id)) == {"check": 1, "train": 1, "evaluate": 1}
    work_off(session)
    session.expire_all()
    grown = submit(session, upload(), "k2")
    assert (grown.entry_id, grown.created, grown.runs) == (first.entry_id, False, 2)
    assert grown.sentence.endswith(" 2 seeds were added to it.")
    work_off(session)
    session.expire_all()
    assert status(session, first.entry_id) == "complete"
    assert len(runs(session, first.entry_id)) == 7


def test_a_key_used_for_other_content_adds_nothing(session: Session) -> None:
    first = submit(session, built_in("bgpo"))
    said = f"Something else was sent with this key before, as entry `{first.entry_id}`"
    with pytest.raises(entries.RefusedError, match=said):
        submit(session, built_in("d1", None, "llada-tiny", "sdar-tiny"), "k1")
    assert len(runs(session, first.entry_id)) == 6


def test_tries_are_counted_withdrawn_ones_too(session: Session) -> None:
    first = submit(session, built_in("bgpo"))
    entries.withdraw(session, LOCAL, first.entry_id)
    second = submit(session, built_in("bgpo", "mc_samples: 8\n"), "k2")
    assert session.get_one(Entry, second.entry_id).ordinal == 2
    reference = submit(session, built_in("untouched"), "k3")
    assert session.get_one(Entry, reference.entry_id).ordinal == 1


def test_a_name_stands_for_one_algorithm(session: Session) -> None:
    submit(session, built_in("bgpo", entry_name="mine"))
    with pytest.raises(entries.RefusedError, match="stands for another algorithm on track tiny"):
        submit(session, built_in("d1", entry_name="mine"), "k2")
    assert submit(session, built_in("bgpo", "mc_samples: 8\n", entry_name="mine"), "k3").created


def test_a_track_that_is_not_registered_is_said(sqlite: Database) -> None:
    with sqlite.write() as session, pytest.raises(RegistryError, match="run `dare migrate`"):
        submit(session, built_in("bgpo"))


# --- reading --------------------------------------------------------------------------------------------------------


def texts(report: UploadReport) -> list[str]:
    assert report.submission is None
    return [problem.text for problem in report.problems]


def test_a_report_counts_what_the_button_will_do() -> None:
    report = read_upload("my_rule.py", MY_RULE.encode(), "clip_low: 0.05\n", tiny(), ["llada-tiny", "sdar-tiny"])
    submission = given(report)
    assert (report.train_runs, report.evaluate_runs, report.check_runs, report.runs) == (6, 6, 2, 12)
    assert (report.settings[0].name, report.settings[0].default, report.settings[0].value) == ("clip_low", 0.1, 0.05)
    assert (submission.name, submission.algorithm, submission.kind) == ("MyRule", "my-rule", "method")
    reference = read_builtin("untouched", None, tiny(), ["llada-tiny"])
    assert (reference.train_runs, reference.evaluate_runs) == (0, 3)


def test_all_that_is_wrong_comes_at_once() -> None:
    report = read_upload("my_rule.py", b"import os\n" + MY_RULE.encode(), "clip_loww: 1\n", tiny(), ["lada-tiny"])
    assert texts(report) == [
        "`my_rule.py` line 1: `import os` is not allowed. Entries may import torch, math, dataclasses, typing and "
        "dare. Entries run without a network.",
        "settings line 1: unknown hyperparameter `clip_loww`. Did you mean `clip_low`?",
        "Track tiny 1.0 has no backbone `lada-tiny`. Did you mean `llada-tiny`?",
    ]


def test_names_that_cannot_be() -> None:
    taken = read_upload("my_rule.py", MY_RULE.encode(), None, tiny(), ["llada-tiny"], name="CJ_GRPO")
    assert texts(taken) == ["`CJ_GRPO` is the name of a built-in algorithm. Choose another."]
    strange = read_upload("my_rule.py", MY_RULE.encode(), None, tiny(), ["llada-tiny"], name="<b>")
    assert texts(strange)[0].startswith("The name `<b>` is not possible.")


def test_a_closed_track_takes_nothing() -> None:
    closed = tiny().model_copy(update={"state": "closed"})
    assert texts(read_builtin("bgpo", None, closed, ["llada-tiny"])) == [
        "Track tiny 1.0 is closed. Submit to an open one."
    ]


def test_an_unknown_builtin_is_suggested() -> None:
    assert texts(read_builtin("bgop", None, tiny(), ["llada-tiny"])) == [
        "There is no built-in algorithm `bgop`. Did you mean `bgpo`?"
    ]
    assert texts(read_builtin("untouched", "a: 1\n", tiny(), ["llada-tiny"])) == [
        "The untouched backbone has no settings."
    ]


@pytest.mark.parametrize(("name", "cls"), [("dpo", "DPO"), ("vrpo", "VRPO")])
def test_a_track_without_preferences_refuses_what_trains_on_them(name: str, cls: str) -> None:
    assert texts(read_builtin(name, None, tiny(), ["llada-tiny"])) == [
        f"`{cls}` trains on preferences; track tiny 1.0 has none for llada-tiny."
    ]


def test_where_no_backbone_can_be_chosen_none_is_asked_for() -> None:
    assert texts(read_builtin("vrpo", None, tiny(), [])) == [
        "No backbone of track tiny 1.0 has preferences, which `VRPO` trains on."
    ]


def test_no_backbone_is_a_problem() -> None:
    assert texts(read_builtin("bgpo", None, tiny(), [])) == [
        "Choose a backbone. Track tiny 1.0 has: `llada-tiny`, `sdar-tiny`."
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("untouched", "reference"), ("sft", "baseline"), ("bgpo", "method"), ("d1", "method")],
)
def test_the_part_that_a_builtin_plays(name: str, kind: str) -> None:
    assert entries.kind_of(name) == kind


# --- afterwards -----------------------------------------------------------------------------------------------------


def test_cancelling_an_entry_ends_what_waits_and_asks_what_works(session: Session) -> None:
    done = submit(session, built_in("bgpo"))
    claimed = take(session)
    assert claimed is not None
    outcome = entries.cancel(session, LOCAL, done.entry_id)
    assert (outcome.at_once, outcome.asked, outcome.finished) == (5, 1, 0)
    assert outcome.sentence == "5 cancelled, 1 asked to stop."
    assert entries.cancel(session, LOCAL, done.entry_id).finished == 5
    with pytest.raises(entries.UnknownEntryError, match="there is no entry `nosuch`"):
        entries.cancel(session, LOCAL, "nosuch")


def test_cancelling_a_training_run_cancels_its_evaluation(session: Session) -> None:
    done = submit(session, built_in("bgpo"))
    train = runs(session, done.entry_id)[0]
    assert entries.cancel(session, LOCAL, train.id).at_once == 1
    session.expire_all()
    assert Counter(run.state for run in runs(session, done.entry_id)) == {"cancelled": 2, "queued": 2, "blocked": 2}


def test_withdrawing_keeps_results_and_says_why(session: Session) -> None:
    done = submit(session, built_in("bgpo"))
    work_off(session)
    entries.withdraw(session, LOCAL, done.entry_id, "wrong reward weights")
    assert status(session, done.entry_id) == "withdrawn"
    assert all(run.state == "succeeded" for run in runs(session, done.entry_id))
    assert session.execute(select(AuditLog.note)).scalar_one() == "wrong reward weights"
    with pytest.raises(entries.RefusedError, match="withdrawn already"):
        entries.withdraw(session, LOCAL, done.entry_id)


def test_a_failed_entry_can_be_asked_for_again(session: Session) -> None:
    first = submit(session, built_in("bgpo", "mc_samples: 4\n"))
    claimed = take(session)
    assert claimed is not None
    endings.fail(session, claimed.run_id, "diverged", actor=claimed.actor, token=claimed.token)
    session.expire_all()
    with pytest.raises(entries.RefusedError, match=r"is waiting; only a failed"):
        entries.retry(session, LOCAL, claimed.run_id, "again")
    work_off(session)
    session.expire_all()
    assert status(session, first.entry_id) == "partial"
    second = entries.retry(session, LOCAL, claimed.run_id, "again")
    entry = session.get_one(Entry, second.entry_id)
    assert (entry.rerun_of, entry.ordinal, entry.name) == (first.entry_id, 2, "bgpo")
    assert Counter(run.kind for run in runs(session, second.entry_id)) == {"train": 3, "evaluate": 3}
    assert entries.retry(session, LOCAL, claimed.run_id, "again") == entries.Submitted(
        second.entry_id, created=False, sentence=entries.retry(session, LOCAL, claimed.run_id, "again").sentence
    )


def test_an_upload_is_tried_again_from_its_stored_source(session: Session) -> None:
    first = submit(session, upload(name="narrow"))
    entries.cancel(session, LOCAL, first.entry_id)
    session.expire_all()
    second = entries.retry(session, LOCAL, first.entry_id, "again")
    assert second.created
    assert len(session.execute(select(AlgorithmVersion)).all()) == 1
    assert session.get_one(Entry, second.entry_id).name == "narrow"


@pytest.mark.parametrize(
    ("gate", "states", "expected"),
    [
        ("withdrawn", ["succeeded"], "withdrawn"),
        ("rejected", ["failed"], "rejected"),
        ("accepted", ["succeeded", "working", "queued"], "running"),
        ("accepted", ["succeeded", "queued"], "waiting"),
        ("validating", ["queued", "blocked"], "waiting"),
        ("accepted", ["succeeded", "succeeded"], "complete"),
        ("accepted", ["succeeded", "failed"], "partial"),
        ("accepted", ["failed", "cancelled"], "failed"),
    ],
)
def test_the_status_of_an_entry_is_computed(gate: str, states: list[str], expected: str) -> None:
    assert status_of(gate, states) == expected


def test_progress_is_kept_while_a_run_works(session: Session) -> None:
    submit(session, built_in("bgpo"))
    claimed = take(session)
    assert claimed is not None
    steps(session, claimed, 3)
    assert session.get_one(Run, claimed.run_id, populate_existing=True).step == 3
