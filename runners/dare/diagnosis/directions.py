"""Where does a method push? Its expected gradient beside the true policy gradient of the decoder, on enumerable models.

The true gradient is that of the expected reward under the decoder's exact law. A method's comes out of its own hook:
credit, hidden tokens and loss of a batch in which every path of the decoder has its exact share, at the policy that
sampled it. What chance is left is in the hidden tokens, and is measured with independent batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dare.algorithm import Algorithm
from dare.diagnosis.decoders import (
    PATH_OF_HISTORY,
    PATH_SEQUENCE,
    SCORES,
    SEQUENCE_OF_PATH,
    STEP_MAP,
    X0,
    confidences,
    history_law,
    law,
)
from dare.diagnosis.toys import MASK, SEQUENCES, STATES, L, Table, ToyBackbone, V
from dare.executor import AlgorithmFaultError, check_views, guarded
from dare.seeds import generator_for, seed_of
from dare.types import Credit, NoisyViews, Rollout, Trace

SUCCESSES = 0.3
"""Share of the sequences that are rewarded with 1, the others with 0."""
BATCHES = 2
"""Independent batches behind every expected gradient."""
AGREEMENT = 0.5
"""Batches that share less than this of their squared length are taken as noise, and not corrected for it."""
LARGEST_BATCH = 2048
PREDICTED = frozenset({"x0", "confidence"})


@dataclass(frozen=True)
class Worlds:
    """Random table models side by side, each with a reward for every sequence."""

    logits: Float[Tensor, "t 64 3 3"]
    reward: Float[Tensor, "t 27"]

    def __len__(self) -> int:
        return len(self.reward)


@dataclass(frozen=True)
class Alignment:
    """Cosines of one method under one decoder, a table each."""

    method: str
    decoder: str
    cosines: tuple[float, ...]
    noise: float
    """Standard error of one cosine by the draw of hidden tokens."""
    exact: bool = False
    """A score without its method: enumerated, nothing is drawn."""

    @property
    def mean(self) -> float:
        """Over the tables; NaN where the method has no gradient on one of them."""
        return fmean(self.cosines)

    @property
    def error(self) -> float:
        """Standard error of the mean by hidden tokens: what more rows would remove."""
        return self.noise / math.sqrt(len(self.cosines))

    @property
    def deviation(self) -> float:
        """Standard deviation over the tables; 0 with one."""
        squares = sum((value - self.mean) ** 2 for value in self.cosines)  # `stdev` fails on NaN
        return math.sqrt(squares / max(len(self.cosines) - 1, 1))


def random_worlds(tables: int, scale: float, seed: int) -> Worlds:
    """Logits `scale` times a standard normal, 30 % of the sequences rewarded. A world does not depend on how many."""
    logits, reward = [], []
    for table in range(tables):
        generator = generator_for(seed, "world", table)
        logits.append(scale * torch.randn(STATES, L, V, generator=generator, dtype=torch.float64))
        order = torch.randperm(len(SEQUENCES), generator=generator)
        reward.append((order < round(SUCCESSES * len(SEQUENCES))).double())
    return Worlds(torch.stack(logits), torch.stack(reward))


def true_gradient(worlds: Worlds, decoder: str) -> Float[Tensor, "t 64 3 3"]:
    """Gradient of the expected reward in the logits, exact: the choice of positions is differentiated too."""
    logits = worlds.logits.clone().requires_grad_(True)
    expected = (law(logits, decoder) * worlds.reward[:, SEQUENCE_OF_PATH]).sum()
    return torch.autograd.grad(expected, logits)[0]


def score_gradient(worlds: Worlds, decoder: str, score: str) -> Float[Tensor, "t 64 3 3"]:
    """E[(r - E r) grad score], enumerated: what a method with this score could at best follow."""
    logits = worlds.logits.clone().requires_grad_(True)
    share = law(worlds.logits, decoder)
    reward = worlds.reward[:, SEQUENCE_OF_PATH]
    advantage = reward - (share * reward).sum(1, keepdim=True)
    return torch.autograd.grad((share * advantage * SCORES[score](logits)).sum(), logits)[0]


def unsuitable(algorithm: Algorithm) -> str | None:
    """Why a method has no row: the end of a sentence that begins with its name. None if it has one."""
    if algorithm.trains_on != "prompts":
        return f"learns from {algorithm.trains_on}, so that no decoder's gradient is its aim"
    spec = guarded("rollout", algorithm.rollout)
    if spec is None or spec.sampler == "tree" or "tree" in algorithm.record:
        return "needs a tree of rollouts; the toy enumerates single ones"
    if unknown := sorted(algorithm.record - {"step_map", *PREDICTED}):
        return f"needs {' and '.join(unknown)} of every rollout, which the toy does not record"
    return "needs whole distributions; the toy scores tokens" if "full" in algorithm.requires else None


@dataclass(frozen=True)
class Ways:
    """All ways in which a decoder can come to a completion: what a batch is made of."""

    p: Float[Tensor, " K"]
    reward: Float[Tensor, "K r"]
    """What the method is told of a way: one reward, or one for what each step predicts."""
    path: Int[Tensor, " K"]
    trace: Trace

    def rollout(self, index: Int[Tensor, " N"]) -> Rollout:
        """A batch of these ways, all of one group."""
        ids = PATH_SEQUENCE[self.path[index]]
        everywhere = torch.ones(ids.shape, dtype=torch.bool)
        return Rollout(
            ids=ids,
            valid=everywhere,
            window=everywhere,
            completion=everywhere,
            group=torch.zeros(len(ids), dtype=torch.long),
            reward=self.reward[index, -1],
            trace=self.trace.rows(index),
        )


def ways(algorithm: Algorithm, logits: Float[Tensor, "64 3 3"], reward: Float[Tensor, " 27"], decoder: str) -> Ways:
    """Paths; where the method looks at predictions, paths with all that their steps predict besides."""
    if not algorithm.record & PREDICTED:
        trace = Trace(step_map=STEP_MAP if "step_map" in algorithm.record else None)
        path = torch.arange(len(STEP_MAP))
        return Ways(law(logits, decoder), reward[SEQUENCE_OF_PATH, None], path, trace)
    of_x0 = reward[(X0 * torch.tensor([V**2, V, 1])).sum(-1)]  # (H, step); SEQUENCES counts in base V
    trace = Trace(STEP_MAP[PATH_OF_HISTORY], x0=X0, confidence=confidences(logits), x0_reward=of_x0)
    return Ways(history_law(logits, decoder), of_x0, PATH_OF_HISTORY, trace)


def shares(
    p: Float[Tensor, " K"], reward: Float[Tensor, "K r"], rows: int
) -> tuple[Int[Tensor, " N"], Float[Tensor, " N"]]:
    """Ways of a batch of about `rows` rows, and the weight that gives each way its exact share.

    Every way occurs, and each reward in its share of the rows, so that the mean reward of the batch is the expected
    one up to a row: it is what a group is compared with. A rare reward makes the batch longer, up to a limit; where
    even that is too short, the least probable ways of that reward are left out.
    """
    _, kind = torch.unique(reward, dim=0, return_inverse=True)
    possible = [((kind == k) & (p > 0)).nonzero().flatten() for k in range(int(kind.max()) + 1)]
    classes = [members for members in possible if len(members)]
    needed = max(math.ceil(len(members) / float(p[members].sum())) for members in classes)
    size = max(rows, min(needed, max(LARGEST_BATCH, 2 * int((p > 0).sum()))))
    chosen, weights = [], []
    for members in classes:
        mass = float(p[members].sum())
        room = max(1, round(size * mass))
        kept = members[p[members].argsort(descending=True)[:room]]
        count = 1 + _apportioned(p[kept], room - len(kept))
        share = p[kept] / p[kept].sum() * mass / count
        chosen.append(kept.repeat_interleave(count))
        weights.append(share.repeat_interleave(count))
    return torch.cat(chosen), torch.cat(weights)


def _apportioned(p: Tensor, total: int) -> Tensor:
    """Whole numbers with this total, in proportion to `p` up to one."""
    edges = torch.cat([p.new_zeros(1), p.cumsum(0) / p.sum() * total]).round().long()
    return edges.diff()


def expected_gradient(
    algorithm: Algorithm,
    logits: Float[Tensor, "64 3 3"],
    reward: Float[Tensor, " 27"],
    decoder: str,
    rows: int,
    seed: int,
) -> Float[Tensor, "64 3 3"]:
    """The direction in which the method's first update moves the logits, through its own hook."""
    known = ways(algorithm, logits, reward, decoder)
    index, weight = shares(known.p, known.reward, rows)
    credit, views = _hidden(algorithm, known.rollout(index), seed)
    table = Table(logits.clone())
    logp = ToyBackbone(table).logprobs(table, views)
    sampled = logp.detach()  # the behaviour policy, and the reference: training has not begun
    terms = guarded("loss", algorithm.loss, logp, sampled, sampled, credit, views)
    share = weight[credit.row]
    loss = (share * terms.num).sum() / (share * terms.den).sum()
    if not bool(torch.isfinite(loss)):
        raise AlgorithmFaultError(f"the loss is {float(loss)}")
    if not loss.requires_grad:
        return torch.zeros_like(logits)
    return -torch.autograd.grad(loss, table.logits, materialize_grads=True)[0]


def _hidden(algorithm: Algorithm, rollout: Rollout, seed: int) -> tuple[Credit, NoisyViews]:
    """Credit and views of a batch."""
    credit = guarded("credit", algorithm.credit, rollout, generator_for(seed, "credit"))
    if not bool(torch.isfinite(credit.advantage).all()):
        raise AlgorithmFaultError("credit returned an advantage that is not finite")
    keys = zip(credit.row.tolist(), credit.part.tolist(), strict=True)
    generators = [torch.Generator().manual_seed(seed_of(seed, "views", row, part)) for row, part in keys]
    views = guarded("forward_process", algorithm.forward_process, rollout, credit, MASK, generators)
    check_views(views, rollout, credit, MASK)
    return credit, views


def rows_for(algorithm: Algorithm, rows: int) -> int:
    """Fewer rows where each has more than four views, for the same noise in less time."""
    uniform, reward = torch.zeros(STATES, L, V, dtype=torch.float64), torch.arange(len(SEQUENCES)).double()
    _, views = _hidden(algorithm, ways(algorithm, uniform, reward, "random-order").rollout(torch.arange(2)), 0)
    return max(1, rows * 4 // max(4, len(views) // 2))


def cosine(gradient: Tensor, true: Tensor) -> float:
    """Of two gradients; NaN where one is zero."""
    return float((gradient * true).sum() / (gradient.norm() * true.norm()))


def denoised_cosine(batches: Float[Tensor, "b 64 3 3"], true: Float[Tensor, "64 3 3"]) -> float:
    """Cosine of the expectation behind independent batches with the true gradient.

    The mean of the batches is too long by their noise, and its cosine too small. The product of two batches has no such
    noise in expectation and takes the place of the squared length, unless the batches hardly agree.
    """
    mean = batches.mean(0)
    squared = mean.square().sum()
    without_noise = (mean.square().sum() * len(batches) ** 2 - batches.square().sum()) / (
        len(batches) * (len(batches) - 1)
    )
    length = without_noise if without_noise > AGREEMENT * squared else squared
    return float((mean * true).sum() / (length.sqrt() * true.norm()))


def alignments(
    methods: Sequence[tuple[str, Algorithm]], decoders: Sequence[str], worlds: Worlds, rows: int, seed: int
) -> Iterator[tuple[str, Alignment | None]]:
    """Every method under every decoder. Yields (method, None) for a finished table, then its (method, Alignment)."""
    for decoder in decoders:
        true = true_gradient(worlds, decoder)
        for name, algorithm in methods:
            cosines, squares = [], []
            enough = rows_for(algorithm, rows)
            for table in range(len(worlds)):
                batches = torch.stack(
                    [
                        expected_gradient(
                            algorithm,
                            worlds.logits[table],
                            worlds.reward[table],
                            decoder,
                            enough,
                            seed_of(seed, name, decoder, table, batch),
                        )
                        for batch in range(BATCHES)
                    ]
                )
                cosines.append(denoised_cosine(batches, true[table]))
                each = torch.tensor([cosine(batch, true[table]) for batch in batches])
                squares.append(float(each.var()) / BATCHES)
                yield name, None
            yield name, Alignment(name, decoder, tuple(cosines), math.sqrt(fmean(squares)))


def score_alignments(decoders: Sequence[str], worlds: Worlds) -> list[Alignment]:
    """The same for the scores that methods differentiate, without their sampling, normalisers and noise."""
    found = []
    for decoder in decoders:
        true = true_gradient(worlds, decoder)
        for score in SCORES:
            gradient = score_gradient(worlds, decoder, score)
            each = torch.nn.functional.cosine_similarity(gradient.flatten(1), true.flatten(1), dim=1)
            found.append(Alignment(score, decoder, tuple(each.tolist()), 0.0, exact=True))
    return found


def ranked(found: Sequence[Alignment], exact: bool) -> list[str]:
    """Methods, or scores, from the best to the worst under the first decoder; one without a gradient comes last."""
    first = [row for row in found if row.exact == exact and row.decoder == found[0].decoder]
    return [row.method for row in sorted(first, key=lambda row: (math.isnan(row.mean), -row.mean, row.method))]
