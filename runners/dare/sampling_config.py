"""How a completion is decoded: one description of every decoder, and what does not go together in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dare.frozen import Grown

_PARAMETERS = {
    "threshold": "threshold",
    "dynamic": "threshold",
    "budget": "threshold",
    "factor": "factor",
    "entropy_bounded": "entropy_bound",
}
"""The parameter of each selector that has one."""


class SamplingConfig(Grown):
    """How a completion is decoded; part of the evaluation protocol, and the behaviour policy of every rollout.

    One description of every decoder: `remasking` ranks the masked positions of a block, `selector` says how many of
    the best a step commits, `schedule` how a block's tokens spread over its steps. `dare.sampling.presets` has the
    published settings by name. What does not go together is refused.
    """

    added: ClassVar[frozenset[str]] = frozenset(
        {
            "selector", "factor", "entropy_bound", "schedule", "eps", "block_num", "confidence", "order_temperature",
            "top_p", "top_k", "cfg_scale", "cache", "eos_policy", "eoser_minimum", "early_stop", "edit_threshold",
            "max_post_steps",
        }
    )  # fmt: skip

    gen_length: Annotated[int, Field(gt=0)]
    """Tokens of the generation window."""
    block_length: Annotated[int, Field(gt=0)]
    """Tokens decoded together. Block families require their own block size; masked ones a divisor of `gen_length`."""
    steps_per_block: Annotated[int, Field(gt=0)]
    """Denoising forwards per block; an upper bound where the selector may commit more than the schedule's share."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """0 is argmax."""
    remasking: Literal["low_confidence", "random", "sequential", "entropy", "margin", "origin"] = "low_confidence"
    """Which masked positions of the block are committed first: the most probable tokens, any, the leftmost, the
    distributions of least entropy, those with the widest lead of the first token over the second. `origin` reveals
    every position at a time of its own, drawn from the `timesteps`, as the forward process hid it."""
    threshold: Annotated[float, Field(gt=0, le=1)] | None = None
    """The confidence that the selectors `threshold`, `dynamic` and `budget` ask for."""
    selector: Literal["schedule", "threshold", "dynamic", "budget", "factor", "entropy_bounded"] = "schedule"
    """How many of the best positions a step commits, never none.

    `schedule`: the step's share. `threshold` (Fast-dLLM): all of at least `threshold`. `dynamic` (SDAR, LLaDA2): all
    above `threshold`, at least the share. `budget` (Dream in Fast-dLLM): the share and what earlier steps left of
    theirs, without those below `threshold`. `factor` (Fast-dLLM): the n best while the n-th is at least
    1 - factor / (n + 1). `entropy_bounded` (JetEngine): the surest while their entropies add up to less than
    `entropy_bound`."""
    factor: Annotated[float, Field(gt=0)] | None = None
    """Of the selector `factor`: the more, the more tokens at once."""
    entropy_bound: Annotated[float, Field(gt=0)] | None = None
    """Of the selector `entropy_bounded`, in nats."""
    schedule: Literal["even", "timesteps", "ascending"] = "even"
    """How a block's tokens spread over its steps. `timesteps` (Dream): by the share of masks that the forward process
    keeps between equally spaced times from 1 to `eps`. `ascending` (ASS): 1, 2, 4, ... tokens, over the whole window
    in `block_num` blocks of growing length."""
    eps: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """The last of the `timesteps`."""
    block_num: Annotated[int, Field(gt=0)] = 1
    """Blocks of an `ascending` window."""
    confidence: Literal["model", "draw"] = "model"
    """The distribution that confidences are read from: the model's own, so that the temperature changes tokens and not
    their order, or the tempered and filtered one that tokens are drawn from, as Dream and SDAR publish."""
    order_temperature: Annotated[float, Field(gt=0)] | None = None
    """Rank by draws of softmax(priority / order_temperature) without replacement (Dream's `alg_temp`)."""
    top_p: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Draw from the fewest tokens whose tempered probabilities exceed it."""
    top_k: Annotated[int, Field(gt=1)] | None = None
    """Draw from that many most probable tokens. With `top_p`, a token must pass both."""
    cfg_scale: Annotated[float, Field(ge=0)] = 0.0
    """Guidance away from the logits without prompt, u: u + (1 + cfg_scale)(l - u). Every forward counts twice."""
    cache: Literal["none", "prefix", "dual"] = "none"
    """Keys and values kept from the first forward of each block: those before it, or also those behind it. An
    approximation, of full-attention families only: block families have an exact cache, which is always used."""
    eos_policy: Literal["none", "logits_inf", "confidence_last", "eoser", "eos_zero", "legacy_eot"] = "none"
    """What keeps ends of sequence from flooding the window. `logits_inf` never draws the end-of-text token (the one
    that pads); `confidence_last` commits ends of sequence last; `eoser` multiplies their confidence by a factor that
    rises from `eoser_minimum` to 1 over the decode, `eos_zero` by 0. `legacy_eot` is what LLaDA's published numbers
    were computed with where `confidence_last` was meant: the end of turn has no confidence, the end of text keeps its
    own."""
    eoser_minimum: Annotated[float, Field(ge=0, le=1)] = 0.4
    """The factor of `eoser` at the first step."""
    early_stop: Literal["never", "block", "filled"] = "block"
    """When an end of sequence ends a row: never, when its block is finished, or when nothing before it is masked."""
    edit_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """Replace a committed token of the current block when another one's confidence exceeds this (LLaDA2.1)."""
    max_post_steps: Annotated[int, Field(ge=0)] = 16
    """Forwards that only edit, per block, at most."""

    @model_validator(mode="after")
    def _settings_go_together(self) -> Self:
        conflict = next(self._conflicts(), None)
        if conflict is not None:
            raise ValueError(conflict)
        return self

    def _conflicts(self) -> Iterator[str]:
        """What is wrong with the settings, one sentence each."""
        if self.steps_per_block > self.block_length:
            yield (
                f"steps_per_block is {self.steps_per_block} but a block has {self.block_length} tokens: "
                "a step without a token to commit does nothing"
            )
        yield from self._selector_conflicts()
        yield from self._schedule_conflicts()
        yield from self._temperature_conflicts()
        if self.cache != "none" and self.cfg_scale > 0:
            yield (
                f"cache is {self.cache!r} and cfg_scale {self.cfg_scale:g}: guidance needs a second cache for the row "
                "without prompt, which nobody has described; choose one"
            )
        if self.eos_policy in ("confidence_last", "eoser", "eos_zero", "legacy_eot") and (
            self.remasking != "low_confidence"
        ):
            yield (
                f"eos_policy is {self.eos_policy!r}, a rule on confidence, but remasking is {self.remasking!r}: "
                "it needs 'low_confidence'"
            )
        if self.eos_policy == "eoser" and self.selector != "schedule":
            yield (
                f"eos_policy is 'eoser' but selector is {self.selector!r}: its factor rises from the first to the last "
                "step, whose number only selector 'schedule' fixes"
            )
        yield from self._unused("eoser_minimum", self.eos_policy == "eoser", "eos_policy 'eoser'")
        if self.edit_threshold is not None:
            yield from self._edit_conflicts(self.edit_threshold)
        yield from self._unused("max_post_steps", self.edit_threshold is not None, "an edit_threshold")

    def _selector_conflicts(self) -> Iterator[str]:
        parameter = _PARAMETERS.get(self.selector)
        for name in ("threshold", "factor", "entropy_bound"):
            users = [repr(selector) for selector, used in _PARAMETERS.items() if used == name]
            yield from self._unused(name, parameter == name, f"selector {' or '.join(users)}")
        if parameter is not None and getattr(self, parameter) is None:
            yield f"selector is {self.selector!r} but {parameter} is not set: it is the rule's only parameter"
        order = {"schedule": self.remasking, "entropy_bounded": "entropy"}.get(self.selector, "low_confidence")
        if self.remasking != order:
            yield f"selector is {self.selector!r} but remasking is {self.remasking!r}: it needs {order!r}"
        if self.selector in ("threshold", "factor", "entropy_bounded") and self.steps_per_block != self.block_length:
            yield (
                f"steps_per_block is {self.steps_per_block} but selector {self.selector!r} counts no steps: "
                f"set it to block_length, {self.block_length}, the most that it can take"
            )

    def _schedule_conflicts(self) -> Iterator[str]:
        if self.schedule != "even" and self.selector != "schedule":
            yield f"schedule is {self.schedule!r} but selector is {self.selector!r}: it needs selector 'schedule'"
        if self.remasking == "origin" and self.schedule != "timesteps":
            yield f"remasking is 'origin' but schedule is {self.schedule!r}: it reveals by schedule 'timesteps'"
        yield from self._unused("eps", self.schedule == "timesteps", "schedule 'timesteps'")
        yield from self._unused("block_num", self.schedule == "ascending", "schedule 'ascending'")
        if self.schedule == "ascending":
            steps = self.gen_length.bit_length() - 1
            if (self.block_length, self.steps_per_block) != (self.gen_length, steps):
                yield (
                    f"schedule 'ascending' fills a window of {self.gen_length} tokens in floor(log2) = {steps} steps "
                    f"and divides it itself: block_length is {self.block_length}, steps_per_block "
                    f"{self.steps_per_block}; set them to {self.gen_length} and {steps}"
                )
            elif self.block_num > steps:
                yield f"block_num is {self.block_num} but {self.gen_length} tokens are filled in {steps} steps"

    def _temperature_conflicts(self) -> Iterator[str]:
        if self.temperature == 0:
            for name in ("top_p", "top_k", "order_temperature"):
                if getattr(self, name) is not None:
                    yield f"{name} is {getattr(self, name):g} but temperature is 0: an argmax has nothing to draw"
            if self.confidence == "draw":
                yield (
                    "confidence is 'draw' but temperature is 0: the token that is drawn for certain has confidence 1 "
                    "everywhere; use 'model'"
                )
        if self.order_temperature is not None and (
            self.selector != "schedule" or self.remasking not in ("low_confidence", "entropy", "margin")
        ):
            yield (
                f"order_temperature is {self.order_temperature:g} but remasking is {self.remasking!r} and selector "
                f"{self.selector!r}: it needs an order by confidence, entropy or margin, and selector 'schedule'"
            )

    def _edit_conflicts(self, edit_threshold: float) -> Iterator[str]:
        if self.selector != "dynamic":
            yield f"edit_threshold is {edit_threshold:g} but selector is {self.selector!r}: editing needs 'dynamic'"
        if self.early_stop == "filled":
            yield (
                f"edit_threshold is {edit_threshold:g} and early_stop 'filled': what is filled may still be edited; "
                "use 'block'"
            )
        if self.eos_policy not in ("none", "logits_inf"):
            yield (
                f"edit_threshold is {edit_threshold:g} and eos_policy {self.eos_policy!r}: how an end of sequence is "
                "edited under that rule is not described"
            )

    def _unused(self, name: str, used: bool, needs: str) -> Iterator[str]:
        """A parameter that is set although nothing reads it."""
        value = getattr(self, name)
        if not used and value != type(self).model_fields[name].default:
            yield f"{name} is {value:g} but nothing reads it: it needs {needs}"
