"""TensorBoard's files hold what the diary holds, every step once, however often the run was stopped."""

from __future__ import annotations

import os
import signal
import struct
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event as Message
from tensorboardX.record_writer import masked_crc32c
from tiny import train_job, write_job

from dare.diary.events import EventLog, numbers, read_events
from dare.diary.tensorboard import TensorBoard, as_markdown
from dare.run import run
from dare.spec import Event, Sample

SAMPLE = Sample(prompt="S0", tokens=("1", "`x`"), step_map=(1, 2), reward=0.5)


def messages(directory: Path) -> list[Message]:
    """Every message of the one file, with its checksums verified."""
    (file,) = (directory / "tensorboard").iterdir()
    assert "tfevents" in file.name
    data, found = file.read_bytes(), []
    while data:
        header, (size,) = data[:8], struct.unpack("<Q", data[:8])
        body = data[12 : 12 + size]
        assert struct.unpack("<II", data[8:12] + data[12 + size : 16 + size]) == (
            masked_crc32c(header),
            masked_crc32c(body),
        )
        found.append(Message.FromString(body))
        data = data[16 + size :]
    assert found[0].file_version == "brain.Event:2"
    return found[1:]


def curves(directory: Path) -> list[tuple[int, dict[str, float]]]:
    """(step, metrics) in the order of the file."""
    return [
        (m.step, {v.tag: v.simple_value for v in m.summary.value})
        for m in messages(directory)
        if not m.summary.value[0].HasField("metadata")
    ]


def texts(directory: Path) -> list[tuple[int, str, str]]:
    return [
        (m.step, v.tag.removesuffix("/text_summary"), v.tensor.string_val[0].decode())
        for m in messages(directory)
        for v in m.summary.value
        if v.HasField("metadata")
    ]


def attempt(directory: Path, steps: range, shift: float = 0.0) -> None:
    """What a start of the run writes: an alarm before its step, a sample behind it."""
    board = TensorBoard(directory)
    log = EventLog(directory, board)
    log.stage("prepare")
    log.alarm(0, "overlap", "every start says so")
    for step in steps:
        if step % 2 == 0:
            log.alarm(step, "kl", f"alarm {step + shift:g}")
        log.step(step, 9, {"reward": step + shift, "loss": float("nan")}, forwards=2.0 * step, device_seconds=0.5)
        log.sample(step, SAMPLE)
    log.close()
    board.close()


def test_a_run_leaves_every_metric_of_its_diary_and_its_samples(tmp_path: Path) -> None:
    run(write_job(tmp_path, train_job("llada", steps=2)))
    steps = [event for event in read_events(tmp_path) if event.kind == "step"]
    assert [step for step, _ in curves(tmp_path)] == [1, 2]
    for event, (_, values) in zip(steps, curves(tmp_path), strict=True):
        assert values == pytest.approx(numbers(event), rel=1e-6)
        assert {"reward", "loss", "gradient_norm", "cost/forwards"} <= set(values)
    assert [(step, tag) for step, tag, _ in texts(tmp_path)] == [(1, "sample")]


def test_an_evaluation_leaves_no_empty_folder(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    log = EventLog(tmp_path, board)
    log.stage("evaluate")
    log.progress("sudoku", 3, 10)
    log.close()
    board.close()
    assert not (tmp_path / "tensorboard").exists()


@pytest.mark.parametrize("resumed_from", [0, 1, 2, 3, 5])
def test_a_resumed_run_has_every_step_once_and_never_goes_back(resumed_from: int, tmp_path: Path) -> None:
    attempt(tmp_path, range(1, 6))
    attempt(tmp_path, range(resumed_from + 1, 8), shift=100)
    kept = [(step, {"reward": float(step)}) for step in range(1, resumed_from + 1)]
    again = [(step, {"reward": step + 100.0}) for step in range(resumed_from + 1, 8)]
    assert [(step, {"reward": values["reward"]}) for step, values in curves(tmp_path)] == [*kept, *again]
    assert all("loss" not in values for _, values in curves(tmp_path)), "a number that is not finite is a gap"
    alarms = [(step, words) for step, tag, words in texts(tmp_path) if tag == "alarm/kl"]
    assert alarms == [(s, f"alarm {s if s <= resumed_from else s + 100}") for s in (2, 4, 6)]
    assert [words for step, tag, words in texts(tmp_path) if tag == "alarm/overlap"] == ["every start says so"]
    assert [event.step for event in read_events(tmp_path) if event.kind == "step"] == list(range(1, 8))


def test_a_line_that_a_kill_tore_is_left_out(tmp_path: Path) -> None:
    attempt(tmp_path, range(1, 4))
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"at": 3, "kind": "st')
    attempt(tmp_path, range(3, 5))
    assert [step for step, _ in curves(tmp_path)] == [1, 2, 3, 4]


def test_a_killed_run_that_continues_gives_the_curves_of_one_that_was_left_alone(tmp_path: Path) -> None:
    job = train_job("sdar", steps=4, prompts_per_step=1, group_size=2)

    def stop(event: Event) -> None:
        if event.kind == "step" and event.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    run(write_job(tmp_path / "whole", job))
    with pytest.raises(KeyboardInterrupt):
        run(write_job(tmp_path / "halves", job), stop)
    assert [step for step, _ in curves(tmp_path / "halves")] == [1, 2, 3]
    run(tmp_path / "halves")

    def learned(directory: Path) -> list[tuple[int, dict[str, float]]]:
        return [(s, {n: v for n, v in values.items() if n != "cost/device_seconds"}) for s, values in curves(directory)]

    assert learned(tmp_path / "halves") == learned(tmp_path / "whole")


def test_a_sample_with_back_ticks_stays_in_its_fence() -> None:
    text = as_markdown(SAMPLE.model_copy(update={"tokens": ("````", "x")}))
    assert text.count("`````") == 4
    assert "reward 0.500" in text
