"""Whether a running engine samples as it was asked to and computes the model at all, before a run relies on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from dare.sampling.engines import ProbeError
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.types import Samples

ROWS = 8


class Sampler(Protocol):
    """A backbone or an engine."""

    def sample(
        self, prompts: Sequence[Sequence[int]], config: SamplingConfig, generators: Sequence[torch.Generator]
    ) -> Samples: ...


@dataclass(frozen=True)
class Canary:
    """A question so easy that a wrong answer means a broken engine, with the ids that must occur in the answer."""

    name: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def probe(sampler: Sampler, config: SamplingConfig, prompt: Sequence[int], canaries: Sequence[Canary]) -> None:
    """ProbeError unless rows of `prompt` agree at temperature 0, differ at 1, and every canary finds its answer.

    A run at temperature 0 needs no sampling, so that an engine which cannot sample passes for it. `prompt` should
    leave the model a choice; a window of at least a few tokens is needed to see it made.
    """
    greedy = config.model_copy(
        update={"temperature": 0.0, "top_p": None, "top_k": None, "order_temperature": None, "confidence": "model"}
    )
    if len(set(_completions(sampler, greedy, [prompt] * ROWS))) > 1:
        raise ProbeError(
            f"{ROWS} rows of one prompt at temperature 0 disagree: the engine's arithmetic depends on the row"
        )
    if config.temperature > 0:
        warm = config.model_copy(update={"temperature": 1.0})
        if len(set(_completions(sampler, warm, [prompt] * ROWS))) == 1:
            raise ProbeError(f"{ROWS} rows of one prompt at temperature 1 are all the same: the temperature is ignored")
    answers = _completions(sampler, greedy, [canary.prompt for canary in canaries])
    wrong = [canary.name for canary, ids in zip(canaries, answers, strict=True) if not _contains(ids, canary.answer)]
    if wrong:
        raise ProbeError(
            f"{len(wrong)} of {len(canaries)} canaries found no right answer ({', '.join(wrong)}): the weights or the "
            "attention backend of this engine are wrong"
        )


def _completions(sampler: Sampler, config: SamplingConfig, prompts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    generators = [generator_for(0, "probe", str(row)) for row in range(len(prompts))]
    samples = sampler.sample(prompts, config, generators)
    return [tuple(ids[kept].tolist()) for ids, kept in zip(samples.ids, samples.completion, strict=True)]


def _contains(ids: tuple[int, ...], part: tuple[int, ...]) -> bool:
    return any(ids[start : start + len(part)] == part for start in range(len(ids) - len(part) + 1))
