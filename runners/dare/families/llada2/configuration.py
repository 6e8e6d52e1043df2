"""The configuration of LLaDA2.x, by its published keys."""

from __future__ import annotations

from typing import Any

from dare.families.published_config import PublishedConfig, UnsupportedValueError


class LLaDA2MoeConfig(PublishedConfig):
    """Published keys of `inclusionAI/LLaDA2.0-*` and `LLaDA2.1-*`.

    The published files have neither block size nor mask nor end-of-text id; upstream writes them into its code.
    """

    model_type = "llada2_moe"
    required = (
        "first_k_dense_replace", "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings",
        "moe_intermediate_size", "moe_router_enable_expert_bias", "n_group", "norm_topk_prob", "num_attention_heads",
        "num_experts", "num_experts_per_tok", "num_hidden_layers", "num_key_value_heads", "num_shared_experts",
        "pad_token_id", "partial_rotary_factor", "rms_norm_eps", "routed_scaling_factor", "topk_group", "use_bias",
        "use_qkv_bias", "vocab_size",
    )  # fmt: skip
    only = {  # noqa: RUF012
        "attention_dropout": (0.0,),
        "embedding_dropout": (0.0,),
        "expert_capacity": (None,),
        "hidden_act": ("silu",),
        "moe_router_enable_expert_bias": (True,),
        "norm_head": (False,),
        "norm_softmax": (False,),
        "norm_topk_prob": (True,),
        "output_dropout": (0.0,),
        "rope_scaling": (None,),
        "router_dtype": ("fp32",),
        "score_function": ("sigmoid",),
        "tie_word_embeddings": (False,),
        "use_qk_norm": (True,),
        "use_rmsnorm": (True,),
        "use_sliding_window": (False,),
        "using_split_qkv_in_self_attention": (False,),
    }
    absent = {"mask_token_id": 156895, "eos_token_id": 156892, "block_size": 32}  # noqa: RUF012

    def __init__(self, **values: Any) -> None:
        if values.get("eos_token_id") is None and values.get("pad_token_id") is not None:
            values["eos_token_id"] = values["pad_token_id"]  # one token in every published tokenizer
        super().__init__(**values)
        if self.num_experts % self.n_group or self.num_experts // self.n_group < 2:
            raise UnsupportedValueError(
                f"llada2_moe configuration has {self.num_experts} experts in {self.n_group} groups: "
                "groups must be equal and have at least two experts, whose scores they are chosen by"
            )

    @property
    def rotary_size(self) -> int:
        """Only the first numbers of a head are rotated."""
        given = getattr(self, "rotary_dim", None)
        return int(given) if given is not None else int(self.head_size * self.partial_rotary_factor)
