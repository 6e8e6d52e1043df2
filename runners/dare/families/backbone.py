"""What the adapters of full-attention and of block families have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dare.families.checkpoint_files import save_model
from dare.family import Tokenizer
from dare.linear_logp import linear_logp
from dare.sampling_config import SamplingConfig
from dare.types import Records

RECORDS: frozenset[Records] = frozenset({"step_map", "x0", "confidence", "tree"})


class UnsupportedRecordError(ValueError):
    """The sampler cannot tell what was asked for."""


class NoWeightsError(RuntimeError):
    """The checkpoint was opened without its weights, and something was to be computed with them."""


@dataclass
class TransformerBackbone:
    """A model with its tokenizer and ids. `attention` names the backend of scoring, `decode_attention` of decoding."""

    model: Any  # PreTrainedModel, which is untyped here
    tokenizer: Tokenizer
    mask_id: int
    eos_ids: tuple[int, ...]
    pad_id: int
    attention: str
    logit_shift: int = field(default=0, kw_only=True)
    """How far left of a token the logits lie that predict it, never left of its row."""
    decode_attention: str | None = field(default=None, kw_only=True)
    """None for the one that scores."""

    @property
    def decodes_with(self) -> str:
        """The backend of a forward of the sampler."""
        return self.decode_attention or self.attention

    def save(self, directory: Path, dtype: torch.dtype | None = None) -> None:
        """Write config.json, model.safetensors and the tokenizer, so that `load` gives the same logits."""
        save_model(self.model, directory, dtype)
        self.tokenizer.save(directory)

    def _head_logp(
        self, model: nn.Module, hidden: Float[Tensor, "N d"], target: Int[Tensor, " N"], temperature: float
    ) -> Float[Tensor, " N"]:
        """The head at the given states; `model` may be a wrapped or copied one, the scale is the same."""
        head: nn.Linear | nn.Embedding = model.get_output_embeddings()  # type: ignore[operator]
        return linear_logp(
            hidden,
            head.weight,
            target,
            scale=self.model.logit_scale,
            temperature=temperature,
            excluded=self.mask_id,
        )

    def _head_distribution(self, model: nn.Module, hidden: Float[Tensor, "N d"], temperature: float) -> Tensor:
        """Whole distributions at the given states (N, V), in float32 or better: all of them at once."""
        head: nn.Linear | nn.Embedding = model.get_output_embeddings()  # type: ignore[operator]
        logits = torch.nn.functional.linear(hidden, head.weight)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) * (self.model.logit_scale / temperature)
        mask = torch.tensor([self.mask_id], device=logits.device)
        logp: Tensor = logits.index_fill(-1, mask, -torch.inf).log_softmax(-1)
        return logp

    def _check_request(
        self,
        record: frozenset[Records],
        prompts: Sequence[Any],
        config: SamplingConfig,
        generators: Sequence[Any],
    ) -> None:
        if self.model.device.type == "meta":
            refuse_forward(self.model)
        SamplingConfig.model_validate(config.model_dump())  # a copy with changes has not been checked
        known = RECORDS - {"tree"}  # which spans rows: `dare.sampling.tree` asks for its forks
        if record - known:
            raise UnsupportedRecordError(
                f"cannot record {', '.join(sorted(record - known))}; known: {', '.join(sorted(known))}"
            )
        if len(prompts) != len(generators):
            raise ValueError(f"{len(prompts)} prompts but {len(generators)} generators: each row needs its own")


def refuse_forward(model: nn.Module, *_: object) -> NoReturn:
    """A hook before the forward of a model on the meta device."""
    raise NoWeightsError(
        f"this {type(model).__name__} was opened without its weights, for an engine that has them, and computes nothing"
    )


def spread(logp: Float[Tensor, " N"], score: Bool[Tensor, "n S"]) -> Float[Tensor, "n S"]:
    """Numbers in row-major order of the scored positions, zero elsewhere."""
    return torch.zeros(score.shape, dtype=logp.dtype, device=logp.device).masked_scatter(score, logp)
