"""What each inference engine can do for us, as data read off its released source, and the check before weights load."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from dare.sampling.engines import UnsupportedRequestError
from dare.sampling_config import SamplingConfig
from dare.types import Records

OUR_DECODER = "use our own decoder (Backbone.sample, or no --engine)"
COMMON = frozenset(
    {"gen_length", "block_length", "steps_per_block", "temperature", "remasking", "selector", "threshold"}
)
"""Settings that every engine translates, or refuses with a sentence of its own."""


@dataclass(frozen=True)
class ServedModel:
    """What the engine must agree with us about; every number comes from the checkpoint's configuration."""

    architecture: str
    eos_ids: tuple[int, ...]
    pad_id: int
    mask_id: int | None
    """None for an autoregressive model."""
    block_size: int | None
    """None for full attention and for an autoregressive model."""


@dataclass(frozen=True)
class Capability:
    """One engine, between the first and the last version whose source was read."""

    engine: str
    since: str
    until: str
    mask_ids: Mapping[str, int]
    """Architectures it decodes by diffusion, each with the mask id compiled into the engine. Empty: it knows none."""
    temperature: Literal["honoured", "orders", "ignored"]
    """`orders`: honoured, but positions are ranked by the tempered distribution, which is not the model's own."""
    seeded: bool
    """Whether a row can be given its own seed."""
    settings: frozenset[str]
    """Fields of `SamplingConfig` that it has an equivalent for; all others must keep their default."""
    records: frozenset[Records] = frozenset()
    logprobs: str | None = None
    """Why its log-probabilities are of no use; None where they are."""


_SDAR = {"SDARForCausalLM": 151669, "SDARMoeForCausalLM": 151669}
_SGLANG = Capability(
    engine="sglang",
    since="0.5.9",
    until="0.5.23",
    mask_ids={**_SDAR, "LLaDA2MoeModelLM": 156895},
    temperature="ignored",
    seeded=False,
    settings=COMMON | {"edit_threshold", "max_post_steps"},
    logprobs="computes none for tokens decoded by diffusion",
)
TABLE: Mapping[str, Capability] = {
    "sglang": _SGLANG,
    # The branch of an open pull request, no release: temperatures reach the draw, and step maps come back.
    "sglang#27943": replace(_SGLANG, engine="sglang#27943", temperature="orders", records=frozenset({"step_map"})),
    "lmdeploy": Capability(
        engine="lmdeploy",
        since="0.12.2",
        until="0.18.0",
        mask_ids=_SDAR,
        temperature="orders",
        seeded=False,
        settings=COMMON | {"confidence"},
        logprobs="returns log-probabilities that its maintainers call broken for block diffusion (lmdeploy#4206)",
    ),
    "vllm": Capability(
        engine="vllm",
        since="0.20.2",
        until="0.33.0",
        mask_ids={},
        temperature="honoured",
        seeded=True,
        settings=COMMON,
        records=frozenset({"step_map"}),
    ),
}


@dataclass(frozen=True)
class Serving:
    """One engine in one version with one checkpoint. `seeded` says that sampled rows must repeat exactly."""

    capability: Capability
    version: str | None
    """None before an engine was asked for it."""
    model: ServedModel
    seeded: bool = True

    def check(
        self, config: SamplingConfig, record: frozenset[Records] = frozenset(), *, logprobs: bool = False
    ) -> None:
        """UnsupportedRequestError for the first thing that the engine cannot honour."""
        for reason, instead in (*self._misfits(config), *self._missing(config, record, logprobs)):
            raise self.refusal(reason, instead)

    @property
    def name(self) -> str:
        """The engine and its version, for people and for files of answers."""
        return self.capability.engine if self.version is None else f"{self.capability.engine} {self.version}"

    def refusal(self, reason: str, instead: str = OUR_DECODER) -> UnsupportedRequestError:
        """One sentence: which engine in which version, what it cannot do, and what to do instead."""
        return UnsupportedRequestError(f"{self.name} {reason}: {instead}")

    def _misfits(self, config: SamplingConfig) -> Iterator[tuple[str, str]]:
        known, model = self.capability.mask_ids, self.model
        since, until = self.capability.since, self.capability.until
        if self.version is not None and not _numbers(since) <= _numbers(self.version) <= _numbers(until):
            yield f"is outside {since} to {until}, whose source was read", f"install one of those, or {OUR_DECODER}"
        if not known:
            if model.mask_id is not None:
                yield f"decodes no diffusion model, and {model.architecture} is one", OUR_DECODER
            return
        if model.architecture not in known:
            yield f"knows {', '.join(sorted(known))} and not {model.architecture}", OUR_DECODER
        elif model.mask_id != known[model.architecture]:
            compiled = known[model.architecture]
            yield f"has the mask id {compiled} compiled in, and this checkpoint's is {model.mask_id}", OUR_DECODER
        if config.block_length != model.block_size:
            blocks = f"would decode blocks of {config.block_length} tokens with a model of blocks of {model.block_size}"
            yield blocks, f"set block_length to {model.block_size}"

    def _missing(self, config: SamplingConfig, record: frozenset[Records], logprobs: bool) -> Iterator[tuple[str, str]]:
        can, heat = self.capability, config.temperature
        if can.temperature == "ignored" and heat > 0:
            yield f"takes the argmax whatever temperature is asked for (here {heat})", OUR_DECODER
        ranked = config.remasking != "sequential" and config.confidence == "model"
        if can.temperature == "orders" and heat not in (0, 1) and ranked:
            yield f"ranks positions by the distribution at temperature {heat}, not the model's own", OUR_DECODER
        if self.seeded and heat > 0 and not can.seeded:
            repeats = "takes no seed per row, so that sampled rows would not repeat"
            yield repeats, f"accept that with seeded=False (--unseeded), or {OUR_DECODER}"
        if unknown := sorted(record - can.records):
            yield f"does not report {', '.join(unknown)}", OUR_DECODER
        if logprobs and can.logprobs:
            yield can.logprobs, "recompute them with Backbone.logprobs"
        for name, field in type(config).model_fields.items():
            value = getattr(config, name)
            if name not in can.settings and value != field.get_default():
                yield f"has nothing like {name} (here {value!r})", OUR_DECODER


def _numbers(version: str) -> tuple[int, ...]:
    """The release as numbers, without what follows it: 0.5.10.post1 is (0, 5, 10)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
