"""What all engines have in common: the check before, one request for all rows, and `Samples` from the ids returned."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from dare.sampling.engines import EngineMissingError, EngineReplyError
from dare.sampling.engines.capabilities import ServedModel, Serving
from dare.sampling_config import SamplingConfig
from dare.types import UNRECORDED, Forks, Records, Samples, Watch


@dataclass(frozen=True)
class Completion:
    """One row of an engine's answer."""

    ids: tuple[int, ...]
    """What came back: to the end of sequence or the window's, or what else the last block holds."""
    steps: tuple[int, ...] | None = None
    """The step at which each was committed, where the engine says so."""
    forwards: int | None = None


@dataclass(frozen=True)
class Request:
    """Rows to complete, checked."""

    prompts: list[list[int]]
    config: SamplingConfig
    generators: Sequence[torch.Generator]
    record: frozenset[Records]


class Plan(Protocol):
    """What an engine must be started with, or UnsupportedRequestError: to be asked before anything is loaded."""

    def __call__(self, serving: Serving, config: SamplingConfig, record: frozenset[Records] = ...) -> object: ...


class EngineSampler(ABC):
    """`Backbone.sample` by an engine started for one decoder; lengths and temperature may change by request."""

    def __init__(self, serving: Serving, plan: Plan, config: SamplingConfig) -> None:
        self.serving, self.started_with = serving, plan(serving, config)
        self._plan = plan

    @property
    def name(self) -> str:
        """The engine and its version."""
        return self.serving.name

    def check(self, config: SamplingConfig, record: frozenset[Records] = frozenset()) -> None:
        """UnsupportedRequestError for settings that this engine cannot honour, or was not started with."""
        wanted = self._plan(self.serving, config, record)
        if wanted != self.started_with:
            raise self.serving.refusal(f"was started with {self.started_with}, not {wanted}", "start it anew")

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        config: SamplingConfig,
        generators: Sequence[torch.Generator],
        record: frozenset[Records] = frozenset(),
        watch: Watch | None = None,
        forks: Forks | None = None,
    ) -> Samples:
        """As `Backbone.sample`, on the CPU. What the engine does not report is `UNRECORDED` in the result."""
        self.check(config, record)
        if watch is not None:
            raise self.serving.refusal("shows no canvas between its steps")
        if forks is not None:
            raise self.serving.refusal("lets no row go on from where another one stands")
        if len(prompts) != len(generators):
            raise ValueError(f"{len(prompts)} prompts but {len(generators)} generators: each row needs its own")
        if any(self.serving.model.mask_id in prompt for prompt in prompts):
            raise self.serving.refusal("may fill a mask token that a prompt contains")
        request = Request([list(prompt) for prompt in prompts], config, generators, record)
        completions = self.complete(request) if prompts else []
        if len(completions) != len(prompts):
            raise EngineReplyError(f"{len(prompts)} prompts came back as {len(completions)} completions")
        if "step_map" in record and any(found.steps is None for found in completions):
            raise EngineReplyError("the engine was asked for step maps and returned completions without")
        return to_samples(prompts, completions, config.gen_length, self.serving.model)

    @abstractmethod
    def complete(self, request: Request) -> list[Completion]:
        """One completion per prompt, in order."""

    @abstractmethod
    def close(self) -> None:
        """Give back what this object holds: an engine of its own, or the connections to a server."""


def to_samples(
    prompts: Sequence[Sequence[int]], completions: Sequence[Completion], gen_length: int, model: ServedModel
) -> Samples:
    """Rows as our decoder lays them out; EngineReplyError for an answer that is no completion of `gen_length` tokens.

    Engines decode the last block whole and drop most of it behind the end of sequence: that part is padding here, where
    our decoder keeps it.
    """
    width = max((len(prompt) for prompt in prompts), default=0) + gen_length
    shape = (len(prompts), width)
    ids = torch.full(shape, model.pad_id)
    valid, window, completion = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))
    truncated = torch.zeros(len(prompts), dtype=torch.bool)
    step_map = torch.zeros(shape, dtype=torch.long)
    for row, (prompt, found) in enumerate(zip(prompts, completions, strict=True)):
        _check_completion(found, gen_length, model)
        ends = [place for place, token in enumerate(found.ids, 1) if token in model.eos_ids]
        kept, truncated[row] = ends[0] if ends else gen_length, not ends
        start, end = len(prompt), len(prompt) + len(found.ids)
        ids[row, :end] = torch.tensor([*prompt, *found.ids])
        valid[row, : start + gen_length] = True
        window[row, start : start + gen_length] = True
        completion[row, start : start + kept] = True
        step_map[row, start:end] = torch.tensor(found.steps) if found.steps else UNRECORDED
    return Samples(
        ids=ids,
        valid=valid,
        window=window,
        completion=completion,
        step_map=step_map,
        nfe=torch.tensor([UNRECORDED if c.forwards is None else c.forwards for c in completions], dtype=torch.long),
        truncated=truncated,
    )


def import_engine(name: str) -> Any:
    """The engine's module, which has no types of ours; EngineMissingError names the extra that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EngineMissingError(f"cannot import {name} ({error}): install the extra, dare[{name}]") from error


def check_arguments(serving: Serving, given: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """UnsupportedRequestError for an argument of an engine that follows from the checkpoint and the settings."""
    for name in sorted(given.keys() & ours.keys()):
        raise serving.refusal(f"is given {name} by the checkpoint and the decoding settings", "leave it out")


def one_line(error: BaseException) -> str:
    """What an engine's exception says, in one line of bearable length."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def _check_completion(found: Completion, gen_length: int, model: ServedModel) -> None:
    ids = found.ids
    if not ids or len(ids) > gen_length:
        raise EngineReplyError(f"the engine returned {len(ids)} tokens for a window of {gen_length}")
    if model.mask_id in ids:
        raise EngineReplyError(
            f"the engine returned the mask token {model.mask_id} at place {ids.index(model.mask_id)}"
        )
    if len(ids) < gen_length and not set(ids) & set(model.eos_ids):
        raise EngineReplyError(
            f"the engine stopped after {len(ids)} of {gen_length} tokens at {ids[-1]}, which is none of this "
            f"checkpoint's ends of sequence {model.eos_ids}"
        )
    if found.steps is not None and (len(found.steps) != len(ids) or min(found.steps) < 1):
        raise EngineReplyError(f"the engine's step map is no list of {len(ids)} steps from 1: {found.steps}")
