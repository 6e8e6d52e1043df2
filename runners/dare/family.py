"""What a model family must offer: load a checkpoint, score noised views, decode. No algorithm is named here."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dare.sampling_config import SamplingConfig
from dare.types import Forks, NoisyViews, Records, Samples, Watch


class Tokenizer(Protocol):
    """The part of a tokenizer that we use."""

    def prompt_ids(self, dialogue: str | Sequence[Mapping[str, Any]], prefill: str = "", **options: Any) -> list[int]:
        """One user turn, or a dialogue, through the chat template, up to where the assistant's answer begins.

        `prefill` begins that answer and its turn stays open. `options` are the template's.
        """

    def answer_ids(self, text: str) -> list[int]:
        """The assistant's answer, byte for byte, ending with the end-of-turn token."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a completion: up to the first end of sequence, without special tokens."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One display string per id."""

    def save(self, directory: Path) -> None:
        """Write the tokenizer files beside the weights."""


class Backbone(Protocol):
    """A loaded checkpoint. Ids come from its configuration, never from the code."""

    kind: Literal["masked", "block"]
    records: frozenset[Records]
    model: nn.Module
    tokenizer: Tokenizer
    mask_id: int
    eos_ids: tuple[int, ...]
    pad_id: int
    block_size: int | None
    """Attention block of a block family; None for full attention."""
    attention: str
    """Backend that scores, as `dare.attention` names it."""

    @property
    def decodes_with(self) -> str:
        """Backend of the sampler's forwards."""

    def logprobs(self, model: nn.Module, views: NoisyViews, temperature: float = 1.0) -> Float[Tensor, "n S"]:
        """Log-probability of `views.target` where `views.score`, zero elsewhere; float32 or better, with gradient.

        The mask token has probability zero, as in decoding. `model` is `self.model` or a reference copy of it.
        """

    def distributions(self, model: nn.Module, views: NoisyViews, temperature: float = 1.0) -> Float[Tensor, "P V"]:
        """Log-probabilities of every token at the P scored positions, in row-major order, with gradient.

        All of them are in memory at once, for the methods that need more than a target's; minus infinity for the mask.
        """

    def forwards(self, views: NoisyViews) -> Float[Tensor, " n"]:
        """Cost of each view in forwards of its whole generation window.

        1 for full attention. A block family pays for the blocks that contain a scored position only, since
        one clean half serves all views of a completion: scored blocks / blocks of the window.
        """

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        config: SamplingConfig,
        generators: Sequence[torch.Generator],
        record: frozenset[Records] = frozenset(),
        watch: Watch | None = None,
        forks: Forks | None = None,
    ) -> Samples:
        """Decode one completion per prompt, each with its own generator: a row does not depend on its batch.

        `watch` is called after every denoising step. With `forks` some rows take over where others stand.
        """

    def save(self, directory: Path, dtype: torch.dtype | None = None) -> None:
        """Write config.json, model.safetensors and the tokenizer, so that `load` gives the same logits."""


class ModelFamily(Protocol):
    """One folder under `dare/families`. `FAMILY` in its `__init__` is an instance."""

    @property
    def name(self) -> str:
        """The name of its folder."""

    @property
    def kind(self) -> Literal["masked", "block"]:
        """Full attention, or blocks in order."""

    @property
    def records(self) -> frozenset[Records]:
        """What its sampler can record of a rollout."""

    @property
    def architectures(self) -> Mapping[str, Any]:
        """What it can load, by the name that config.json gives; the first is the typical one."""

    @property
    def lora_targets(self) -> tuple[str, ...]:
        """Linear layers of the typical architecture that adapters go to, by the last part of their name."""

    def model_class(self, values: Mapping[str, Any]) -> Any:
        """The native class for the content of a config.json."""

    def load(self, directory: Path, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> Backbone:
        """Load a checkpoint strictly: a missing or unexpected key is an error that names it."""

    def outline(self, directory: Path) -> Backbone:
        """Tokenizer, ids and configuration of a checkpoint without its weights; what needs them is refused."""

    def tiny(self, vocabulary: Sequence[str], generator: torch.Generator, architecture: str | None = None) -> Backbone:
        """A fresh tiny backbone of the real classes, randomly initialised from `generator`."""


class UnknownFamilyError(ValueError):
    """The name is no folder under dare/families."""


def family_names() -> list[str]:
    """Names of all families, in alphabetical order."""
    folder = Path(__file__).parent / "families"
    return sorted(module.name for module in pkgutil.iter_modules([str(folder)]) if module.ispkg)


def load_family(name: str) -> ModelFamily:
    """The adapter of a family by the name of its folder."""
    if name not in family_names():
        raise UnknownFamilyError(f"unknown family {name!r}; known: {', '.join(family_names())}")
    family: ModelFamily = importlib.import_module(f"dare.families.{name}").FAMILY
    return family


def family_of(values: Mapping[str, Any]) -> ModelFamily:
    """The family that can load a checkpoint, by the `architectures` of its config.json."""
    named = (values.get("architectures") or [None])[0]
    families = [load_family(name) for name in family_names()]
    for family in families:
        if named in family.architectures:
            return family
    known = ", ".join(architecture for family in families for architecture in family.architectures)
    raise UnknownFamilyError(f"config.json names architecture {named!r}, which no family here loads; known: {known}")


def model_class_of(values: Mapping[str, Any]) -> Any:
    """The native class for the content of a config.json, of whatever family."""
    return family_of(values).model_class(values)
