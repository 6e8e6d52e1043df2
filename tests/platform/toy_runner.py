"""A small real program that behaves as a runner, or misbehaves: `python toy_runner.py MODE DIR`."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SHA = hashlib.sha256(b"x").hexdigest()
HEADER = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + b"weights!"
"""A whole file of safetensors, with one tensor."""
ITEMS = ("a", "b", "c", "d")
SAMPLES = (0, 1)
USAGE = {
    "train_seconds": 1.0,
    "evaluate_seconds": 1.0,
    "device_seconds": 1.0,
    "optimiser_steps": 3,
    "gradient_forwards": 6.0,
    "forwards": 9.0,
}
PROVENANCE = dict.fromkeys(
    ("dare", "source_revision", "python", "processor", "system", "torch", "transformers", "numpy", "threads", "dtype",
     "attention", "device"),
    "toy",
)  # fmt: skip


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def emit(directory: Path, **event: Any) -> None:
    with (directory / "events.jsonl").open("a") as file:
        file.write(json.dumps({"at": time.time(), **event}) + "\n")


def write_result(directory: Path, **changes: Any) -> None:
    job = json.loads((directory / "job.json").read_text())
    result = {
        "job": digest(job),
        "kind": job["kind"],
        "outcome": "succeeded",
        "message": "Done.",
        "usage": USAGE,
        "provenance": PROVENANCE,
        **changes,
    }
    (directory / "result.part").write_text(json.dumps(result))
    (directory / "result.part").rename(directory / "result.json")


def replace(current: Path, fresh: Path) -> None:
    """As the real runner does: at every moment there is one whole checkpoint, under one of two names."""
    previous = current.with_name(f".{current.name}.old")
    shutil.rmtree(previous, ignore_errors=True)
    if current.exists():
        current.rename(previous)
    fresh.rename(current)
    shutil.rmtree(previous, ignore_errors=True)


def train(directory: Path, steps: int, pause: float) -> None:
    """Three steps unless told otherwise; goes on from a checkpoint."""
    checkpoint = directory / "checkpoint" / "step"
    first = int(checkpoint.read_text()) if checkpoint.exists() else 0
    emit(directory, kind="stage", stage="train", detail=f"from step {first}")
    for step in range(first, steps):
        emit(
            directory,
            kind="step",
            step=step,
            of=steps,
            metrics={"reward": step / steps, "kl": 0.0, "nothing": None},
            forwards=2.0 * step,
            device_seconds=0.1 * step,
        )
        fresh = directory / "checkpoint.part"
        fresh.mkdir(exist_ok=True)
        (fresh / "step").write_text(str(step + 1))
        replace(directory / "checkpoint", fresh)
        say(f"step {step}")
        time.sleep(pause)
    model = directory / "model" / "model.safetensors"
    model.parent.mkdir()
    model.write_bytes(WEIGHTS)
    artifact = {
        "path": "model/model.safetensors",
        "sha256": hashlib.sha256(WEIGHTS).hexdigest(),
        "bytes": len(WEIGHTS),
    }
    write_result(directory, artifacts=[artifact])


def files_of_evaluation() -> dict[str, str]:
    """The right files for the toy task: items a and b solved, c and d not, in both samples."""
    predictions, items = [], []
    for item in ITEMS:
        for sample in SAMPLES:
            solved = float(item in "ab")
            predictions.append(
                {
                    "item": item,
                    "sample": sample,
                    "prompt_sha256": SHA,
                    "output": f"answer {item}{sample}",
                    "tokens": 4,
                    "nfe": 4,
                    "truncated": False,
                }
            )
            items.append(
                {
                    "item": item,
                    "sample": sample,
                    "score": solved,
                    "reward": solved,
                    "status": "ok",
                    "answer": "1",
                    "scorer": "dare-1",
                }
            )
    return {
        "predictions/toy.jsonl": "".join(json.dumps(line) + "\n" for line in predictions),
        "items/toy.jsonl": "".join(json.dumps(line) + "\n" for line in items),
    }


def scores(protocol: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "task": "toy",
            "metric": metric,
            "decoding": decoding,
            "value": 0.5,
            "standard_error": 0.25,
            "n": 4,
            "scorer": "dare-1",
            "protocol": digest(protocol),
        }
        for metric, decoding in (("solved", "greedy"), ("reward", "sampled"))
    ]


def evaluate(directory: Path, job: dict[str, Any]) -> None:
    if job["evaluate"]["trained"]:
        assert (directory / "weights" / "model.safetensors").read_bytes() == WEIGHTS
    emit(directory, kind="progress", stage="evaluate", step=0, of=4)
    for path, text in files_of_evaluation().items():
        file = directory / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    write_result(directory, scores=scores(job["evaluate"]["protocols"][0]))


def work(directory: Path, steps: int = 3, pause: float = 0.0) -> None:
    job = json.loads((directory / "job.json").read_text())
    if job["kind"] == "train":
        train(directory, steps, pause)
    elif job["kind"] == "evaluate":
        evaluate(directory, job)
    else:
        write_result(directory, message="All checks passed.")


def misbehave(mode: str, directory: Path) -> None:
    if mode == "raise":
        raise RuntimeError("the entry is wrong")
    if mode == "exit0":
        os._exit(0)
    if mode == "segfault":
        ctypes.string_at(0)  # a signal to oneself means nothing to the first process of a namespace
    if mode == "sleep":
        time.sleep(3600)
    if mode == "spin":
        while True:
            pass
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say("deaf")
        time.sleep(3600)
    if mode == "allocate":
        held = []
        while True:
            held.append(bytearray(32 * 1024**2))
            time.sleep(0.02)
    if mode == "flood":
        sys.stdout.write("the first words\n")
        while True:
            sys.stdout.write("x" * 4096)
    if mode == "one-line":
        os.write(1, b"\xff\xfe" + b"y" * 1000)  # no newline, not UTF-8
        work(directory)
    if mode == "forks":
        for _ in range(60):
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        time.sleep(3600)
    if mode == "fills-disk":
        with (directory / "big").open("wb") as file:
            while True:
                file.write(b"z" * 1024**2)
                file.flush()
                time.sleep(0.005)
    if mode == "escapes":  # a grandchild with a session of its own outlives its parent
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
        work(directory)
    if mode == "half-result":
        (directory / "result.json").write_text('{"job": "')
    if mode == "other-job":
        write_result(directory, job=SHA)
    if mode == "no-model":
        write_result(directory)
    if mode == "fails":
        write_result(directory, outcome="failed", cause="diverged", message="The loss became NaN at step 3.")
    if mode == "environment":
        say(json.dumps(dict(os.environ)))
    if mode == "trespass":
        for target in (directory.parents[2] / "trespassed", Path("/dev/shm/dare-trespassed")):
            try:
                target.write_text("I was here")
                say(f"wrote {target}")
            except OSError as error:
                say(str(error))


if __name__ == "__main__":
    mode, where = sys.argv[-2], Path(sys.argv[-1])
    if mode.startswith("good"):
        numbers = mode.split(":")[1:]
        work(where, int(numbers[0]) if numbers else 3, float(numbers[1]) if numbers else 0.0)
    else:
        misbehave(mode, where)
