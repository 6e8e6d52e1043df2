"""What crosses the border between platform and runner: the job, its limits, its events and its result.

Everything here is frozen, refuses unknown keys and non-finite numbers, and imports neither torch nor SQL.
A job directory holds `job.json` (a `JobSpec`), for train runs of a submitted algorithm `entry/algorithm.py`,
for evaluate runs of a trained policy `weights/`; the runner appends to `events.jsonl` (`Event`, one a line)
and writes `result.json` (`Result`) last, by rename.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from dare.frozen import Frozen, Grown
from dare.sampling_config import SamplingConfig

HyperparameterValue = bool | int | float | str | None
Hyperparameters = dict[str, HyperparameterValue]

RunKind = Literal["check", "train", "evaluate", "score"]
ItemStatus = Literal[
    "ok",
    "no_answer",  # nothing could be extracted: not solved, and counted apart
    "truncated",  # the window ended before the answer did
    "undecoded",  # mask tokens are left in the text: the decoder failed, not the policy
    "error",  # the scorer failed: no number, never a wrong answer
]
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


class AlgorithmSpec(Frozen):
    """Which algorithm with which hyperparameters. `source="entry"` loads `entry/algorithm.py` of the job directory."""

    name: str
    source: Literal["builtin", "entry"] = "builtin"
    hyperparameters: Hyperparameters = {}


class Budget(Frozen):
    """When training ends. The first limit reached ends it normally: "scored at budget"."""

    optimiser_steps: Annotated[int, Field(gt=0)]
    """Upper bound on rollout batches (RL) or minibatch updates (offline)."""
    gradient_forwards: Annotated[float, Field(gt=0)] | None = None
    """Gradient-carrying forwards of one completion, summed over the run. No step starts that would exceed it."""
    wall_seconds: Annotated[float, Field(gt=0)]
    """A guard, not the budget: exceeding it fails the run with cause `timeout`."""


class LoraSettings(Frozen):
    """Low-rank adapters: only they train, and the frozen base is the reference.

    A layer with weight W computes (W + alpha / rank * B A) x, where A has `rank` rows and B starts at zero.
    """

    rank: Annotated[int, Field(gt=0)]
    alpha: Annotated[float, Field(gt=0)] | None = None
    """Numerator of the scale alpha / rank. None is `rank`, a scale of 1."""
    dropout: float = 0.0
    """Only 0: recipes of others name it, so it is understood, and refused where it is not 0."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Last parts of the names of the adapted linear layers; None for those of the model's family."""

    @model_validator(mode="after")
    def _scores_as_it_samples(self) -> Self:
        if self.dropout != 0:
            raise ValueError(
                f"dropout is {self.dropout:g}, but only 0 can be used: a policy that drops at random while it trains "
                "is not the one that was sampled, so that no ratio starts at 1"
            )
        return self

    @property
    def scale(self) -> float:
        """What the product B A is multiplied by."""
        return (self.rank if self.alpha is None else self.alpha) / self.rank


class TrainSettings(Grown):
    """What the track holds fixed while training. An entry may set only the fields that the track leaves open."""

    added: ClassVar[frozenset[str]] = frozenset({"lora", "gradient_checkpointing", "dtype", "overlap"})

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
    lora: LoraSettings | None = None
    """Train adapters on a frozen base; None trains all weights."""
    gradient_checkpointing: bool = False
    """Compute each layer again in the backward pass instead of keeping it: less memory, more time, equal gradients."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights and of every forward pass. What trains has a float32 master copy (see `dare.precision`)."""
    overlap: Literal["report", "drop"] = "report"
    """What becomes of training rows that give test items away (see `dare.data.overlap`): named only, or left out."""


AlarmName = Literal["nan", "collapse", "gradient", "no_gradient", "repetition", "length", "kl", "entropy"]
"""What can be wrong with a run while it trains: see `dare.diary.alarms`."""
STOP_ON: tuple[AlarmName, ...] = ("collapse", "gradient")


class RewardPart(Frozen):
    """One part of a reward: `correct`, `task`, a part of `dare.rewards.format`, or a function of one's own as
    `package.module:function` or `file.py:function`."""

    name: Annotated[str, Field(min_length=1)]
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    source_sha256: str | None = None
    """Of the file of one's own function, so that equal jobs have equal rewards."""


class RewardSpec(Frozen):
    """A reward composed of parts. Only runs on one's own machine have one: tracks and entries cannot name it."""

    parts: Annotated[tuple[RewardPart, ...], Field(min_length=1)]
    normalised: bool = True
    """Divide by the sum of the weights, so that the reward is from 0 to 1."""


class TrainSpec(Grown):
    """One training run."""

    added: ClassVar[frozenset[str]] = frozenset({"reward", "stop_on"})

    algorithm: AlgorithmSpec
    data: str
    """A reference that `dare.data` understands, such as `prompts:<task>` or `file:<path>`."""
    settings: TrainSettings
    sampling: SamplingConfig
    budget: Budget
    checkpoint_every: Annotated[int, Field(gt=0)] = 10
    stop_on: tuple[AlarmName, ...] = STOP_ON
    """Alarms that end the run when they last; all others are told, and a number that is not finite always ends it."""
    reward: RewardSpec | None = None
    """None is the reward of each item's task."""


class TaskProtocol(Grown):
    """How one task is put to a policy: everything that moves a score. Its digest is the protocol id."""

    added: ClassVar[frozenset[str]] = frozenset(
        {"prompt", "template", "prefill", "stops", "policies", "further_scorers", "mc_samples"}
    )

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
    """Whose word is the headline."""
    further_scorers: tuple[str, ...] = ()
    """Who else scores the same stored answers."""
    prompt: Annotated[str, Field(min_length=1)] = "task"
    """`task`: as the task writes it; another name of its `asked`; or `opencompass:FOLDER/CONFIG`, the prompt and the
    examples of one of OpenCompass's own dataset configurations."""
    template: Literal["chat", "none"] = "chat"
    """Whether the prompt goes through the backbone's chat template or is continued as it is."""
    prefill: str = ""
    """What every answer begins with: the policy goes on behind it, and it is no part of what is scored."""
    stops: tuple[str, ...] = ()
    """The answer ends before the first of these. Looked for in the decoded text: nothing is decoded left to right."""
    policies: dict[str, str] = {}
    """Choices that have no universal answer, by the task's own names for them; unnamed ones have the task's default."""
    mc_samples: Annotated[int, Field(gt=0, le=4096)] | None = None
    """Forwards per choice of a likelihood task; None where answers are generated."""

    @property
    def scorers(self) -> tuple[str, ...]:
        """Everyone who scores, the headline's first."""
        return (self.scorer, *(name for name in self.further_scorers if name != self.scorer))

    @property
    def sampled(self) -> SamplingConfig:
        """Decoding of the further completions."""
        own = {"temperature": self.sample_temperature, "steps_per_block": self.sample_steps_per_block}
        given = {name: value for name, value in own.items() if value is not None}
        return SamplingConfig.model_validate(self.sampling.model_dump() | given)

    @model_validator(mode="after")
    def _samples_can_be_drawn(self) -> Self:
        if self.samples:
            _ = self.sampled
        return self


class EvaluateSpec(Grown):
    """One evaluation run over all tasks of a track. `trained` says that `weights/` holds the policy."""

    added: ClassVar[frozenset[str]] = frozenset({"through", "dtype", "programs"})

    protocols: tuple[TaskProtocol, ...]
    trained: bool
    batch_size: Annotated[int, Field(gt=0)] = 128
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights and of every forward pass."""
    through: Literal["decoder", "opencompass"] = "decoder"
    """Who asks. `decoder`: this process, for tasks that write their own prompts. `opencompass`: the backbone is served
    on this machine's loopback and OpenCompass, a child process, builds the prompts and scores too."""
    programs: Literal["here", "later"] = "here"
    """Where answers that are programs are run and judged: by this run, or by a score run that is ordered behind it."""


class ScoreSpec(Frozen):
    """Scores of the stored answers in `predictions/`, by the scorers of each protocol. No weights, no entry."""

    protocols: Annotated[tuple[TaskProtocol, ...], Field(min_length=1)]


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


class JobSpec(Grown):
    """The whole order for one run. Its digest names the work: same digest, same result on the same machine kind."""

    added: ClassVar[frozenset[str]] = frozenset({"score"})

    version: Literal[1] = 1
    kind: RunKind
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    backbone: BackboneRef
    train: TrainSpec | None = None
    evaluate: EvaluateSpec | None = None
    check: CheckSpec | None = None
    score: ScoreSpec | None = None
    threads: Annotated[int, Field(gt=0)] = 1

    @model_validator(mode="after")
    def _exactly_the_part_of_its_kind(self) -> Self:
        given = [name for name in get_args(RunKind) if getattr(self, name) is not None]
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
    """Items that have a number."""
    n_no_answer: int = 0
    n_truncated: int = 0
    n_undecoded: int = 0
    """Answers with mask tokens left in them: the decoder failed, and they count as wrong."""
    n_error: int = 0
    """Answers that the scorer failed on. They are not in `value` and not in `n`."""
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
    status: ItemStatus
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

    @field_validator("output")
    @classmethod
    def _can_be_written(cls, output: str) -> str:
        """Half of a surrogate pair is no character: JSON may hold it, a file cannot."""
        return output.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
