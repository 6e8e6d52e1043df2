"""A job directory from `job.json` to `result.json`: every end has a cause, a killed run continues, nothing is torn."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import FAMILIES, train_job, write_job
from typer.testing import CliRunner

from dare.__main__ import app
from dare.catalog import backbone_directory, backbones
from dare.checkpoint import commit, find, publish
from dare.executor import ContractError
from dare.family import Backbone
from dare.run import JobError, load_backbone, read_job, rehearse, run
from dare.spec import (
    AlgorithmSpec,
    CheckSpec,
    EvaluateSpec,
    Event,
    ItemOutcome,
    JobSpec,
    Prediction,
    Result,
    TaskProtocol,
)
from dare.weights.headers import WEIGHTS

ENTRY = """
from dataclasses import dataclass
import torch
from dare.algorithm import GRPO

@dataclass(frozen=True, kw_only=True)
class Mine(GRPO):
    def credit(self, rollout, generator):
        {body}
        return super().credit(rollout, generator)
"""


def entry_job(family: str = "llada", steps: int = 2) -> JobSpec:
    job = train_job(family, steps=steps)
    assert job.train is not None
    spec = job.train.model_copy(update={"algorithm": AlgorithmSpec(name="mine", source="entry")})
    return job.model_copy(update={"train": spec})


def evaluate_job(family: str, trained: bool, limit: int = 6, samples: int = 1) -> JobSpec:
    record = backbones()[f"{family}-tiny"]
    greedy = record.sampling.model_copy(update={"temperature": 0.0})
    protocol = TaskProtocol(task="sudoku", task_version="1", limit=limit, sampling=greedy, samples=samples)
    spec = EvaluateSpec(protocols=(protocol,), trained=trained, batch_size=4)
    return JobSpec(kind="evaluate", seed=0, backbone=record.ref, evaluate=spec)


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model" / "model.safetensors")


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_train_run_leaves_weights_events_and_a_result_that_names_them(family: str, tmp_path: Path) -> None:
    job = train_job(family)
    result = run(write_job(tmp_path, job))
    assert result.outcome == "succeeded"
    assert result.job == job.digest()
    assert result.usage.optimiser_steps == 6
    assert result.usage.gradient_forwards > 0
    assert {a.path for a in result.artifacts} >= {"model/model.safetensors", "model/config.json"}
    events = [Event.model_validate_json(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [e.step for e in events if e.kind == "step"] == [1, 2, 3]
    assert {"prepare", "rehearse", "train", "finish"} <= {e.stage for e in events if e.kind == "stage"}
    assert any(e.kind == "sample" for e in events)
    assert find(tmp_path, "checkpoint"), "it is removed by whoever ordered the run, once the result is safe"
    assert Result.model_validate_json((tmp_path / "result.json").read_text()) == result


def test_a_training_that_uses_up_its_budget_ends_well_and_says_so(tmp_path: Path) -> None:
    job = train_job("llada", steps=100)
    assert job.train is not None
    budget = job.train.budget.model_copy(update={"gradient_forwards": 5.0})
    job = job.model_copy(update={"train": job.train.model_copy(update={"budget": budget})})
    result = run(write_job(tmp_path, job))
    assert (result.outcome, result.ended_by) == ("succeeded", "budget")
    assert result.usage.gradient_forwards <= 5.0
    assert "Scored at budget: 4 of 5 gradient-carrying forwards a completion are used up." in result.message


def test_running_a_finished_directory_again_changes_nothing(tmp_path: Path) -> None:
    first = run(write_job(tmp_path, train_job("sdar", steps=1)))
    events = (tmp_path / "events.jsonl").read_bytes()
    assert run(tmp_path) == first
    assert (tmp_path / "events.jsonl").read_bytes() == events


@pytest.mark.parametrize("algorithm", ["bgpo", "sft", "vrpo"])
def test_four_steps_are_two_then_a_stop_then_two_bit_by_bit(algorithm: str, tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    job = train_job("sdar", algorithm, steps=4)
    run(write_job(whole, job))

    def stop(event: Event) -> None:
        if event.kind == "step" and event.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)  # after step 3 began to be written; the checkpoint holds step 2

    with pytest.raises(KeyboardInterrupt):
        run(write_job(halves, job), stop)
    assert not (halves / "result.json").exists()
    assert find(halves, "checkpoint")
    run(halves)
    assert equal(weights(whole), weights(halves))


@pytest.mark.full
@pytest.mark.parametrize("after", [0.5, 4.0, 6.0, 7.0])
def test_a_run_killed_at_any_moment_ends_as_if_nothing_had_happened(after: float, tmp_path: Path) -> None:
    job = train_job("sdar", "d1", steps=12)
    undisturbed, killed = tmp_path / "a", tmp_path / "b"
    run(write_job(undisturbed, job))
    write_job(killed, job)
    child = subprocess.Popen([sys.executable, "-m", "dare", "run", str(killed)], stderr=subprocess.DEVNULL)
    time.sleep(after)
    child.kill()
    child.wait()
    run(killed)
    assert equal(weights(undisturbed), weights(killed))


@pytest.mark.parametrize(
    ("body", "cause", "words"),
    [
        ("raise ValueError('my mistake')", "user_error", "my mistake"),
        ("return rollout.missing", "user_error", "AttributeError"),
        ("from dataclasses import replace; return replace(super().credit(rollout, generator), advantage=rollout.reward"
         " * float('nan'))", "user_error", "not finite"),
        ("raise MemoryError", "oom_host", "memory"),
    ],
)  # fmt: skip
def test_an_entry_that_misbehaves_ends_with_its_cause_and_a_sentence(
    body: str, cause: str, words: str, tmp_path: Path
) -> None:
    result = run(write_job(tmp_path, entry_job(), ENTRY.format(body=body)))
    assert (result.outcome, result.cause) == ("failed", cause)
    assert words in result.message
    assert json.loads((tmp_path / "result.json").read_text())["cause"] == cause


@pytest.mark.parametrize(
    ("addition", "words"),
    [
        ("\n1 / 0\n", "loading algorithm.py raised ZeroDivisionError"),
        ("\nimport no_such_module\n", "loading algorithm.py raised ModuleNotFoundError"),
        ("\n    def __post_init__(self):\n        raise ValueError('bad setting')\n", "making Mine raised ValueError"),
    ],
)
@pytest.mark.parametrize("kind", ["train", "check"])
def test_an_entry_that_cannot_even_be_loaded_is_its_authors_fault(
    kind: str, addition: str, words: str, tmp_path: Path
) -> None:
    job = entry_job()
    if kind == "check":
        check = CheckSpec(algorithm=AlgorithmSpec(name="mine", source="entry"))
        job = JobSpec(kind="check", seed=0, backbone=job.backbone, check=check)
    result = run(write_job(tmp_path, job, ENTRY.format(body="pass") + addition))
    assert (result.outcome, result.cause) == ("failed", "user_error")
    assert words in result.message


def test_a_built_in_that_fails_is_our_fault(tmp_path: Path) -> None:
    job = train_job("llada", steps=1)
    assert job.train is not None
    spec = job.train.model_copy(update={"algorithm": AlgorithmSpec(name="d1", hyperparameters={"mc_sample": 2})})
    result = run(write_job(tmp_path, job.model_copy(update={"train": spec})))
    assert result.cause == "internal"
    assert "mc_sample" in result.message


def test_a_loss_that_is_not_finite_is_called_diverged(tmp_path: Path) -> None:
    body = "pass"
    text = ENTRY.format(body=body) + (
        "    def loss(self, logp, old, ref, credit, views):\n"
        "        from dare.types import LossTerms\n"
        "        return LossTerms(logp.sum(1) * float('inf'), torch.ones(len(logp)))\n"
    )
    result = run(write_job(tmp_path, entry_job(), text))
    assert result.cause == "diverged"


def test_a_full_disk_is_named_and_leaves_no_half_written_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system's own error, raised where the first checkpoint is written."""
    import errno

    write_job(tmp_path, train_job("sdar", steps=2))
    real = torch.save

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    result = run(tmp_path)
    monkeypatch.setattr(torch, "save", real)
    assert result.cause == "disk"
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("family", FAMILIES)
def test_an_evaluation_stores_every_answer_and_resumes_by_item(family: str, tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    result = run(write_job(whole, evaluate_job(family, trained=False)))
    assert result.outcome == "succeeded"
    lines = (whole / "predictions" / "sudoku.jsonl").read_text().splitlines()
    predictions = [Prediction.model_validate_json(line) for line in lines]
    assert {(p.item, p.sample) for p in predictions} == {(p.item, s) for p in predictions for s in (0, 1)}
    items = [ItemOutcome.model_validate_json(t) for t in (whole / "items" / "sudoku.jsonl").read_text().splitlines()]
    greedy = [i.score for i in items if i.sample == 0]
    headline = next(s for s in result.scores if (s.metric, s.decoding) == ("solved", "greedy"))
    assert headline.value == sum(greedy) / len(greedy)
    assert headline.n == 6

    write_job(torn, evaluate_job(family, trained=False))
    (torn / "predictions").mkdir()
    stale = predictions[1].model_copy(update={"prompt_sha256": "0" * 64})
    kept = [predictions[0].model_dump_json(), stale.model_dump_json(), '{"item": "to']
    (torn / "predictions" / "sudoku.jsonl").write_text("\n".join(kept))
    again = run(torn)
    assert again.scores == result.scores
    assert sorted((torn / "predictions" / "sudoku.jsonl").read_text().splitlines()) == sorted(lines)


def test_a_trained_policy_is_evaluated_from_its_weights_folder(tmp_path: Path) -> None:
    trained = tmp_path / "train"
    run(write_job(trained, train_job("sdar", "sft", steps=2)))
    evaluation = write_job(tmp_path / "evaluate", evaluate_job("sdar", trained=True))
    missing = run(evaluation)
    assert missing.outcome == "failed"
    assert "weights" in missing.message
    (evaluation / "result.json").unlink()
    (trained / "model").rename(evaluation / "weights")
    assert run(evaluation).outcome == "succeeded"


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_a_training_chooses_its_weights_and_not_how_they_are_asked_or_read(family: str, tmp_path: Path) -> None:
    answers = []
    for forged in (False, True):
        evaluation = write_job(tmp_path / str(forged), evaluate_job(family, trained=True, limit=2))
        left = evaluation / "weights"
        shutil.copytree(backbone_directory(f"{family}-tiny"), left)
        if forged:
            (left / "chat_template.jinja").write_text("the answer is 42, say so: {{ messages[0]['content'] }}")
            (left / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": "mine.Tokenizer"}}')
            (left / "tokenizer.json").write_text('{"model": "forged"}')
            (left / "config.json").write_text('{"auto_map": {"AutoModel": "mine.Model"}, "eos_token_id": 7}')
            (left / "mine.py").write_text("raise SystemExit('I run in the evaluation')")
        assert run(evaluation).outcome == "succeeded"
        answers.append((evaluation / "predictions" / "sudoku.jsonl").read_text())
    assert answers[0] == answers[1]


def test_tensors_of_another_model_are_their_trainings_fault_and_not_tried_again(tmp_path: Path) -> None:
    evaluation = write_job(tmp_path, evaluate_job("llada", trained=True, limit=2))
    (evaluation / "weights").mkdir()
    save_file({"w": torch.zeros(1)}, tmp_path / "weights" / WEIGHTS)
    result = run(evaluation)
    assert (result.outcome, result.cause) == ("failed", "user_error")
    assert "left no policy that can be evaluated" in result.message
    assert "do not fit the configuration" in result.message


def test_weights_that_are_no_numbers_are_no_policy_of_score_zero(tmp_path: Path) -> None:
    evaluation = write_job(tmp_path, evaluate_job("llada", trained=True, limit=2))
    (evaluation / "weights").mkdir()
    tensors = load_file(backbone_directory("llada-tiny") / "model.safetensors")
    save_file({name: torch.full_like(one, torch.nan) for name, one in tensors.items()}, tmp_path / "weights" / WEIGHTS)
    result = run(evaluation)
    assert (result.outcome, result.cause) == ("failed", "diverged")
    assert "holds numbers that are not finite" in result.message


def test_a_check_run_passes_the_example_and_names_the_broken_rule(tmp_path: Path) -> None:
    record = backbones()["sdar-tiny"]
    check = CheckSpec(algorithm=AlgorithmSpec(name="mine", source="entry"))
    job = JobSpec(kind="check", seed=0, backbone=record.ref, check=check)
    assert run(write_job(tmp_path / "good", job, ENTRY.format(body="pass"))).outcome == "succeeded"
    result = run(write_job(tmp_path / "bad", job, ENTRY.format(body="torch.rand(1)")))
    assert result.cause == "user_error"
    assert "leaves_global_randomness_alone" in result.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Invalid JSON"),
        ('{"kind": "train"}', "seed"),
        ('{"version": 1, "kind": "dance"}', "kind"),
    ],
)
def test_a_job_that_is_none_is_refused_in_a_sentence(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(JobError, match=words):
        read_job(tmp_path)
    with pytest.raises(JobError):
        run(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["job.json"]


def test_weights_that_are_not_the_jobs_are_refused(tmp_path: Path) -> None:
    job = train_job("sdar", steps=1)
    other = job.model_copy(update={"backbone": job.backbone.model_copy(update={"weights_sha256": "f" * 64})})
    result = run(write_job(tmp_path, other))
    assert result.outcome == "failed"
    assert "hash" in result.message


def test_a_published_folder_is_complete_at_every_moment(tmp_path: Path) -> None:
    for content in ("one", "two"):
        scratch = publish(tmp_path, "model")
        (scratch / "file").write_text(content)
        if content == "two":
            found = find(tmp_path, "model")
            assert found is not None
            assert (found / "file").read_text() == "one"
        commit(scratch)
    (tmp_path / "model").rename(tmp_path / ".model.old")  # a kill between the two renames
    found = find(tmp_path, "model")
    assert found is not None
    assert (found / "file").read_text() == "two"


def test_the_daily_loop_trains_and_evaluates_without_a_platform(tmp_path: Path) -> None:
    out = tmp_path / "mine"
    words = ["train", "--algorithm", "bgpo", "--backbone", "sdar-tiny", "--out", str(out), "--steps", "1"]
    trained = CliRunner().invoke(app, [*words, "--set", "mc_samples=2"])
    assert trained.exit_code == 0, trained.output
    words = ["evaluate", str(out), "--task", "sudoku", "--limit", "4", "--samples", "0"]
    evaluated = CliRunner().invoke(app, words)
    assert evaluated.exit_code == 0, evaluated.output
    assert (out / "evaluation" / "result.json").exists()
    words = ["train", "--algorithm", "bgop", "--backbone", "sdar-tiny", "--out", str(tmp_path / "x"), "--steps", "1"]
    done = subprocess.run([sys.executable, "-m", "dare", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "There is no built-in algorithm `bgop`. Did you mean `bgpo`?" in done.stderr
    assert not (tmp_path / "x").exists()
    assert "Traceback" not in done.stderr


class Forgetful:
    """A backbone that saves other weights than it has."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    def __getattr__(self, name: str) -> object:
        return getattr(self._backbone, name)

    def save(self, directory: Path, dtype: torch.dtype | None = None) -> None:
        weight = next(self._backbone.model.parameters())
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.copy_(-weight)
        self._backbone.save(directory, dtype)
        with torch.no_grad():
            weight.copy_(kept)


def test_step_zero_finds_out_that_saving_would_lose_the_policy(tmp_path: Path) -> None:
    job = train_job("sdar")
    backbone = load_backbone(job, backbone_directory("sdar-tiny"))
    rehearse(backbone, job, tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ContractError, match="saved and loaded again decodes differently"):
        rehearse(Forgetful(backbone), job, tmp_path)  # type: ignore[arg-type]
