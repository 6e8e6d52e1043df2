"""A configuration that we cannot honour is refused in a sentence, whatever the family."""

from __future__ import annotations

from typing import Any

import pytest
from tiny import ARCHITECTURES

from dare.data.corpus import alphabet
from dare.families.published_config import MissingKeyError, UnsupportedValueError
from dare.family import UnknownFamilyError, family_of, load_family
from dare.seeds import generator_for

architectures = pytest.mark.parametrize("architecture", ARCHITECTURES)

YARN = {"type": "yarn"}
QWEN = [
    ("rope_scaling", YARN),
    ("use_sliding_window", True),
    ("sliding_window", 128),
    ("tie_word_embeddings", True),
    ("hidden_act", "gelu"),
    ("attention_dropout", 0.1),
]
UNSUPPORTED = [
    ("LLaDAModelLM", "alibi", True),
    ("LLaDAModelLM", "activation_type", "swiglu"),
    ("LLaDAModelLM", "block_group_size", 2),
    ("LLaDAModelLM", "include_bias", True),
    ("LLaDAModelLM", "rope", False),
    ("LLaDAModelLM", "attention_dropout", 0.1),
    ("LLaDAModelLM", "rope_scaling", YARN),
    ("LLaDAModelLM", "sliding_window", 128),
    ("SDARForCausalLM", "attention_bias", True),
    ("DreamModel", "use_mrope", True),
    ("LLaDA2MoeModelLM", "score_function", "softmax"),
    ("LLaDA2MoeModelLM", "norm_topk_prob", False),
    ("LLaDA2MoeModelLM", "use_qk_norm", False),
    ("LLaDA2MoeModelLM", "router_dtype", "bf16"),
    ("LLaDA2MoeModelLM", "expert_capacity", 4),
    ("LLaDA2MoeModelLM", "using_split_qkv_in_self_attention", True),
    ("LLaDA2MoeModelLM", "use_sliding_window", True),
    *((architecture, key, value) for architecture in ("DreamModel", "SDARForCausalLM", "SDARMoeForCausalLM")
      for key, value in QWEN),
]  # fmt: skip


def config_of(architecture: str) -> tuple[Any, dict[str, Any]]:
    """The class and the values of a tiny configuration."""
    family = load_family(ARCHITECTURES[architecture])
    config = family.tiny(alphabet(), generator_for(0, "configs"), architecture).model.config
    return type(config), {key: value for key, value in config.to_dict().items() if key != "model_type"}


@pytest.mark.parametrize(("architecture", "key", "value"), UNSUPPORTED)
def test_a_configuration_that_we_do_not_implement_is_refused(architecture: str, key: str, value: object) -> None:
    make, values = config_of(architecture)
    with pytest.raises(UnsupportedValueError, match=f"{key} = "):
        make(**values | {key: value})


@architectures
def test_a_missing_key_is_not_guessed(architecture: str) -> None:
    make, values = config_of(architecture)
    for key in make.required:
        with pytest.raises(MissingKeyError, match=f"lacks {key}$"):
            make(**{other: value for other, value in values.items() if other != key})


@architectures
def test_the_rotary_base_may_have_its_newer_key(architecture: str) -> None:
    make, values = config_of(architecture)
    values.pop("rope_parameters", None)
    del values["rope_theta"]
    with pytest.raises(MissingKeyError, match="rope_theta"):
        make(**values)
    assert make(**values, rope_parameters={"rope_type": "default", "rope_theta": 77.0}).rope_theta == 77.0
    with pytest.raises(UnsupportedValueError, match="rope_type = 'yarn'"):
        make(**values, rope_parameters={"rope_type": "yarn", "rope_theta": 77.0})


@architectures
def test_a_mask_that_is_the_padding_or_no_token_is_refused(architecture: str) -> None:
    make, values = config_of(architecture)
    with pytest.raises(UnsupportedValueError, match="mask_token_id = pad_token_id = 0"):
        make(**values | {"mask_token_id": 0, "pad_token_id": 0})
    with pytest.raises(UnsupportedValueError, match="mask_token_id = 9999"):
        make(**values | {"mask_token_id": 9999})


@pytest.mark.parametrize("architecture", ["SDARForCausalLM", "SDARMoeForCausalLM", "LLaDA2MoeModelLM"])
def test_a_published_default_that_is_no_token_here_must_be_stated(architecture: str) -> None:
    make, values = config_of(architecture)
    del values["mask_token_id"]
    with pytest.raises(UnsupportedValueError, match=r"the family's default is no row of an embedding .* state mask_"):
        make(**values)
    published = make(**values | {"vocab_size": 160_000})
    assert published.mask_token_id in (151669, 156895)


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownFamilyError, match=r"'LlamaForCausalLM', which no family here loads; known: .*DreamModel"
    ):
        family_of({"architectures": ["LlamaForCausalLM"]})
    with pytest.raises(UnknownFamilyError, match="names architecture None"):
        family_of({})
    with pytest.raises(UnsupportedValueError, match="family llada has LLaDAModelLM, LLaDAMoEModelLM"):
        load_family("llada").model_class({"architectures": ["DreamModel"]})


def test_experts_in_unequal_or_single_groups_are_refused() -> None:
    make, values = config_of("LLaDA2MoeModelLM")
    for groups in (3, 8):
        with pytest.raises(UnsupportedValueError, match=f"8 experts in {groups} groups"):
            make(**values | {"n_group": groups})
