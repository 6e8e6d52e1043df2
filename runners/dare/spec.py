"""What crosses the border between platform and runner: the job, its limits, its events and its result.

Everything here is frozen, refuses unknown keys and non-finite numbers, and imports neither torch nor SQL.
A job directory holds `job.json` (a `JobSpec`), for train runs of a submitted algorithm `entry/algorithm.py`,
for evaluate runs of a trained policy `weights/`; the runner appends to `events.jsonl` (`Event`, one a line)
and writes `result.json` (`Result`) last, by rename.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

HyperparameterValue = bool | int | float | str | None
Hyperparameters = dict[str, HyperparameterValue]

RunKind = Literal["check", "train", "evaluate"]
Cause = Literal[
    "user_error",  # the entry raised, ended the process, or its settings failed late
    "diverged",  # NaN, infinity or a collapse rule
    "budget_exhausted",  # the hard guard; the normal end of a budget is success
    "timeout",
    "oom_host",
    "oom_gpu",
    "limit",  # the entry exceeded its own disk, log, output or process limit
    "image",
    "gpu_fault",
    "disk",  # the host is full
    "lost_worker",
    "scoring",
    "dependency",
    "internal",
]


class Frozen(BaseModel):
    """Base of everything that crosses the border."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal content, equal hash, whatever the order of keys."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()


class AlgorithmSpec(Frozen):
    """Which algorithm with which hyperparameters. `source="entry"` loads `entry/algorithm.py` of the job directory."""

    name: str
    source: Literal["builtin", "entry"] = "builtin"
    hyperparameters: Hyperparameters = {}


class SamplingConfig(Frozen):
    """How a completion is decoded; part of the evaluation protocol, and the behaviour policy of every rollout."""

    gen_length: Annotated[int, Field(gt=0)]
    """Tokens of the generation window."""
    block_length: Annotated[int, Field(gt=0)]
    """Tokens decoded together. Block families require their own block size; masked ones a divisor of `gen_length`."""
    steps_per_block: Annotated[int, Field(gt=0)]
    """Denoising forwards per block. With a `threshold`, an upper bound."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """0 is argmax. Confidence is always that of the untempered distribution."""
    remasking: Literal["low_confidence", "random", "sequential"] = "low_confidence"
    """Which masked positions of the block are committed first."""
    threshold: Annotated[float, Field(gt=0, le=1)] | None = None
    """Commit every masked position whose confidence exceeds it, at least the step's quota."""

    @model_validator(mode="after")
    def _steps_fit_the_block(self) -> Self:
        if self.steps_per_block > self.block_length:
            raise ValueError(
                f"steps_per_block is {self.steps_per_block} but a block has {self.block_length} tokens: "
                "a step without a token to commit does nothing"
            )
        return self


class Budget(Frozen):
    """When training ends. The first limit reached ends it normally: "scored at budget"."""

    optimiser_steps: Annotated[int, Field(gt=0)]
    """Upper bound on rollout batches (RL) or minibatch updates (offline)."""
    gradient_forwards: Annotated[float, Field(gt=0)] | None = None
    """Gradient-carrying forwards of one completion, summed over the run. No step starts that would exceed it."""
    wall_seconds: Annotated[float, Field(gt=0)]
    """A guard, not the budget: exceeding it fails the run with cause `timeout`."""


class TrainSettings(Frozen):
    """What the track holds fixed while training. An entry may set only the fields that the track leaves open."""

    learning_rate: Annotated[float, Field(gt=0)]
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    gradient_clip: Annotated[float, Field(gt=0)] = 1.0
    prompts_per_step: Annotated[int, Field(gt=0)] = 8
    """Prompts of one rollout batch; rows of one update for demonstrations."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Completions per prompt. Advantages need at least two."""
    inner_epochs: Annotated[int, Field(gt=0)] = 1
    """Passes over one rollout batch (mu)."""
    minibatches: Annotated[int, Field(gt=0)] = 1
    """Optimiser steps per pass; groups are never split."""
    micro_batch: Annotated[int, Field(gt=0)] = 128
    """Views per forward pass. Never changes the gradient."""
    score_temperature: bool = False
    """Score with the rollout temperature instead of 1."""


class TrainSpec(Frozen):
    """One training run."""

    algorithm: AlgorithmSpec
    data: str
    """`task:<name>` for a task's training split, or `file:<path>` of a JSONL file, relative to the job directory."""
    settings: TrainSettings
    sampling: SamplingConfig
    budget: Budget
    checkpoint_every: Annotated[int, Field(gt=0)] = 10


class TaskProtocol(Frozen):
    """How one task is put to a policy: everything that moves a score. Its digest is the protocol id."""

    task: str
    task_version: str
    split: str = "test"
    items_sha256: str | None = None
    """Hash of the item list; None until the track is frozen against data that is not generated."""
    limit: Annotated[int, Field(gt=0)] | None = None
    """First n items, for quick looks only; never ranked."""
    sampling: SamplingConfig
    """Greedy decoding of the headline score."""
    samples: Annotated[int, Field(ge=0)] = 0
    """Further completions per item at `sample_temperature`; 0 for greedy only."""
    sample_temperature: Annotated[float, Field(gt=0)] = 1.0
    sample_steps_per_block: Annotated[int, Field(gt=0)] | None = None
    """Denoising steps of the sampled completions, when they differ from the greedy ones (the rollout's, usually)."""
    scorer: str = "dare-1"


class EvaluateSpec(Frozen):
    """One evaluation run over all tasks of a track. `trained` says that `weights/` holds the policy."""

    protocols: tuple[TaskProtocol, ...]
    trained: bool
    batch_size: Annotated[int, Field(gt=0)] = 128


class CheckSpec(Frozen):
    """The algorithm contract on a tiny backbone, at intake."""

    algorithm: AlgorithmSpec


class BackboneRef(Frozen):
    """A checkpoint by name and content."""

    name: str
    family: str
    revision: str
    weights_sha256: str
    tokenizer_sha256: str


class JobSpec(Frozen):
    """The whole order for one run. Its digest names the work: same digest, same result on the same machine kind."""

    version: Literal[1] = 1
    kind: RunKind
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    backbone: BackboneRef
    train: TrainSpec | None = None
    evaluate: EvaluateSpec | None = None
    check: CheckSpec | None = None
    threads: Annotated[int, Field(gt=0)] = 1

    @model_validator(mode="after")
    def _exactly_the_part_of_its_kind(self) -> Self:
        given = [name for name in ("train", "evaluate", "check") if getattr(self, name) is not None]
        if given != [self.kind]:
            raise ValueError(f"a job of kind {self.kind!r} needs exactly the part {self.kind!r}; given: {given}")
        return self


class Event(Frozen):
    """One line of `events.jsonl`. `at` is the runner's wall clock and never decides anything."""

    at: float
    kind: Literal["stage", "step", "progress", "alarm", "sample"]
    stage: str | None = None
    """`prepare`, `rehearse`, `train`, `evaluate` or `finish`."""
    detail: str | None = None
    step: int | None = None
    of: int | None = None
    """Total steps (kind `step`) or items (kind `progress`), where known."""
    metrics: dict[str, float | None] = {}
    """Kind `step`. None is a number that was not finite."""
    forwards: float | None = None
    """Gradient-carrying forwards per completion since the start of the run."""
    device_seconds: float | None = None
    sample: Sample | None = None


class Sample(Frozen):
    """One rollout to look at: the text, its reward, and when each token was committed."""

    prompt: str
    tokens: tuple[str, ...]
    step_map: tuple[int, ...]
    reward: float


class Score(Frozen):
    """One task's number. `standard_error` is over items, and says nothing about seeds."""

    task: str
    metric: str
    """`solved`: share of items right. `reward`: mean shaped reward."""
    decoding: Literal["greedy", "sampled"]
    value: float
    standard_error: float | None
    n: int
    n_no_answer: int = 0
    n_truncated: int = 0
    scorer: str
    protocol: str


class Usage(Frozen):
    """What the run cost, by clock. Device seconds are CPU seconds on the cpu device."""

    prepare_seconds: float = 0.0
    train_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    overhead_seconds: float = 0.0
    device_seconds: float = 0.0
    optimiser_steps: int = 0
    gradient_forwards: float = 0.0
    """Gradient-carrying forwards per completion, summed over the run."""
    forwards: float = 0.0
    """All network forwards of one sequence, with or without gradient."""
    tokens_decoded: int = 0
    tokens_kept: int = 0
    energy_joules: float | None = None


class Artifact(Frozen):
    """A file that the run leaves behind, relative to the job directory."""

    path: str
    sha256: str
    bytes: int


class ItemOutcome(Frozen):
    """One line of `items/<task>.jsonl`: one item, one completion, one scorer. Sample 0 is the greedy one."""

    item: str
    sample: int
    score: float
    """1 solved, 0 not."""
    reward: float
    """Shaped reward in [0, 1]."""
    status: Literal["ok", "no_answer", "truncated", "error"]
    answer: str | None
    scorer: str


class Prediction(Frozen):
    """One line of `predictions/<task>.jsonl`: what was generated, before any scorer saw it."""

    item: str
    sample: int
    prompt_sha256: str
    output: str
    tokens: int
    nfe: int
    truncated: bool


class Result(Frozen):
    """The last thing a runner writes. The platform measures wall time itself and trusts no reward written here."""

    job: str
    """Digest of the JobSpec that was run."""
    kind: RunKind
    outcome: Literal["succeeded", "failed"]
    cause: Cause | None = None
    message: str
    """One sentence for a person: how it ended, and when it failed what to do."""
    ended_by: Literal["complete", "budget"] = "complete"
    scores: tuple[Score, ...] = ()
    usage: Usage = Usage()
    artifacts: tuple[Artifact, ...] = ()
    metrics: dict[str, float | None] = {}
    provenance: dict[str, str] = {}

    @model_validator(mode="after")
    def _a_failure_has_a_cause(self) -> Self:
        if (self.outcome == "failed") != (self.cause is not None):
            raise ValueError(f"outcome {self.outcome!r} does not go with cause {self.cause!r}")
        return self


Event.model_rebuild()
