"""Models small enough to enumerate: T1 (arbitrary conditionals), T2 (order-consistent), U (uniform).

Vocabulary {0, 1, 2}, mask 3, a window of three tokens, no prompt. A table [64, 3, 3] holds the logits of every state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dare.family import Tokenizer
from dare.sampling_config import SamplingConfig
from dare.types import NoisyViews, Records, Samples, Watch

MASK, L, V = 3, 3, 3
X, Y = (2, 0, 1), (1, 1, 2)
SEQUENCES = list(itertools.product(range(V), repeat=L))
STATES = (V + 1) ** L


class Table(nn.Module):
    """Logits as one free parameter tensor, so that gradients are exact."""

    def __init__(self, logits: Float[Tensor, "64 3 3"]) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)


def code(state: Int[Tensor, "*n 3"]) -> Int[Tensor, "*n"]:
    """Index of a state in the table: sum of s_j 4^j."""
    return (state * torch.tensor([1, 4, 16])).sum(-1)


def _formula(bump_share: float) -> Tensor:
    s, i, v = torch.meshgrid(torch.arange(STATES), torch.arange(L), torch.arange(V), indexing="ij")
    s, i, v = s.double(), i.double(), v.double()
    return torch.sin(1 + 0.9 * s + 1.7 * i + 2.3 * v) + bump_share * torch.cos(0.5 * s + 1.1 * i + 0.9 * v)


def t1(which: Literal["old", "new", "ref"] = "old") -> Table:
    """T1 under the behaviour (`old`), current (`new`) or reference (`ref`) policy."""
    return Table(_formula({"old": 0.0, "new": 0.3, "ref": -0.2}[which]))


def t2() -> Table:
    """Exact conditionals of one joint: every order gives the same likelihood."""
    joint = torch.tensor(
        [math.exp(math.sin(2 + 1.1 * a + 0.7 * b * c + 2.9 * c + 0.5 * a * b)) for a, b, c in SEQUENCES],
        dtype=torch.float64,
    )
    table = torch.zeros(STATES, L, V, dtype=torch.float64)
    for state in itertools.product(range(V + 1), repeat=L):
        agree = [all(m in (MASK, x) for m, x in zip(state, sequence, strict=True)) for sequence in SEQUENCES]
        for i in range(L):
            for v in range(V):
                mass = sum(p for p, ok, x in zip(joint.tolist(), agree, SEQUENCES, strict=True) if ok and x[i] == v)
                table[int(code(torch.tensor(state))), i, v] = math.log(mass) if mass > 0 else -1e9
    return Table(table)


def uniform() -> Table:
    """Every token has probability 1/3."""
    return Table(torch.zeros(STATES, L, V, dtype=torch.float64))


class ToyBackbone:
    """A table as a `Backbone`, as far as there is something to load, score and decode."""

    kind: Literal["masked", "block"] = "masked"
    records: frozenset[Records] = frozenset({"step_map"})
    tokenizer: Tokenizer
    mask_id = MASK
    eos_ids: tuple[int, ...] = (7,)
    pad_id = 7
    block_size: int | None = None
    attention = decodes_with = "none"

    def __init__(self, table: Table) -> None:
        self.model = table

    def logprobs(self, model: Table, views: NoisyViews, temperature: float = 1.0) -> Float[Tensor, "n S"]:
        """Log-probability of the target at scored positions; the state is the first three columns."""
        logits = model.logits[code(views.ids[:, :L])] / temperature  # (n, L, V)
        logp = torch.log_softmax(logits, -1)
        target = views.target[:, :L].clamp(max=V - 1)
        picked = logp.gather(-1, target[..., None]).squeeze(-1)
        out = torch.zeros(views.score.shape, dtype=logp.dtype)
        out[:, :L] = torch.where(views.score[:, :L], picked, 0.0)
        return out

    def forwards(self, views: NoisyViews) -> Float[Tensor, " n"]:
        """One forward a view."""
        return torch.ones(len(views), dtype=torch.float64)

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        config: SamplingConfig,
        generators: Sequence[torch.Generator],
        record: frozenset[Records] = frozenset(),
        watch: Watch | None = None,
    ) -> Samples:
        """Left to right, one token a step."""
        rows = []
        for generator in generators:
            state = torch.full((L,), MASK)
            for i in range(L):
                p = torch.softmax(self.model.logits[code(state), i], -1)
                state[i] = torch.multinomial(p, 1, generator=generator)
            rows.append(state)
        ids = torch.stack(rows)
        everywhere = torch.ones(ids.shape, dtype=torch.bool)
        return Samples(
            ids=ids,
            valid=everywhere,
            window=everywhere,
            completion=everywhere,
            step_map=torch.arange(1, L + 1).expand(ids.shape),
            nfe=torch.full((len(ids),), L),
            truncated=torch.ones(len(ids), dtype=torch.bool),
        )
