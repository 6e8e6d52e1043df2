"""What a run leaves behind may be made to hurt whoever reads it: it is refused in a sentence, at once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from toy_runner import ITEMS, PROVENANCE, SHA, USAGE, WEIGHTS, files_of_evaluation, scores, work, write_result
from world import World, add_train_run, add_worker, build, evaluate_job, train_job

from dare.spec import BackboneRef, JobSpec
from dare_platform import cleaning, trees
from dare_platform.database import Database
from dare_platform.errors import OutputError
from dare_platform.ingest import ingest
from dare_platform.job_directory import directory_of, write_job_directory
from dare_platform.lease import Claim, claim
from dare_platform.models import MetricPoint, Prediction, Result, ScoreItem
from dare_platform.outputs import EVENT_LINE_BYTES, POINTS, EventReader, read_outputs, read_result
from dare_platform.results import ProcessReport, finish, store_artifacts
from dare_platform.settings import MIB, Limits, Settings
from dare_platform.states import move
from dare_platform.supervisor import disk_verdict

WORLD = World("", "", "", BackboneRef(name="b", family="llada", revision="r", weights_sha256="", tokenizer_sha256=""))
TRAIN, EVALUATE = train_job(WORLD), evaluate_job(WORLD)
GIVEN: dict[str, Any] = {
    "kind": "train", "outcome": "succeeded", "message": "Done.", "usage": USAGE, "provenance": PROVENANCE,
}  # fmt: skip
MODEL = "model/model.safetensors"


def said(directory: Path, text: str | bytes) -> None:
    (directory / "result.json").write_bytes(text.encode() if isinstance(text, str) else text)


def answer(**changes: Any) -> str:
    return json.dumps({**GIVEN, "job": TRAIN.digest(), **changes})


def linked(directory: Path) -> None:
    (directory / "elsewhere.json").write_text(answer())
    (directory / "result.json").symlink_to("elsewhere.json")


RESULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "huge": (lambda d: said(d, answer(message="x" * 5 * MIB)), "larger than 4194304 bytes"),
    "without end": (lambda d: os.truncate(os.open(d / "result.json", os.O_CREAT | os.O_RDWR), 2**40), "larger than"),
    "deep": (lambda d: said(d, '{"metrics":' + "[" * 1_000_000 + "]" * 1_000_000 + "}"), "not valid"),
    "wide": (lambda d: said(d, answer(metrics={str(n): [n] for n in range(50_000)})), "not valid"),
    "not a number": (
        lambda d: said(d, answer(usage={"train_seconds": float("nan")})),
        "should be a finite number",
    ),
    "infinite": (
        lambda d: said(d, answer(usage={"forwards": float("inf")})),
        "should be a finite number",
    ),
    "a negative cost": (lambda d: said(d, answer(usage={"device_seconds": -1e9})), "which no run can use"),
    "a number of a thousand digits": (lambda d: said(d, answer(usage={"optimiser_steps": 10**4000})), "no run can use"),
    "a link": (linked, "cannot be read"),
    "a pipe": (lambda d: os.mkfifo(d / "result.json"), "not a plain file"),
    "a folder": (lambda d: (d / "result.json").mkdir(), "not a plain file"),
    "for another run": (lambda d: said(d, answer(job=EVALUATE.digest())), "answers another job"),
    "of another kind": (lambda d: said(d, answer(kind="evaluate")), "answers another job"),
    "with a key of its own": (lambda d: said(d, answer(rank=1)), "rank: Extra inputs are not permitted"),
    "with a speech": (lambda d: said(d, answer(message="vote for me " * 1000)), "2000 are taken"),
    "with half a character": (lambda d: said(d, answer().replace("Done.", "\\ud800")), "not valid"),
    "not UTF-8": (lambda d: said(d, answer().encode().replace(b"Done.", b"\xff\xfe")), "not valid"),
    "nothing": (lambda d: said(d, ""), "not valid"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_hostile_result_is_refused_at_once(name: str, tmp_path: Path) -> None:
    write, words = RESULTS[name]
    write(tmp_path)
    started = time.thread_time()
    with pytest.raises(OutputError, match=words) as refused:
        read_result(tmp_path, TRAIN)
    assert time.thread_time() - started < 1
    assert len(str(refused.value)) < 400


# --- files that a training leaves -----------------------------------------------------------------------------------


def tensors(header: bytes | dict[str, Any], data: bytes = b"weights!") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


def declared(directory: Path, path: str, content: bytes, **changes: Any) -> None:
    file = directory / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    said(directory, answer(artifacts=[{"path": path, "sha256": sha256, "bytes": len(content), **changes}]))


CHECKPOINTS: dict[str, tuple[bytes, str]] = {
    "a pickle by that name": (b"\x80\x04\x95\x1e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94", "no safetensors file"),
    "a header of 2^63 bytes": ((2**63).to_bytes(8, "little") + b"{}", "no safetensors file"),
    "a header longer than the file": (b"\xff\x00\x00\x00\x00\x00\x00\x00{}", "cut off inside its header"),
    "a giant header": (tensors(b'{"__metadata__":{"x":"' + b"x" * 17 * MIB + b'"}}', b""), "header of"),
    "a deep header": (tensors(b'{"w":' + b"[" * 200_000 + b"]" * 200_000 + b"}"), "no JSON"),
    "a header that is a list": (tensors(b"[]"), "no JSON object"),
    "a name twice": (tensors(b'{"w":1,"w":2}'), "twice"),
    "overlapping tensors": (tensors({**tensor(), "v": tensor()["w"]}), "is damaged"),
    "a gap between tensors": (tensors(tensor(data_offsets=[1, 9]), b"weights!!"), "is damaged"),
    "bytes behind the last": (tensors(tensor(), b"weights!and a program"), "cut off or damaged"),
    "a size that lies": (tensors(tensor(shape=[200])), "is damaged"),
    "a size of 2^80": (tensors(tensor(shape=[2**40, 2**40])), "is damaged"),
    "an offset before the file": (tensors(tensor(data_offsets=[-8, 0])), "makes no sense"),
    "a thousand dimensions": (tensors(tensor(shape=[1] * 1000)), "makes no sense"),
    "numbers that take hours to multiply": (tensors(tensor(shape=[10**4000 + 1] * 500)), "makes no sense"),
    "a shape of truths": (tensors(tensor(shape=[True, 2])), "makes no sense"),
    "a dtype of its own": (tensors(tensor(dtype="PICKLE")), "has dtype 'PICKLE'"),
    "a dtype that is a list": (tensors(tensor(dtype=["F32"])), "has dtype"),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_that_is_no_file_of_tensors_is_refused_at_once(name: str, tmp_path: Path) -> None:
    content, words = CHECKPOINTS[name]
    declared(tmp_path, MODEL, content)
    started = time.thread_time()
    with pytest.raises(OutputError, match=words) as refused:
        read_outputs(tmp_path, TRAIN, read_result(tmp_path, TRAIN), {})
    assert time.thread_time() - started < 1
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "path",
    [
        "model/pytorch_model.bin",
        "model/optimizer.pt",
        "model/modeling_mine.py",
        "model/lib.so",
        "model/.safetensors/x.pkl",
        "items/sudoku.jsonl",
        "predictions/sudoku.jsonl",
        "model/\x1b[2J.json",
        "model/" + "x" * 300 + ".json",
    ],
)
def test_a_training_leaves_tensors_and_texts_and_nothing_that_somebody_would_run(path: str, tmp_path: Path) -> None:
    said(tmp_path, answer(artifacts=[{"path": path, "sha256": SHA, "bytes": 1}]))
    with pytest.raises(OutputError, match="not taken"):
        read_outputs(tmp_path, TRAIN, read_result(tmp_path, TRAIN), {})


def test_a_file_of_a_terabyte_without_content_is_refused_before_it_is_read(tmp_path: Path) -> None:
    declared(tmp_path, MODEL, WEIGHTS, bytes=2**40)
    os.truncate(tmp_path / MODEL, 2**40)
    with pytest.raises(OutputError, match="artifacts of 1048576 MiB; 4096 MiB are allowed"):
        read_outputs(tmp_path, TRAIN, read_result(tmp_path, TRAIN), {})
    declared(tmp_path, MODEL, WEIGHTS)
    os.truncate(tmp_path / MODEL, 2**40)
    with pytest.raises(OutputError, match=f"has 1099511627776 bytes, not the {len(WEIGHTS)} that are declared"):
        read_outputs(tmp_path, TRAIN, read_result(tmp_path, TRAIN), {})


def test_a_second_name_for_somebody_elses_file_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(WEIGHTS)
    directory = tmp_path / "job"
    declared(directory, MODEL, WEIGHTS)
    (directory / MODEL).unlink()
    os.link(secret, directory / MODEL)
    with pytest.raises(OutputError, match="has a second name elsewhere"):
        read_outputs(directory, TRAIN, read_result(directory, TRAIN), {})


def test_what_was_hashed_is_what_is_stored_or_nothing_is(settings: Settings, tmp_path: Path) -> None:
    directory = tmp_path / "job"
    declared(directory, MODEL, WEIGHTS)
    outputs = read_outputs(directory, TRAIN, read_result(directory, TRAIN), {})
    (directory / MODEL).write_bytes(WEIGHTS[::-1])  # a process that survived the run swaps it now
    with pytest.raises(OutputError, match="another file than a moment ago"):
        store_artifacts(settings, directory, outputs.artifacts)
    (directory / MODEL).unlink()
    (directory / MODEL).symlink_to("/etc/passwd")
    with pytest.raises(OutputError, match="cannot be read"):
        store_artifacts(settings, directory, outputs.artifacts)
    assert [path for path in settings.artifacts.rglob("*") if path.is_file()] == []


def test_a_file_that_is_still_open_for_writing_cannot_be_changed_in_the_store(
    settings: Settings, tmp_path: Path
) -> None:
    directory = tmp_path / "job"
    declared(directory, MODEL, WEIGHTS)
    outputs = read_outputs(directory, TRAIN, read_result(directory, TRAIN), {})
    with (directory / MODEL).open("r+b") as kept:
        store_artifacts(settings, directory, outputs.artifacts)
        kept.write(b"poison")
    (stored,) = (path for path in settings.artifacts.rglob("*") if path.is_file())
    assert stored.read_bytes() == WEIGHTS


def test_a_file_that_is_swapped_while_it_is_read_never_gets_past_its_hash(settings: Settings, tmp_path: Path) -> None:
    directory = tmp_path / "job"
    good, bad = WEIGHTS, WEIGHTS[:-8] + b"poison!!"
    declared(directory, MODEL, good)
    stop = threading.Event()

    def swap() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            fresh = directory / f"model/fresh{turn}"
            fresh.write_bytes(bad if turn % 2 else good)
            fresh.rename(directory / MODEL)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(200):
            try:
                outputs = read_outputs(directory, TRAIN, read_result(directory, TRAIN), {})
                store_artifacts(settings, directory, outputs.artifacts)
            except OutputError:
                continue
            shutil.rmtree(settings.artifacts / hashlib.sha256(good).hexdigest()[:2])
    finally:
        stop.set()
        swapper.join()
    assert all(path.read_bytes() == good for path in settings.artifacts.rglob("*") if path.is_file())


# --- numbers that are not a training's to give ----------------------------------------------------------------------


def test_no_number_of_a_training_reaches_the_board(database: Database, settings: Settings) -> None:
    with database.write() as session:
        world = build(session)
        add_train_run(session, world)
        held = claim(session, add_worker(session), 60)
        assert held is not None
        for state in ("preparing", "working", "finalizing"):
            assert move(session, held.run_id, state, actor="t", token=held.token)
    directory = write_job_directory(settings, held, ())
    work(directory)
    for path, content in files_of_evaluation().items():  # as an evaluation would leave them, and all of them right
        (directory / path).parent.mkdir()
        (directory / path).write_text(content.replace('"score": 0.0', '"score": 1.0'))
    honest = json.loads((directory / "result.json").read_text())
    write_result(directory, artifacts=honest["artifacts"], metrics={"reward": 1.0, "solved": 1.0})
    outputs = read_outputs(directory, held.job, read_result(directory, held.job), {})
    assert (outputs.outcomes, outputs.predictions) == ({}, {})
    with database.write() as session:
        assert finish(session, held.run_id, held.token, outputs, ProcessReport(exit_code=0), actor="t") == "succeeded"
        for table in (Result, ScoreItem, Prediction):
            assert session.execute(select(func.count()).select_from(table)).scalar_one() == 0
    forged = scores(json.loads(evaluate_job(world).model_dump_json())["evaluate"]["protocols"][0])
    write_result(directory, artifacts=honest["artifacts"], scores=forged)
    with pytest.raises(OutputError, match="under a protocol or scorer that was not asked"):
        read_outputs(directory, held.job, read_result(directory, held.job), {})


def test_a_score_that_is_no_number_is_not_the_mean_of_anything(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(EVALUATE.model_dump_json())
    for path, content in files_of_evaluation().items():
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(content)
    given = scores(json.loads(EVALUATE.model_dump_json())["evaluate"]["protocols"][0])
    given[0]["value"] = float("nan")
    write_result(tmp_path, scores=given)
    with pytest.raises(OutputError, match="value: Input should be a finite number"):
        read_outputs(tmp_path, EVALUATE, read_result(tmp_path, EVALUATE), {"toy": ITEMS})


def test_a_curve_without_end_is_cut_and_a_step_is_told_once(database: Database, settings: Settings) -> None:
    with database.write() as session:
        add_train_run(session, build(session))
        held = claim(session, add_worker(session), 60)
        assert held is not None
        for state in ("preparing", "working"):
            assert move(session, held.run_id, state, actor="t", token=held.token)
    directory = write_job_directory(settings, held, ())

    def line(step: int, **metrics: float) -> str:
        return json.dumps({"at": 1.0, "kind": "step", "step": step, "metrics": metrics}) + "\n"

    reader = EventReader(directory)
    forged = line(1, reward=0.25) + line(1, reward=1.0) + line(-1, reward=1.0) + line(2**40, reward=1.0)
    (directory / "events.jsonl").write_text(forged + "not an event\n" + "x" * (EVENT_LINE_BYTES + 10) + "\n")
    with database.write() as session:
        assert ingest(session, held.run_id, held.token, reader.read(), "", actor="t")
        points = session.execute(select(MetricPoint.step, MetricPoint.value)).all()
    assert [tuple(point) for point in points] == [(1, 0.25)]
    assert reader.refused == 4
    reader.points = POINTS - 1
    with (directory / "events.jsonl").open("a") as events:
        events.write(line(2, reward=0.5) + line(3, reward=0.5))
    assert [event.step for event in reader.read()] == [2]


# --- trees that cannot be walked ------------------------------------------------------------------------------------

_DIG = """import os
for _ in range({depth}): os.mkdir("d" * 100); os.chdir("d" * 100)
open("bottom", "wb").write(bytes({size}))"""


def dig(directory: Path, depth: int = 1100, size: int = 0) -> None:
    """Folders deeper than any path is long, as a program makes them that walks down step by step."""
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-I", "-S", "-c", _DIG.format(depth=depth, size=size)], cwd=directory, check=True)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder of its own: pytest removes its own with a function that such a tree breaks."""
    folder = Path(tempfile.mkdtemp(prefix="dare-deep-"))
    yield folder
    trees.remove(folder)


@pytest.fixture
def deep(scratch: Path) -> Path:
    dig(scratch / "deep")
    return scratch / "deep"


def test_a_tree_deeper_than_any_path_is_removed(deep: Path, scratch: Path) -> None:
    (scratch / "kept").write_text("not ours")
    (deep / "link").symlink_to(scratch)
    first = deep / ("d" * 100)
    os.mkfifo(first / "pipe")
    (first / "link").symlink_to(scratch / "kept")
    (first / ("d" * 100)).chmod(0)
    trees.remove(deep)
    assert [path.name for path in scratch.iterdir()] == ["kept"]


def test_a_tree_that_hides_its_size_breaks_the_limit(deep: Path) -> None:
    verdict = disk_verdict(deep, Limits(free_disk_bytes=1))
    assert verdict is not None
    assert verdict.cause == "limit"
    assert "cannot be measured" in verdict.sentence


def test_a_million_empty_files_break_the_limit_though_they_take_no_space(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / str(number)).touch()
    assert disk_verdict(tmp_path, Limits(directory_files=300, free_disk_bytes=1)) is None
    verdict = disk_verdict(tmp_path, Limits(directory_files=299, free_disk_bytes=1))
    assert verdict is not None
    assert verdict.sentence == "The run made more than 299 files and folders, its limit."


def claimed(job: JobSpec, token: int) -> Claim:
    return Claim("run1", token, token, token, "w", job, job.model_dump_json(), job.digest(), None, None)


def test_a_checkpoint_that_cannot_be_copied_is_left_where_it_is(scratch: Path) -> None:
    settings = replace(Settings(home=scratch, database_url=""), limits=Limits(directory_bytes=MIB, directory_files=100))
    hostile = directory_of(settings, "run1", 1) / "checkpoint"
    dig(hostile)
    for number in range(101):
        (directory_of(settings, "run1", 2) / "checkpoint").mkdir(parents=True, exist_ok=True)
        (directory_of(settings, "run1", 2) / "checkpoint" / str(number)).touch()
    sparse = directory_of(settings, "run1", 3) / "checkpoint" / "step"
    sparse.parent.mkdir(parents=True)
    sparse.touch()
    os.truncate(sparse, 2**40)
    directory = write_job_directory(settings, claimed(TRAIN, 4), ())
    assert not (directory / "checkpoint").exists()
    assert not (directory / "checkpoint.part").exists()


def test_a_tree_deeper_than_any_path_is_surveyed_and_cleaned_away(database: Database, scratch: Path) -> None:
    settings = Settings(home=scratch, database_url="")
    with database.write() as session:
        run = add_train_run(session, build(session))
        assert move(session, run.id, "cancelled", actor="t")
    dig(directory_of(settings, run.id, 1), size=4096)
    with database.read() as session:
        report = cleaning.survey(session, settings)
    assert report.removable == (run.id,)
    cleaning.remove(settings, report)
    assert list(settings.jobs.iterdir()) == []
