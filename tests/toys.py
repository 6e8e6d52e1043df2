"""Table models small enough to enumerate: T1 (arbitrary conditionals), T2 (order-consistent), U (uniform).

Vocabulary {0, 1, 2}, mask 3, a window of three tokens, no prompt. A table [64, 3, 3] holds the logits of every state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dare.family import Tokenizer
from dare.spec import SamplingConfig
from dare.types import Credit, NoisyViews, Records, Rollout, Samples, Trace, Watch

MASK, L, V = 3, 3, 3
X, Y = (2, 0, 1), (1, 1, 2)
SEQUENCES = list(itertools.product(range(V), repeat=L))


class Table(nn.Module):
    """Logits as one free parameter tensor, so that gradients are exact."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)


def code(state: Tensor) -> Tensor:
    """Index of a state in the table: sum of s_j 4^j."""
    return (state * torch.tensor([1, 4, 16])).sum(-1)


def _formula(bump_share: float) -> Tensor:
    s, i, v = torch.meshgrid(torch.arange(64), torch.arange(3), torch.arange(3), indexing="ij")
    s, i, v = s.double(), i.double(), v.double()
    return torch.sin(1 + 0.9 * s + 1.7 * i + 2.3 * v) + bump_share * torch.cos(0.5 * s + 1.1 * i + 0.9 * v)


def t1(which: str = "old") -> Table:
    """T1 under the behaviour (`old`), current (`new`) or reference (`ref`) policy."""
    return Table(_formula({"old": 0.0, "new": 0.3, "ref": -0.2}[which]))


def t2() -> Table:
    """Exact conditionals of one joint: every order gives the same likelihood."""
    joint = torch.tensor(
        [math.exp(math.sin(2 + 1.1 * a + 0.7 * b * c + 2.9 * c + 0.5 * a * b)) for a, b, c in SEQUENCES],
        dtype=torch.float64,
    )
    table = torch.zeros(64, 3, 3, dtype=torch.float64)
    for state in itertools.product(range(4), repeat=3):
        agree = [all(m in (MASK, x) for m, x in zip(state, sequence, strict=True)) for sequence in SEQUENCES]
        for i in range(3):
            for v in range(3):
                mass = sum(p for p, ok, x in zip(joint.tolist(), agree, SEQUENCES, strict=True) if ok and x[i] == v)
                table[int(code(torch.tensor(state))), i, v] = math.log(mass) if mass > 0 else -1e9
    return Table(table)


def uniform() -> Table:
    """Every token has probability 1/3."""
    return Table(torch.zeros(64, 3, 3, dtype=torch.float64))


class ToyBackbone:
    """The Protocol `Backbone` over a table."""

    kind = "masked"
    records: frozenset[Records] = frozenset({"step_map"})
    tokenizer: Tokenizer
    mask_id = MASK
    eos_ids: tuple[int, ...] = (7,)
    pad_id = 7
    block_size = None

    def __init__(self, table: Table) -> None:
        self.model = table

    def logprobs(self, model: Table, views: NoisyViews, temperature: float = 1.0) -> Tensor:
        """Log-probability of the target at scored positions; the state is the first three columns."""
        logits = model.logits[code(views.ids[:, :L])] / temperature  # (n, L, V)
        logp = torch.log_softmax(logits, -1)
        target = views.target[:, :L].clamp(max=V - 1)
        picked = logp.gather(-1, target[..., None]).squeeze(-1)
        out = torch.zeros(views.score.shape, dtype=logp.dtype)
        out[:, :L] = torch.where(views.score[:, :L], picked, 0.0)
        return out

    def forwards(self, views: NoisyViews) -> Tensor:
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


def rollout_of(
    sequences: Sequence[Sequence[int]], reward: Sequence[float], step_map: Sequence[int] | None = None
) -> Rollout:
    """Completions of one group."""
    ids = torch.tensor(sequences)
    everywhere = torch.ones(ids.shape, dtype=torch.bool)
    return Rollout(
        ids=ids,
        valid=everywhere,
        window=everywhere,
        completion=everywhere,
        group=torch.zeros(len(ids), dtype=torch.long),
        reward=torch.tensor(reward, dtype=torch.float64),
        trace=Trace(step_map=None if step_map is None else torch.tensor(step_map).expand(ids.shape)),
    )


def views_for(
    cases: Sequence[tuple[Sequence[int], Sequence[int], float, int]], sequence: Sequence[int] = X
) -> NoisyViews:
    """Views from (masked positions, scored positions, coefficient, unit)."""
    n = len(cases)
    ids = torch.tensor(sequence).expand(n, L).clone()
    score = torch.zeros(n, L, dtype=torch.bool)
    coef = torch.zeros(n, L, dtype=torch.float64)
    for row, (masked, scored, weight, _) in enumerate(cases):
        ids[row, list(masked)] = MASK
        score[row, list(scored)] = True
        coef[row, list(scored)] = weight
    everywhere = torch.ones(n, L, dtype=torch.bool)
    return NoisyViews(
        ids=ids,
        target=torch.tensor(sequence).expand(n, L),
        score=score,
        coef=coef,
        unit=torch.tensor([case[3] for case in cases]),
        valid=everywhere,
        window=everywhere,
    )


def credit_of(advantage: Sequence[float], length: Sequence[float], weight: Sequence[float] | None = None) -> Credit:
    """Units that all belong to row 0."""
    n = len(advantage)
    return Credit(
        row=torch.zeros(n, dtype=torch.long),
        advantage=torch.tensor(advantage, dtype=torch.float64),
        length=torch.tensor(length, dtype=torch.float64),
        weight=torch.tensor([1 / n] * n if weight is None else weight, dtype=torch.float64),
        part=torch.arange(n),
    )
