"""Reporting to Weights & Biases: offline for real where the package is installed, one sentence where it is not."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from tiny import train_job, write_job
from typer.testing import CliRunner

from dare.__main__ import app
from dare.diary.weights_and_biases import WeightsAndBiases, run_id
from dare.run import run


def test_without_the_package_there_is_one_sentence_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    words = ["train", "--algorithm", "d1", "--backbone", "sdar-tiny", "--out", str(tmp_path / "x"), "--wandb", "mine"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "--wandb needs the package wandb; install it with: pip install 'dare[wandb]'" in done.output
    assert not (tmp_path / "x").exists()


def test_a_run_keeps_its_id_and_other_runs_have_others(tmp_path: Path) -> None:
    first, second = train_job("sdar"), train_job("sdar", steps=4)
    ids = {run_id(tmp_path / folder, job) for folder in ("a", "b") for job in (first, second)}
    assert len(ids) == 4
    assert run_id(tmp_path / "a", first) == run_id(tmp_path / "b" / ".." / "a", first)


def test_a_run_is_kept_offline_with_its_metrics_and_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    job = train_job("sdar", steps=2, prompts_per_step=1, group_size=2)
    with WeightsAndBiases("mine", write_job(tmp_path, job), job) as listener:
        assert run(tmp_path, listener).outcome == "succeeded"
    (kept,) = (tmp_path / "wandb").glob("offline-run-*")
    (record,) = kept.glob("*.wandb")
    assert run_id(tmp_path, job) in record.name
    names = (b"gradient_norm", b"cost/forwards", b"learning_rate")
    end = time.monotonic() + 20
    while not all(name in record.read_bytes() for name in names) and time.monotonic() < end:
        time.sleep(0.1)  # its own process may still be writing
    assert all(name in record.read_bytes() for name in names)
    assert list(kept.rglob("sample_1_*.html"))
