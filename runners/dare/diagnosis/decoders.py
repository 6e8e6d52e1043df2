"""Decoders of the toy, each with its exact law, and the scores that methods take for its log-probability.

A decoder commits one token a step, so that a path is an order of the three positions and a token for each: 162 of them.
Everything is a differentiable function of the logits [..., 64, 3, 3]; leading dimensions are tables side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dare.diagnosis.toys import MASK, SEQUENCES, STATES, L, V, code

Of = Callable[[Float[Tensor, "*t 64 3 3"]], Tensor]

_ORDERS = list(itertools.permutations(range(L)))
PATH_ORDER = torch.tensor(_ORDERS).repeat_interleave(len(SEQUENCES), 0)  # (P, L): position that step k commits
PATH_SEQUENCE = torch.tensor(SEQUENCES).repeat(len(_ORDERS), 1)  # (P, L)
STEP_MAP = PATH_ORDER.argsort(1) + 1  # (P, L): 1-based step of each position
SEQUENCE_OF_PATH = torch.arange(len(SEQUENCES)).repeat(len(_ORDERS))  # (P,)
_TOKEN = PATH_SEQUENCE.gather(1, PATH_ORDER)  # (P, L): token that step k commits
_SEEN = code(torch.where(STEP_MAP[:, None] > torch.arange(L)[:, None], MASK, PATH_SEQUENCE[:, None]))  # (P, step)
_HIDDEN = (torch.arange(STATES)[:, None] // 4 ** torch.arange(L)) % 4 == MASK  # (64, L)


def random_order(logits: Float[Tensor, "*t 64 3 3"]) -> Float[Tensor, "*t 64 3 3"]:
    """Probability that a step commits token v at position i of state s: every masked position equally likely."""
    share = _HIDDEN.to(logits.dtype) / _HIDDEN.sum(1, keepdim=True).clamp(min=1)
    return share[..., None] * logits.softmax(-1)


def left_to_right(logits: Float[Tensor, "*t 64 3 3"]) -> Float[Tensor, "*t 64 3 3"]:
    """The same for the decoder that always takes the first masked position."""
    first = _HIDDEN & (_HIDDEN.cumsum(1) == 1)
    return first[..., None] * logits.softmax(-1)


def low_confidence(logits: Float[Tensor, "*t 64 3 3"]) -> Float[Tensor, "*t 64 3 3"]:
    """The same where every masked position draws a candidate and the most probable candidate is kept.

    Token v at i is kept if it is drawn there and every other masked position draws something less probable; of equals
    the leftmost is kept. The probability of winning depends on the logits too: it is what no method models. It is
    smooth wherever no two tokens of a state are equally probable.
    """
    p = logits.softmax(-1)
    own, other = p[..., None, None], p[..., None, None, :, :]  # (s, i, v, 1, 1), (s, 1, 1, j, u)
    behind = torch.arange(L) > torch.arange(L)[:, None]  # (i, j)
    loses = (other < own) | ((other == own) & behind[:, None, :, None])
    beaten = (other * loses).sum(-1)  # (s, i, v, j): a candidate of j loses
    rivals = _HIDDEN[:, None, :] & ~torch.eye(L, dtype=torch.bool)  # (s, i, j)
    wins = torch.where(rivals[:, :, None, :], beaten, 1.0).prod(-1)
    return _HIDDEN[..., None] * p * wins


DECODERS: Mapping[str, Of] = {
    "low-confidence": low_confidence,
    "random-order": random_order,
    "left-to-right": left_to_right,
}


def law(logits: Float[Tensor, "*t 64 3 3"], decoder: str) -> Float[Tensor, "*t P"]:
    """Probability of every path under a decoder; it sums to 1."""
    commit = DECODERS[decoder](logits)
    return commit[..., _SEEN, PATH_ORDER, _TOKEN].prod(-1)


def _scored(logits: Tensor, state: Tensor, position: Tensor) -> Tensor:
    """Log-probability of the path's token at `position`, seen from `state`; both (P, n)."""
    token = PATH_SEQUENCE.gather(1, position)
    return logits.log_softmax(-1)[..., state, position, token]


def trajectory(logits: Float[Tensor, "*t 64 3 3"]) -> Float[Tensor, "*t P"]:
    """Log-probability of the tokens as they were committed, without that of the order."""
    return _scored(logits, _SEEN, PATH_ORDER).sum(-1)


def elbo(logits: Float[Tensor, "*t 64 3 3"]) -> Float[Tensor, "*t P"]:
    """The random-order ELBO, all masks enumerated: sum over k of 1/k times the mean over sets of k hidden tokens."""
    total = torch.zeros(*logits.shape[:-3], len(STEP_MAP), dtype=logits.dtype)
    for k in range(1, L + 1):
        sets = list(itertools.combinations(range(L), k))
        for chosen in sets:
            hidden = torch.zeros(L, dtype=torch.bool).index_fill(0, torch.tensor(chosen), True)
            state = code(torch.where(hidden, MASK, PATH_SEQUENCE))[:, None].expand(-1, k)
            position = torch.tensor(chosen).expand(len(state), k)
            total = total + _scored(logits, state, position).sum(-1) / (k * len(sets))
    return total


def mean_field(logits: Float[Tensor, "*t 64 3 3"]) -> Float[Tensor, "*t P"]:
    """Every token from the state where everything is hidden."""
    everywhere = torch.arange(L).expand(len(STEP_MAP), L)
    return _scored(logits, torch.full_like(everywhere, STATES - 1), everywhere).sum(-1)


def autoregressive(logits: Float[Tensor, "*t 64 3 3"]) -> Float[Tensor, "*t P"]:
    """Every token from the state where it and what follows is hidden."""
    position = torch.arange(L).expand(len(STEP_MAP), L)
    seen = code(torch.where(torch.arange(L) >= torch.arange(L)[:, None], MASK, PATH_SEQUENCE[:, None]))
    return _scored(logits, seen, position).sum(-1)


SCORES: Mapping[str, Of] = {
    "trajectory": trajectory,
    "elbo": elbo,
    "mean-field": mean_field,
    "autoregressive": autoregressive,
}
"""What methods differentiate in place of the log-probability of a completion, each without any noise."""


# A history is a path and what its steps predict besides: two tokens in the first step, one in the second.
_BESIDE = torch.tensor(list(itertools.product(range(V), repeat=3)))  # (27, 3)
PATH_OF_HISTORY = torch.arange(len(STEP_MAP)).repeat_interleave(len(_BESIDE))  # (H,)
_LATER = _BESIDE.repeat(len(STEP_MAP), 1)


def _predictions() -> Int[Tensor, "H step 3"]:
    x0 = PATH_SEQUENCE[PATH_OF_HISTORY][:, None].repeat(1, L, 1)
    order = PATH_ORDER[PATH_OF_HISTORY]
    for step, place, column in ((0, 1, 0), (0, 2, 1), (1, 2, 2)):
        x0[torch.arange(len(x0)), step, order[:, place]] = _LATER[:, column]
    return x0


X0 = _predictions()  # (H, step, L): the row as each step predicts it
_PENDING = (
    STEP_MAP[PATH_OF_HISTORY][:, None] > torch.arange(1, L + 1)[:, None]
)  # (H, step, L): predicted, not committed


def _probability_of_x0(logits: Float[Tensor, "*t 64 3 3"]) -> Float[Tensor, "*t H step 3"]:
    """Of every token of X0 in the state of its step; arbitrary where it was committed before."""
    state = _SEEN[PATH_OF_HISTORY][..., None]
    return logits.softmax(-1)[..., state, torch.arange(L), X0]


def history_law(logits: Float[Tensor, "*t 64 3 3"], decoder: str) -> Float[Tensor, "*t H"]:
    """Probability of every history; summed over what is predicted besides, it is that of the path."""
    p = _probability_of_x0(logits)
    beside = torch.where(_PENDING, p, 1.0).flatten(-2).prod(-1)
    if decoder != "low-confidence":
        return law(logits, decoder)[..., PATH_OF_HISTORY] * beside
    place = PATH_ORDER[PATH_OF_HISTORY][..., None]  # (H, step, 1)
    own = p.gather(-1, place.expand(*p.shape[:-1], 1))
    wins = (own > p) | ((own == p) & (place < torch.arange(L)))
    won = (wins | ~_PENDING).flatten(-2).all(-1)
    return trajectory(logits)[..., PATH_OF_HISTORY].exp() * beside * won


def confidences(logits: Float[Tensor, "*t 64 3 3"]) -> Float[Tensor, "*t H step 3"]:
    """Probability of every token of X0 as it was predicted, for a committed one of the step that committed it."""
    p = _probability_of_x0(logits)
    committed = (STEP_MAP[PATH_OF_HISTORY] - 1)[:, None].expand(p.shape[-3:])
    step = torch.arange(L)[:, None].expand(p.shape[-3:])
    return p.gather(-2, torch.minimum(committed, step).expand(p.shape))
