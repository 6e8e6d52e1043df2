"""What goes into a job directory is right and read only; what comes out of it is believed only when it is right."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_runner import ITEMS, SHA, WEIGHTS, digest, files_of_evaluation, scores, write_result
from world import PROTOCOL, World, evaluate_job, train_job

from dare.spec import BackboneRef, JobSpec
from dare_platform.artifact_store import storage_key
from dare_platform.errors import JobDirectoryError, OutputError
from dare_platform.inside import plain_text, read_inside
from dare_platform.job_directory import Weight, directory_of, write_job_directory
from dare_platform.lease import Claim
from dare_platform.outputs import EVENT_LINE_BYTES, EventReader, Outputs, read_outputs, read_result
from dare_platform.settings import Settings

WORLD = World("", "", "", BackboneRef(name="b", family="llada", revision="r", weights_sha256="", tokenizer_sha256=""))
TOY_ITEMS = {"toy": ITEMS}


def claim_of(job: JobSpec, token: int = 1, source: str | None = None) -> Claim:
    return Claim("run1", token, token, token, "w", job, job.model_dump_json(), job.digest(), None, source)


@pytest.fixture
def home(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, database_url="")


# --- what goes in ------------------------------------------------------------------------------------------------


def test_a_train_run_gets_its_order_and_the_source_read_only(home: Settings) -> None:
    job = train_job(WORLD)
    directory = write_job_directory(home, claim_of(job, source="class Mine: ...\n"), ())
    assert directory == home.jobs / "run1" / "1"
    assert JobSpec.model_validate_json((directory / "job.json").read_text()) == job
    source = directory / "entry" / "algorithm.py"
    assert source.read_text() == "class Mine: ...\n"
    assert stat.S_IMODE(source.stat().st_mode) == 0o444
    assert stat.S_IMODE(source.parent.stat().st_mode) == 0o555


def test_a_builtin_algorithm_leaves_no_entry_folder(home: Settings) -> None:
    assert not (write_job_directory(home, claim_of(train_job(WORLD)), ()) / "entry").exists()


def test_weights_come_from_the_store_and_are_checked(home: Settings) -> None:
    right = Weight("shards/model.safetensors", hashlib.sha256(b"weights").hexdigest())
    stored = home.home / storage_key(right.sha256)
    stored.parent.mkdir(parents=True)
    stored.write_bytes(b"weights")
    directory = write_job_directory(home, claim_of(evaluate_job(WORLD)), (right,))
    assert (directory / "weights" / "shards" / "model.safetensors").read_bytes() == b"weights"
    stored.write_bytes(b"changed")
    with pytest.raises(JobDirectoryError, match="somebody changed it"):
        write_job_directory(home, claim_of(evaluate_job(WORLD), token=2), (right,))


def test_a_retried_train_run_gets_the_newest_whole_checkpoint(home: Settings) -> None:
    for token in (1, 2):
        checkpoint = directory_of(home, "run1", token) / "checkpoint"
        checkpoint.mkdir(parents=True)
        (checkpoint / "step").write_text(str(token))
    (checkpoint / "link").symlink_to("/etc/passwd")
    os.mkfifo(checkpoint / "pipe")
    unfinished = directory_of(home, "run1", 3) / "checkpoint.part"
    unfinished.mkdir(parents=True)
    directory = write_job_directory(home, claim_of(train_job(WORLD), token=5), ())
    assert (directory / "checkpoint" / "step").read_text() == "2"
    assert [path.name for path in (directory / "checkpoint").iterdir()] == ["step"]


def test_a_checkpoint_that_was_being_replaced_is_found_under_its_old_name(home: Settings) -> None:
    earlier = directory_of(home, "run1", 1) / ".checkpoint.old"
    earlier.mkdir(parents=True)
    (earlier / "step").write_text("1")
    directory = write_job_directory(home, claim_of(train_job(WORLD), token=2), ())
    assert (directory / "checkpoint" / "step").read_text() == "1"


def test_a_retried_evaluation_goes_on_from_the_answers_that_are_there(home: Settings) -> None:
    for token, text in ((1, "old"), (2, "newer")):
        predictions = directory_of(home, "run1", token) / "predictions"
        predictions.mkdir(parents=True)
        (predictions / "sudoku.jsonl").write_text(text)
    directory = write_job_directory(home, claim_of(evaluate_job(WORLD, trained=False), token=3), ())
    assert (directory / "predictions" / "sudoku.jsonl").read_text() == "newer"
    assert not (directory / "checkpoint").exists()


# --- events ------------------------------------------------------------------------------------------------------


def step(number: int) -> bytes:
    return json.dumps({"at": 1.0, "kind": "step", "step": number, "metrics": {"reward": 0.5}}).encode() + b"\n"


def test_events_are_read_as_they_grow_and_half_lines_wait(tmp_path: Path) -> None:
    reader = EventReader(tmp_path)
    assert reader.read() == []
    events = tmp_path / "events.jsonl"
    events.write_bytes(step(1) + step(2)[:10])
    assert [event.step for event in reader.read()] == [1]
    assert reader.read() == []
    with events.open("ab") as file:
        file.write(step(2)[10:])
    assert [event.step for event in reader.read()] == [2]
    assert reader.refused == 0


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\n",
        b"not json\n",
        b"[" * 100_000 + b"\n",
        b'{"at": 1, "kind": "step", "step": -1}\n',
        b'{"at": 1, "kind": "step", "step": 99999999999999999999}\n',
        b'{"at": NaN, "kind": "step"}\n',
        b'{"at": 1, "kind": "step", "surprise": 1}\n',
        b"x" * (2 * EVENT_LINE_BYTES) + b"\n",
    ],
)
def test_a_bad_line_is_left_out_and_the_next_is_read(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "events.jsonl").write_bytes(step(1) + line + step(2))
    reader = EventReader(tmp_path)
    assert [event.step for event in reader.read()] == [1, 2]
    assert reader.refused == 1


def test_an_endless_line_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"x" * 5_000_000 + b"\n" + step(7))
    reader = EventReader(tmp_path)
    found = [event.step for _ in range(8) for event in reader.read()]
    assert found == [7]
    assert len(reader._half) <= EVENT_LINE_BYTES


@given(st.lists(st.binary(max_size=80), max_size=20), st.randoms(use_true_random=False))
def test_no_bytes_make_the_reader_fail(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], random: Any
) -> None:
    directory = tmp_path_factory.mktemp("events")
    (directory / "events.jsonl").write_bytes(b"\n".join([*lines, b"", step(3)]))
    assert EventReader(directory).read()[-1].step == 3


def test_a_pipe_instead_of_events_does_not_stop_the_platform(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    assert EventReader(tmp_path).read() == []


# --- results -----------------------------------------------------------------------------------------------------


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    """A job directory after a right evaluation."""
    job = evaluate_job(WORLD)
    (tmp_path / "job.json").write_text(job.model_dump_json())
    for path, text in files_of_evaluation().items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    write_result(tmp_path, scores=scores(json.loads(job.model_dump_json())["evaluate"]["protocols"][0]))
    return tmp_path


def read_all(directory: Path) -> Outputs:
    job = evaluate_job(WORLD)
    return read_outputs(directory, job, read_result(directory, job), TOY_ITEMS)


def test_a_right_evaluation_is_accepted(evaluated: Path) -> None:
    outputs = read_all(evaluated)
    assert len(outputs.predictions["toy"]) == len(outputs.outcomes["toy"]) == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "result.json is not valid"),
        ('{"job": "', "result.json is not valid"),
        ("[" * 100_000, "result.json is not valid"),
        ("{}", "result.json is not valid: job"),
        ("x" * (5 * 1024**2), "is larger than"),
    ],
)
def test_a_wrong_result_is_refused_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(OutputError, match=words):
        read_result(tmp_path, evaluate_job(WORLD))


def test_a_shortened_protocol_id_is_understood(evaluated: Path) -> None:
    change_score(protocol=PROTOCOL.digest()[:16])(evaluated)
    read_all(evaluated)


@pytest.mark.parametrize("usage", [{"train_seconds": -1}, {"tokens_kept": 10**30}])
def test_an_impossible_cost_is_refused(evaluated: Path, usage: dict[str, float]) -> None:
    write_result(evaluated, usage=usage)
    with pytest.raises(OutputError, match="which no run can use"):
        read_result(evaluated, evaluate_job(WORLD))


def test_a_missing_result_and_that_of_another_job_are_refused(evaluated: Path) -> None:
    with pytest.raises(OutputError, match="answers another job"):
        read_result(evaluated, evaluate_job(WORLD, seed=1))
    (evaluated / "result.json").unlink()
    with pytest.raises(OutputError, match=r"the file result\.json is missing"):
        read_result(evaluated, evaluate_job(WORLD))


def change_line(name: str, number: int, **changes: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        file = directory / name
        lines = file.read_text().splitlines(keepends=True)
        lines[number] = json.dumps(json.loads(lines[number]) | changes) + "\n"
        file.write_text("".join(lines))

    return change


def change_score(**changes: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        result = json.loads((directory / "result.json").read_text())
        result["scores"][0] |= changes
        (directory / "result.json").write_text(json.dumps(result))

    return change


def drop_line(name: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        lines = (directory / name).read_text().splitlines(keepends=True)
        (directory / name).write_text("".join(lines[:-1]))

    return change


def double_line(name: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        lines = (directory / name).read_text().splitlines(keepends=True)
        (directory / name).write_text("".join([*lines, lines[0]]))

    return change


PREDICTIONS, OUTCOMES = "predictions/toy.jsonl", "items/toy.jsonl"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (change_line(PREDICTIONS, 0, item="unknown"), "which was not asked"),
        (change_line(PREDICTIONS, 0, sample=7), "which was not asked"),
        (change_line(PREDICTIONS, 0, tokens=2**40), "out of range"),
        (change_line(PREDICTIONS, 2, item="a", sample=0), "lacks item 'b'"),
        (change_line(OUTCOMES, 0, scorer="mine"), "scored by 'mine'"),
        (change_line(OUTCOMES, 0, score=2.0), "outside"),
        (change_line(OUTCOMES, 0, status="great"), "line 1"),
        (change_line(OUTCOMES, 0, score=0.0), "its items say 0.25"),
        (drop_line(PREDICTIONS), "lacks item 'd', sample 1"),
        (drop_line(OUTCOMES), "lacks item 'd', sample 1"),
        (double_line(PREDICTIONS), "more than the 8 lines"),
        (change_score(value=0.9), "says solved of 'toy'"),
        (change_score(value=float("nan")), "result.json is not valid"),
        (change_score(protocol=SHA), "was not asked"),
        (change_score(protocol=""), "was not asked"),
        (change_score(metric="luck"), "known: solved, reward"),
        (change_score(task="other"), "no greedy score|was not asked"),
        (lambda d: (d / PREDICTIONS).unlink(), "is missing"),
        (lambda d: (d / PREDICTIONS).write_bytes(b"x" * 2_000_000), "a line of more than"),
    ],
)
def test_outputs_that_contradict_the_task_or_each_other_are_refused(
    evaluated: Path, change: Callable[[Path], None], words: str
) -> None:
    change(evaluated)
    with pytest.raises(OutputError, match=words):
        read_all(evaluated)


def trained(directory: Path, path: str = "model/model.safetensors", content: bytes = WEIGHTS, **changes: Any) -> None:
    job = train_job(WORLD)
    (directory / "job.json").write_text(job.model_dump_json())
    artifact = {"path": path, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content), **changes}
    write_result(directory, artifacts=[artifact])


def test_a_model_that_is_what_it_says_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(WEIGHTS)
    trained(tmp_path)
    job = train_job(WORLD)
    outputs = read_outputs(tmp_path, job, read_result(tmp_path, job), {})
    assert [artifact.path for artifact in outputs.artifacts] == ["model/model.safetensors"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"path": "../../secret"}, "does not lie in the job directory"),
        ({"path": "/etc/passwd"}, "does not lie in the job directory"),
        ({"path": "model/away/config.json"}, "cannot be read"),
        ({"path": "model/link.json"}, "cannot be read"),
        ({"path": "model/folder.json"}, "is not a plain file"),
        ({"path": "model/pipe.json"}, "is not a plain file"),
        ({"path": "adapter/README.md"}, "left no file under model/"),
        ({"path": "model"}, "is not taken"),
        ({"path": "notes.txt"}, "a train run leaves adapter and model"),
        ({"sha256": SHA}, "is not the file that result.json declares"),
        ({"bytes": 2}, "not the 2 that are declared"),
    ],
)
def test_artifacts_cannot_point_elsewhere_or_lie(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    (tmp_path / "model" / "folder.json").mkdir(parents=True)
    (tmp_path / "adapter").mkdir()
    for file in ("model/model.safetensors", "adapter/README.md", "notes.txt"):
        (tmp_path / file).write_bytes(WEIGHTS)
    (tmp_path / "model" / "away").symlink_to("/etc")
    (tmp_path / "model" / "link.json").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "model" / "pipe.json")
    trained(tmp_path, **changes)
    job = train_job(WORLD)
    with pytest.raises(OutputError, match=words):
        read_outputs(tmp_path, job, read_result(tmp_path, job), {})


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_inside(tmp_path, "file", 5) == b"12345"
    with pytest.raises(OutputError, match="larger than 4 bytes"):
        read_inside(tmp_path, "file", 4)


@given(st.text(st.characters(exclude_categories=())))
def test_plain_text_fits_both_databases(text: str) -> None:
    assert "\x00" not in plain_text(text)
    plain_text(text).encode("utf-8")


def test_the_toy_runner_hashes_jobs_as_the_border_does() -> None:
    job = train_job(WORLD)
    assert digest(json.loads(job.model_dump_json())) == job.digest()
