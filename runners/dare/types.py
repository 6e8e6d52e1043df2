"""What flows through one training step: rollouts, credit, noised views, and the terms of the loss.

Shapes: N completions, S tokens, U units of credit, n noised views, T steps. Rows are right-padded:
prompt, generation window, padding. A `valid` position is prompt or window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, Protocol, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Records = Literal["step_map", "x0", "confidence", "tree"]


@dataclass(frozen=True)
class RolloutSpec:
    """What an algorithm asks of the sampler. Everything else of decoding belongs to the track."""

    sampler: Literal["parallel", "left_to_right", "tree"] = "parallel"
    record: frozenset[Records] = frozenset()
    judge_predictions: bool = False
    """Judge what every denoising step predicts, not the finished completion alone: `Trace.x0_reward`."""
    tree: TreeShape | None = None
    """For the sampler "tree"."""


@dataclass(frozen=True)
class TreeShape:
    """How the completions of one prompt share their beginnings. Every completion is a leaf, its group all of them."""

    root_children: int = 4
    """Beginnings of the prompt."""
    children: int = 4
    """Of every node below the root."""
    depth: int = 2
    """Edges from the root to a leaf. Nodes lie where equal parts of the window are decided."""

    def __post_init__(self) -> None:
        if min(self.root_children, self.children) < 2 or self.depth < 1:
            raise ValueError(
                f"a tree with {self.root_children} children of its root and {self.children} of other nodes at depth "
                f"{self.depth} compares nothing; a node needs two children or more, and a tree a depth of 1 or more"
            )

    @property
    def leaves(self) -> int:
        """Completions of one prompt."""
        return self.below(0)

    def below(self, level: int) -> int:
        """Leaves below a node that is `level` edges from its root."""
        return self.root_children * self.below(1) if level == 0 else int(self.children ** (self.depth - level))


@dataclass(frozen=True)
class Tree:
    """A tree rollout: M node states and the edges between them. Leaves are rows of the Rollout.

    A parent comes before its children. A state holds what is decided there, the mask token elsewhere in the window:
    also at a leaf, where the Rollout has padding behind an end of sequence.
    """

    state: Int[Tensor, "M S"]
    parent: Int[Tensor, " M"]  # -1 for a root
    value: Float[Tensor, " M"]  # verifier at a leaf, mean of the children above
    row: Int[Tensor, " M"]  # a row of the Rollout below this node: where its group and padding are read


PER_ROW: tuple[Records, ...] = ("step_map", "x0", "confidence")
"""What a trace holds row by row."""


@dataclass(frozen=True)
class Trace:
    """How the completions came about, as far as it was asked for and the sampler can tell.

    `x0[:, t - 1]` is the row as denoising step t predicts it: prompt and tokens committed before keep theirs, positions
    that the step predicted have their prediction (what was drawn inside the current block; the most probable token in
    later ones, which only a forward without cache of a full-attention family predicts), all others the mask token.
    Behind a row's last step it is the finished row. `confidence` is the probability of these tokens under the model,
    without temperature and filters, for a committed token the one it was committed with; 0 for a prompt and wherever
    nothing was predicted.
    """

    step_map: Int[Tensor, "N S"] | None = None  # 1-based step over the whole decode; 0 outside, or never decoded
    x0: Int[Tensor, "N T S"] | None = None
    confidence: Float[Tensor, "N T S"] | None = None
    x0_reward: Float[Tensor, "N T"] | None = None  # the verifier on x0, masks left out; the row's reward at the end
    edits: Int[Tensor, "E 4"] | None = None  # (step, row, column, token) of committed tokens that were replaced
    tree: Tree | None = None

    def rows(self, index: Tensor) -> Trace:
        """The trace of some rows. A tree cannot be cut by rows and is dropped."""
        per_row = {name: getattr(self, name) for name in (*PER_ROW, "x0_reward")}
        trace = Trace(**{name: None if value is None else value[index] for name, value in per_row.items()})
        if self.edits is None:
            return trace
        edit, row = (self.edits[:, 1, None] == index).nonzero(as_tuple=True)
        edits = self.edits[edit]
        return replace(trace, edits=torch.stack((edits[:, 0], row, edits[:, 2], edits[:, 3]), dim=1))


@dataclass(frozen=True)
class Rollout:
    """N completions with their rewards, or N offline rows (demonstrations; pairs with reward +1 and -1)."""

    ids: Int[Tensor, "N S"]  # exactly what the model saw at the end of decoding
    valid: Bool[Tensor, "N S"]  # prompt and window
    window: Bool[Tensor, "N S"]  # the generation window
    completion: Bool[Tensor, "N S"]  # window up to and including the first end-of-sequence token
    group: Int[Tensor, " N"]
    reward: Float[Tensor, " N"]
    trace: Trace = Trace()

    def rows(self, index: Tensor) -> Self:
        """The rollout restricted to some rows. A tree cannot be cut by rows and is dropped."""
        kept = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name != "trace"}
        return replace(self, trace=self.trace.rows(index), **kept)


@dataclass(frozen=True)
class Credit:
    """What an advantage belongs to: a completion, a step of one, a tree edge, a side of a pair."""

    row: Int[Tensor, " U"]  # row of the Rollout
    advantage: Float[Tensor, " U"]
    length: Float[Tensor, " U"]  # valid tokens of the unit
    weight: Float[Tensor, " U"]  # share in the objective, for methods that average within units first
    part: Int[Tensor, " U"]  # which part of the row: 0 for all of it, a step, the child node of an edge

    def units(self, index: Tensor) -> Self:
        """Some of the units, in the given order."""
        return type(self)(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


@dataclass(frozen=True)
class NoisyViews:
    """Corrupted inputs and what is read off them. One row is one network forward of one sequence."""

    ids: Int[Tensor, "n S"]
    target: Int[Tensor, "n S"]
    score: Bool[Tensor, "n S"]  # positions whose log-probability is used; always masked in `ids`
    coef: Float[Tensor, "n S"]  # weight of each of them in its estimator
    unit: Int[Tensor, " n"]  # owner in Credit
    valid: Bool[Tensor, "n S"]
    window: Bool[Tensor, "n S"]  # the generation window, for the cost of a view

    def __len__(self) -> int:
        return len(self.unit)

    def rows(self, index: Tensor | slice) -> Self:
        """Some of the views, in the given order."""
        return type(self)(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def tensors(self) -> dict[str, Tensor]:
        """All fields by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def concatenate(cls, parts: list[NoisyViews]) -> NoisyViews:
        """Views of equal width, one after another."""
        return cls(**{f.name: torch.cat([getattr(part, f.name) for part in parts]) for f in fields(cls)})


@dataclass(frozen=True)
class LossTerms:
    """Numerator and denominator per unit: the loss of an optimiser step is sum(num) / sum(den) over all ranks."""

    num: Float[Tensor, " U"]
    den: Float[Tensor, " U"]
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Frame:
    """The canvas after a denoising step, for whoever watches. Tensors are live: copy what you keep."""

    rows: Int[Tensor, " n"]  # rows that took part in this step
    ids: Int[Tensor, "N S"]  # all rows, right-padded
    window: Bool[Tensor, "N S"]
    step_map: Int[Tensor, "N S"]  # 0 where nothing is committed yet
    settled: Int[Tensor, " N"]  # columns before this one will not change any more
    nfe: Int[Tensor, " N"]
    finished: Bool[Tensor, " N"]


class Forks(Protocol):
    """Rows that go on from where another one stands, each with randomness of its own; they wait until then.

    So what completions have in common is decoded once. Pairs (source, copy) of rows say who takes over whose state.
    """

    @property
    def first(self) -> Int[Tensor, " n"]:
        """The rows that are decoded from the start."""

    def due(
        self, live: Int[Tensor, " n"], ids: Int[Tensor, "N S"], undecided: Bool[Tensor, "N S"]
    ) -> Int[Tensor, "m 2"]:
        """What forks after a step. `live` are rows that go on, the canvas is that of all rows."""

    def finish(self, ids: Int[Tensor, "N S"]) -> Int[Tensor, "m 2"]:
        """All rows have ended; who ended before a fork is copied. To be called until it has nothing more to say."""


UNRECORDED = -1
"""In place of a denoising step or a number of forwards that an inference engine does not report."""


@dataclass(frozen=True)
class Samples:
    """What a sampler returns for N prompts; rows are right-padded like a Rollout."""

    ids: Int[Tensor, "N S"]
    valid: Bool[Tensor, "N S"]
    window: Bool[Tensor, "N S"]
    completion: Bool[Tensor, "N S"]
    step_map: Int[Tensor, "N S"]  # 1-based denoising step; 0 outside the window, or never decoded; UNRECORDED
    nfe: Int[Tensor, " N"]  # forwards spent on each row, cache-writing and prefill ones included; UNRECORDED
    truncated: Bool[Tensor, " N"]  # no end-of-sequence token in the window
    trace: Trace = Trace()

    @property
    def steps(self) -> Int[Tensor, " N"]:
        """Denoising steps that each row took. Every one committed or edited a token."""
        steps, edits = self.step_map.amax(1), self.trace.edits
        return steps if edits is None else steps.scatter_reduce(0, edits[:, 1], edits[:, 0], "amax")

    @property
    def tokens_decoded(self) -> int:
        """Window tokens that were committed, whether or not they lie behind the first end of sequence."""
        return int((self.step_map != 0).sum())

    @property
    def tokens_kept(self) -> int:
        """Completion tokens."""
        return int(self.completion.sum())


Watch = Callable[[Frame], None]
"""Called after every denoising step."""
