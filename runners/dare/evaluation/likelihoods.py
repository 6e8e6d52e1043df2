"""Evaluation by likelihood: each item's choices are scored behind its prompt, and nothing is generated.

What is stored is a record of numbers (`dare.rewards.likeliest`), from which any scorer can choose again. The draws are
keyed by the item, so that a number does not depend on which items were asked before, and choices of equal length hide
the same places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from dare.family import Backbone
from dare.likelihood import log_likelihoods
from dare.rewards import likeliest
from dare.scoring import EvaluationError, prompt_sha256
from dare.seeds import seed_of
from dare.spec import Prediction, TaskProtocol
from dare.tasks import Dialogue, Item


def check_askable(protocol: TaskProtocol) -> None:
    """EvaluationError where the protocol does not say how often to draw, or asks for answers to be sampled."""
    if protocol.mc_samples is None:
        raise EvaluationError(
            f"task {protocol.task} is scored by likelihood, and the protocol has no mc_samples: 128 is usual"
        )
    if protocol.samples:
        raise EvaluationError(
            f"task {protocol.task} is scored by likelihood: nothing is sampled, but the protocol has "
            f"samples={protocol.samples}"
        )


def measure(
    protocol: TaskProtocol,
    backbone: Backbone,
    item: Item,
    prompt: Dialogue,
    context: Sequence[int],
    seed: int,
    batch: int,
) -> Prediction:
    """The likelihoods of one item's choices. `context` are the prompt's ids; `batch` views are scored at a time."""
    check_askable(protocol)
    assert protocol.mc_samples is not None
    pairs = [(context, choice_ids(protocol, backbone, choice)) for choice in item.choices]
    empty = next((choice for choice, (_, ids) in zip(item.choices, pairs, strict=True) if not ids), None)
    if empty is not None:
        raise EvaluationError(f"item {item.id!r} of {protocol.task} has the choice {empty!r}, which has no tokens")
    own = seed_of(seed, "evaluate", protocol.task, item.id)
    found = log_likelihoods(backbone, pairs, protocol.mc_samples, own, batch)
    record = likeliest.Record(
        log_likelihoods=tuple(one.logp for one in found),
        standard_errors=tuple(one.standard_error for one in found),
        tokens=tuple(one.tokens for one in found),
    )
    return Prediction(
        item=item.id,
        sample=0,
        prompt_sha256=prompt_sha256(prompt),
        output=record.text(),
        tokens=sum(record.tokens),
        nfe=sum(one.forwards for one in found),
        truncated=False,
    )


def choice_ids(protocol: TaskProtocol, backbone: Backbone, choice: str) -> list[int]:
    """A continuation without an end of turn. Behind a chat header there is nothing that a space would part it from."""
    text = choice.removeprefix(" ") if protocol.template == "chat" else choice
    return list(backbone.tokenizer.answer_ids(text)[:-1])


def certainty_of(
    protocol: TaskProtocol, items: Sequence[Item], known: Mapping[tuple[str, int], Prediction]
) -> Mapping[str, str]:
    """How sure the estimates are, as a run's provenance says it. Nothing where no record can be read."""
    read = [
        (record, item.choices)
        for item in items
        if (stored := known.get((item.id, 0))) is not None
        and (record := likeliest.read(stored.output, len(item.choices))) is not None
    ]
    if not read:
        return {}
    found = likeliest.certainty(read, cast(likeliest.Unit, protocol.policies.get("normalise", "none")))
    return {
        f"likelihood.{protocol.task}": f"{protocol.mc_samples} samples, mean standard error {found.standard_error:.4g} "
        f"nats, undecided {found.undecided:.1%} of {found.n} items"
    }
