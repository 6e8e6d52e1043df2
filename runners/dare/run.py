"""One run of one job directory: train, evaluate or check; resumable, and ended by exactly one `result.json`.

The result is written last, by rename. A run that is killed leaves none and can be started again in the same directory:
it continues from the last complete checkpoint or the last stored prediction. The checkpoint stays when the run has
ended: whoever ordered the run removes it once the result is safe.
"""

from __future__ import annotations

import errno
import logging
import math
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open

from dare.algorithm import AlgorithmError, load_algorithm
from dare.catalog import UnknownBackboneError, backbone_directory
from dare.checkpoint import commit, load_state, publish, save_state
from dare.data import DataError, PromptData
from dare.data.batches import prompt_rows
from dare.data.preparation import prepare
from dare.diary.alarms import DivergedError, Watch
from dare.diary.events import EventLog, Listener, before, device_seconds, numbers, read_events
from dare.diary.tensorboard import TensorBoard
from dare.evaluation import evaluate
from dare.evaluation.served import ServedError, evaluate_served
from dare.executor import AlgorithmFaultError, ContractError, Executor, MismatchError, Used
from dare.families.checkpoint_files import check_tensors
from dare.family import Backbone, UnknownFamilyError, load_family
from dare.gradients import NonFiniteLossError
from dare.job import Interrupted, artifact, machine, result_of, stop_on_signals, write_result
from dare.job import JobError as JobError
from dare.job import read_job as read_job
from dare.lora import Adapters, LoraError, load_adapter
from dare.objectives import GroupOfOneError
from dare.precision import PrecisionError
from dare.rewards.own import RewardError
from dare.rewards.weighted import load_reward
from dare.scoring import EvaluationError, ScoringError
from dare.scoring_run import evaluated_message, run_score
from dare.seeds import generator_for
from dare.spec import Cause, JobSpec, Result, Usage
from dare.tasks import Dialogue, MissingDataError, UnknownTaskError
from dare.tokenizer import TokenizerError
from dare.weights.hashes import weights_sha256
from dare.weights.headers import INDEX, CheckpointError, stored_weights
from dare.weights.merge import Probe, export, logits_on, probe_of
from dare.weights.model_card import Trained, weight_hashes, write_card

SAMPLE_EVERY = 5
PROBE_PROMPTS = 4

log = logging.getLogger(__name__)


class NoPolicyError(ValueError):
    """What a training left is not the backbone with other numbers."""


class BudgetTimeoutError(TimeoutError):
    """The wall-clock guard of the job was exceeded."""


@dataclass
class Clocks:
    """Seconds per clock, continued over restarts through the checkpoint's facts."""

    prepare: float = 0.0
    train: float = 0.0
    evaluate: float = 0.0
    overhead: float = 0.0
    device: float = 0.0
    _mark: float = field(default_factory=time.monotonic)
    _device_mark: float = field(default_factory=device_seconds)

    def lap(self, clock: str) -> None:
        """Book the time since the last lap."""
        now, device = time.monotonic(), device_seconds()
        setattr(self, clock, getattr(self, clock) + now - self._mark)
        self.device += device - self._device_mark
        self._mark, self._device_mark = now, device

    @property
    def wall(self) -> float:
        """All of it."""
        return self.prepare + self.train + self.evaluate + self.overhead

    def seconds(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {name: getattr(self, name) for name in ("prepare", "train", "evaluate", "overhead", "device")}


def run(directory: Path, listener: Listener | None = None, data: Path | None = None) -> Result:
    """Run the job of `directory` to its result. A finished directory answers with the result that it has.

    Raises JobError for a directory that is no job, KeyboardInterrupt when asked to stop; every other end is a Result.
    """
    job = read_job(directory)
    if job.kind == "score":
        return run_score(directory, listener, data)
    done = result_of(directory, job)
    if done is not None:
        return done
    torch.set_num_threads(job.threads)
    torch.use_deterministic_algorithms(True)
    board = TensorBoard(directory)
    events = EventLog(directory, board, *([listener] if listener is not None else []))
    clocks = Clocks()
    try:
        with stop_on_signals():
            result = _ended(job, lambda: _kinds()[job.kind](job, directory, events, clocks, data), clocks)
        events.stage("finish", result.message)
        write_result(directory, result)
    except Interrupted:
        raise KeyboardInterrupt from None
    finally:
        events.close()
        board.close()
    return result


def _kinds() -> dict[str, Callable[[JobSpec, Path, EventLog, Clocks, Path | None], Result]]:
    return {"train": _train, "evaluate": _evaluate, "check": _check}


def _ended(job: JobSpec, work: Callable[[], Result], clocks: Clocks) -> Result:
    """The result of the work, or the failure that its exception means. What is not listed here is a bug of ours."""
    submitted = job.train is not None and job.train.algorithm.source == "entry"
    theirs: Cause = "user_error" if submitted or job.kind == "check" else "internal"
    try:
        return work()
    except (AlgorithmFaultError, AlgorithmError) as error:
        if error.__cause__ is not None:  # for the log, which is where its author looks
            log.error("%s", error, exc_info=error.__cause__)
        cause, message = theirs, f"The algorithm failed: {error}."
    except RewardError as error:
        if error.__cause__ is not None:
            log.error("%s", error, exc_info=error.__cause__)
        cause, message = "user_error", f"The reward failed: {error}."
    except NoPolicyError as error:
        cause, message = "user_error", f"The training left no policy that can be evaluated: {error}."
    except (NonFiniteLossError, DivergedError) as error:
        cause, message = "diverged", f"Training diverged: {error}."
    except BudgetTimeoutError as error:
        cause, message = "timeout", str(error)
    except MemoryError:
        cause, message = "oom_host", "The run asked for more memory than there is. Use a smaller micro_batch."
    except (MissingDataError, DataError, EvaluationError, UnknownTaskError, MismatchError, TokenizerError) as error:
        cause, message = "internal", f"The job cannot be run here: {error}."
    except (
        ContractError,
        GroupOfOneError,
        LoraError,
        PrecisionError,
        UnknownBackboneError,
        UnknownFamilyError,
    ) as error:
        cause, message = "internal", f"The run stopped itself: {error}."
    except ScoringError as error:
        cause, message = "scoring", f"Scoring stopped: {error}."
    except ServedError as error:
        cause, message = error.cause, f"The evaluation stopped: {error}."
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        cause, message = "disk", "The disk is full. Free some space and retry; what was stored is kept."
    return Result(
        job=job.digest(),
        kind=job.kind,
        outcome="failed",
        cause=cause,
        message=message[:2000],
        usage=_usage(clocks, Used()),
        provenance=provenance(),
    )


def _train(job: JobSpec, directory: Path, events: EventLog, clocks: Clocks, data: Path | None) -> Result:
    assert job.train is not None
    spec, digest = job.train, job.digest()
    events.stage("prepare", "loading weights and data")
    algorithm = load_algorithm(spec.algorithm, directory / "entry" / "algorithm.py")
    backbone = load_backbone(job, backbone_directory(job.backbone.name))
    reward = load_reward(spec.reward, directory)
    prepared = prepare(spec.data, directory, spec.settings.overlap, data, events)
    executor = Executor(backbone, algorithm, prepared.data, spec.settings, spec.sampling, spec.budget, job.seed, reward)
    saved = load_state(directory, digest)
    watch = Watch(frozenset(spec.stop_on))
    if saved is not None:
        state, facts = saved
        executor.core.restore(state)
        executor.used = Used(**facts["used"])
        for name, seconds in facts["clocks"].items():
            setattr(clocks, name, getattr(clocks, name) + seconds)
        events.stage("prepare", f"resuming from step {executor.used.steps}")
        for past in before(read_events(directory), executor.used.steps + 1):
            if past.kind == "step":
                watch.look(past.step or 0, numbers(past))
    clocks.lap("prepare")
    if saved is None:
        events.stage("rehearse", "saving, loading and exporting once before it matters")
        if executor.core.adapters is None:
            rehearse(backbone, job, directory)
        else:
            rehearse_adapters(executor.core.adapters, backbone, job, directory, probe_of(backbone, _prompts(executor)))
        clocks.lap("overhead")
    events.stage("train")
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    while True:
        report = executor.step()
        clocks.lap("train")
        if report.finished:
            break
        first = first or report.metrics
        last = report.metrics
        used = executor.used
        for alarm in watch.look(used.steps, report.metrics):
            events.alarm(used.steps, alarm.name, alarm.sentence)
            if alarm.fatal:
                raise DivergedError(alarm.sentence)
        events.step(used.steps, report.expected_steps, report.metrics, used.gradient_forwards, clocks.device)
        if report.sample is not None and (used.steps % SAMPLE_EVERY == 0 or used.steps == 1):
            events.sample(used.steps, report.sample)
        if clocks.wall > spec.budget.wall_seconds:
            raise BudgetTimeoutError(
                f"The run took {clocks.wall:.0f} s; the guard of the track is {spec.budget.wall_seconds:.0f} s."
            )
        if used.steps % spec.checkpoint_every == 0:
            facts = {"used": asdict(used), "clocks": clocks.seconds()}
            save_state(directory, executor.core.state(), facts, digest)
            clocks.lap("overhead")
    used = executor.used
    entry = directory / "entry" / "algorithm.py"
    trained = Trained(
        job=job,
        usage=_usage(clocks, used),
        provenance=provenance(spec.settings.dtype) | computed_by(backbone) | prepared.provenance,
        form="full" if executor.core.adapters is None else "merged",
        entry=entry.read_bytes() if spec.algorithm.source == "entry" else None,
    )
    left = [] if executor.core.adapters is None else [_leave_adapter(executor.core.adapters, trained, directory)]
    left.append(_leave_model(executor, trained, directory))
    clocks.lap("overhead")
    moved = ""
    if used.updates and not used.moving_updates:
        moved = " No update had a gradient: the policy is the untrained one."
    if "reward" in last and "reward" in first:
        moved += f" Reward {first['reward']:.2f} → {last['reward']:.2f}."
    ended_by: Literal["complete", "budget"] = "budget" if used.steps < spec.budget.optimiser_steps else "complete"
    if ended_by == "budget":
        spent, limit = used.gradient_forwards, spec.budget.gradient_forwards
        moved += f" Scored at budget: {spent:g} of {limit:g} gradient-carrying forwards a completion are used up."
    return Result(
        job=digest,
        kind="train",
        outcome="succeeded",
        message=f"Trained {used.steps} steps in {clocks.wall:.0f} s.{moved}",
        ended_by=ended_by,
        usage=_usage(clocks, used),
        artifacts=tuple(
            artifact(directory, path) for folder in left for path in sorted(folder.rglob("*")) if path.is_file()
        ),
        metrics={name: value if math.isfinite(value) else None for name, value in (last | prepared.metrics).items()},
        provenance=dict(trained.provenance),
    )


def _evaluate(job: JobSpec, directory: Path, events: EventLog, clocks: Clocks, data: Path | None) -> Result:
    assert job.evaluate is not None
    events.stage("prepare", "loading weights")
    weights = _trained_policy(job, directory) if job.evaluate.trained else backbone_directory(job.backbone.name)
    if job.evaluate.through == "opencompass":  # the weights are loaded by the server, and not here as well
        if not job.evaluate.trained:
            verify_weights(job, weights)
        clocks.lap("prepare")
        done = evaluate_served(job, weights, directory, data, events)
    else:
        backbone = load_backbone(job, weights, verify=not job.evaluate.trained)
        clocks.lap("prepare")
        done = evaluate(job.evaluate, backbone, directory, job.seed, data, events, weights)
        done = replace(done, provenance=computed_by(backbone) | dict(done.provenance))
    clocks.lap("evaluate")
    usage = _usage(clocks, Used(forwards=done.usage.forwards, tokens_kept=done.usage.tokens_kept))
    paths = [*(directory / "predictions").glob("*.jsonl"), *(directory / "items").glob("*.jsonl")]
    return Result(
        job=job.digest(),
        kind="evaluate",
        outcome="succeeded",
        message=evaluated_message(done.found),
        scores=tuple(done.scores),
        usage=usage,
        artifacts=tuple(artifact(directory, path) for path in sorted(paths)),
        provenance=provenance(dtype_name(job)) | dict(done.provenance),
    )


def _trained_policy(job: JobSpec, directory: Path) -> Path:
    """The folder of a trained policy: tensors that its training left, and everything else from the backbone itself.

    A training runs code of its author. Its tokenizer, template and configuration are not its own to choose: they would
    change what the evaluation asks and what it reads, and not what was learned.
    """
    trained, backbone, policy = directory / "weights", backbone_directory(job.backbone.name), directory / "policy"
    if not trained.is_dir():
        raise EvaluationError(f"the job evaluates a trained policy, but {directory} has no weights folder")
    shutil.rmtree(policy, ignore_errors=True)  # of an earlier start
    policy.mkdir()
    for folder, tensors in ((backbone, False), (trained, True)):
        for file in sorted(folder.iterdir()):
            if file.is_file() and (file.suffix == ".safetensors" or file.name == INDEX) == tensors:
                (policy / file.name).symlink_to(file.resolve())
    try:
        stored = stored_weights(policy)
        check_tensors(load_family(job.backbone.family).outline(policy).model, stored, trained)
        for file in stored.files:
            _holds_numbers(file)
    except (CheckpointError, SafetensorError) as error:
        raise NoPolicyError(str(error)) from error
    return policy


def _holds_numbers(file: Path) -> None:
    """DivergedError for weights that are not finite: what they decode is no answer, and zero no score of theirs."""
    with safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118  # no mapping
            tensor = tensors.get_tensor(name)
            if tensor.is_floating_point() and not tensor.to(torch.float32).isfinite().all():
                raise DivergedError(f"the trained policy's {name} holds numbers that are not finite")


def _check(job: JobSpec, directory: Path, events: EventLog, clocks: Clocks, _data: Path | None) -> Result:
    from dare.check import contract  # the contract trains on tiny backbones; no other run needs it

    assert job.check is not None
    events.stage("prepare", "loading the tiny backbone")
    algorithm = load_algorithm(job.check.algorithm, directory / "entry" / "algorithm.py")
    backbone = load_backbone(job, backbone_directory(job.backbone.name))
    clocks.lap("prepare")
    events.stage("check")
    outcomes = []
    for outcome in contract(algorithm, backbone, job.seed):
        outcomes.append(outcome)
        events.progress(outcome.name, len(outcomes), outcome.of)
    clocks.lap("train")
    failed = [outcome for outcome in outcomes if not outcome.passed]
    return Result(
        job=job.digest(),
        kind="check",
        outcome="failed" if failed else "succeeded",
        cause="user_error" if failed else None,
        message=f"Check `{failed[0].name}`: {failed[0].sentence}" if failed else f"{len(outcomes)} checks passed.",
        usage=_usage(clocks, Used()),
        provenance=provenance() | computed_by(backbone),
    )


def load_backbone(job: JobSpec, directory: Path, verify: bool = True) -> Backbone:
    """The job's checkpoint in the dtype of its settings; weights that are not those of the job are refused."""
    if verify:
        verify_weights(job, directory)
    return load_family(job.backbone.family).load(directory, weights_dtype(job))


def verify_weights(job: JobSpec, directory: Path) -> None:
    """UnknownBackboneError for weights that are not those of the job."""
    try:
        actual = weights_sha256(directory)
    except CheckpointError as error:
        raise UnknownBackboneError(str(error)) from error
    if actual != job.backbone.weights_sha256:
        raise UnknownBackboneError(
            f"the weights of {job.backbone.name} hash to {actual[:12]}, the job was made for "
            f"{job.backbone.weights_sha256[:12]}"
        )


def weights_dtype(job: JobSpec) -> torch.dtype:
    """As the job says; float32 where it says nothing."""
    dtype: torch.dtype = getattr(torch, dtype_name(job))
    return dtype


def dtype_name(job: JobSpec) -> str:
    """The same by name."""
    if job.train is not None:
        return job.train.settings.dtype
    return job.evaluate.dtype if job.evaluate is not None else "float32"


def rehearse(backbone: Backbone, job: JobSpec, directory: Path) -> None:
    """Export and reload once, and compare logits on a prompt: a long run must not fail at its end."""
    with tempfile.TemporaryDirectory(dir=directory, prefix=".rehearsal-") as scratch:
        backbone.save(Path(scratch))
        again = load_family(job.backbone.family).load(Path(scratch), weights_dtype(job))
        here, there = _probe(backbone, job), _probe(again, job)
    if not torch.equal(here, there):
        raise ContractError("a policy that is saved and loaded again decodes differently")


def rehearse_adapters(adapters: Adapters, backbone: Backbone, job: JobSpec, directory: Path, probe: Probe) -> None:
    """The same with adapters that do something: merged and loaded, and saved and put on a fresh base."""
    family = load_family(job.backbone.family)
    with (
        tempfile.TemporaryDirectory(dir=directory, prefix=".rehearsal-") as scratch,
        adapters.perturbed(generator_for(job.seed, "rehearse")),
    ):
        merged, alone = Path(scratch) / "model", Path(scratch) / "adapter"
        export(adapters, backbone, probe, merged).check(logits_on(probe, family.load(merged)))
        adapters.save(alone, job.backbone)
        fresh = load_backbone(job, backbone_directory(job.backbone.name))
        load_adapter(fresh.model, alone, job.backbone)
        here, there = logits_on(probe, backbone), logits_on(probe, fresh)
    if not torch.equal(here, there):
        raise ContractError("adapters that are saved and loaded again give other logits")


def _leave_model(executor: Executor, trained: Trained, directory: Path) -> Path:
    """`model/`, which evaluation loads. A policy with adapters is merged, and loaded again before it counts."""
    scratch, family = publish(directory, "model"), trained.job.backbone.family
    adapters = executor.core.adapters
    if adapters is None:
        executor.backbone.save(scratch)
    else:
        probe = probe_of(executor.backbone, _prompts(executor))
        moved = executor.used.moving_updates > 0
        merged = export(adapters, executor.backbone, probe, scratch, moved)
        merged.check(logits_on(probe, load_family(family).load(scratch)), moved)
    write_card(scratch, trained, weight_hashes(scratch))
    return commit(scratch)


def _leave_adapter(adapters: Adapters, trained: Trained, directory: Path) -> Path:
    """`adapter/`, a thousandth of the size, for whoever has the base."""
    scratch = publish(directory, "adapter")
    adapters.save(scratch, trained.job.backbone)
    write_card(scratch, replace(trained, form="adapter"), weight_hashes(scratch))
    return commit(scratch)


def _prompts(executor: Executor) -> list[Dialogue]:
    """The first prompts of the run's own data."""
    if isinstance(executor.data, PromptData):
        return [item.prompt for item in executor.data.items[:PROBE_PROMPTS]]
    return [row.prompt for row in executor.data.rows[:PROBE_PROMPTS]]


@torch.no_grad()
def _probe(backbone: Backbone, job: JobSpec) -> torch.Tensor:
    assert job.train is not None
    prompt, length = prompt_rows(backbone, ["S" + "0" * 16, "C1 2 3=6"])
    prompts = [row[:n].tolist() for row, n in zip(prompt, length.tolist(), strict=True)]
    return backbone.sample(prompts, job.train.sampling, [generator_for(job.seed, "rehearse", i) for i in range(2)]).ids


def provenance(dtype: str = "float32") -> dict[str, str]:
    """Versions and machine: what must be equal for a bit-equal repetition."""
    import numpy
    import transformers

    return machine() | {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": numpy.__version__,
        "threads": str(torch.get_num_threads()),
        "dtype": dtype,
    }


def computed_by(backbone: Backbone) -> dict[str, str]:
    """What a loaded model computes on, and with which attention: of decoding too, where that is another one."""
    found = {"attention": backbone.attention, "device": next(backbone.model.parameters()).device.type}
    if backbone.decodes_with != backbone.attention:
        found["attention of decoding"] = backbone.decodes_with
    return found


def _usage(clocks: Clocks, used: Used) -> Usage:
    clocks.lap("overhead")
    return Usage(
        prepare_seconds=clocks.prepare,
        train_seconds=clocks.train,
        evaluate_seconds=clocks.evaluate,
        overhead_seconds=clocks.overhead,
        device_seconds=clocks.device,
        optimiser_steps=used.updates,
        gradient_forwards=used.gradient_forwards,
        forwards=used.forwards,
        tokens_decoded=used.tokens_decoded,
        tokens_kept=used.tokens_kept,
    )
