"""What a published configuration must say before our modules may claim to compute the same model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from transformers import PretrainedConfig


class ConfigError(ValueError):
    """A configuration that we cannot honour.

    ConfigError
    ├── MissingKeyError       a key that has no safe default
    └── UnsupportedValueError a value that our module does not implement
    """


class MissingKeyError(ConfigError):
    """The classes that published these keys have defaults of other models, so none is assumed."""


class UnsupportedValueError(ConfigError):
    """Loading would succeed and compute something else."""


FOREIGN = ("attn_implementation", "auto_map")
"""Keys about the code that published a configuration, not about the model."""

QWEN_ONLY: Mapping[str, tuple[Any, ...]] = {
    "attention_dropout": (0.0,),
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "sliding_window": (None,),
    "tie_word_embeddings": (False,),
    "use_sliding_window": (False,),
}
"""What the families that descend from Qwen have in common."""


class PublishedConfig(PretrainedConfig):  # type: ignore[misc]
    """A configuration by its published keys; keys that change nothing here are kept and written back.

    A family says which keys are `required`, which values of others are the `only` ones that its module computes, and
    what its published files leave out (`absent`: the value that upstream takes from elsewhere).
    """

    has_no_defaults_at_init = True
    required: ClassVar[Sequence[str]] = ()
    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    absent: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Keep the checks: transformers 5 gives a subclass without `__init__` a generated one that takes anything."""
        own = "__init__" in vars(cls)
        super().__init_subclass__(**options)
        if not own and "__init__" in vars(cls):
            del cls.__init__

    def __init__(self, **values: Any) -> None:
        name = self.model_type
        values = {key: value for key, value in values.items() if key not in FOREIGN}
        missing = [key for key in self.required if key not in values]
        if missing:
            raise MissingKeyError(f"{name} configuration lacks {', '.join(missing)}")
        for key, known in self.only.items():
            if key in values and values[key] not in known:
                allowed = " or ".join(repr(value) for value in known)
                raise UnsupportedValueError(
                    f"{name} configuration has {key} = {values[key]!r}; only {allowed} is known"
                )
        values["rope_theta"] = rope_theta_of(name, values)
        values.pop("rope_scaling", None)  # null by now; transformers 5 warns about the key itself
        for key, value in self.absent.items():
            if values.get(key) is None:
                values[key] = value
        if values.get("pad_token_id") is None:
            values["pad_token_id"] = values["eos_token_id"]
        values.setdefault("tie_word_embeddings", False)
        _check_ids(name, values, self.absent)
        super().__init__(**values)

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values."""
        return int(self.num_key_value_heads)

    @property
    def head_size(self) -> int:
        """Numbers per head."""
        given = getattr(self, "head_dim", None)
        return int(given) if given is not None else int(self.hidden_size // self.num_attention_heads)

    @property
    def rotary_size(self) -> int:
        """How many numbers of a head are rotated."""
        return self.head_size


def _check_ids(name: str, values: Mapping[str, Any], absent: Mapping[str, Any]) -> None:
    """Ids are rows of the embedding, and padding is not the mask."""
    rows = values.get("embedding_size") or values["vocab_size"]
    for key in ("mask_token_id", "eos_token_id", "pad_token_id"):
        if not 0 <= values[key] < rows:
            whose = "the family's default" if values[key] == absent.get(key) else "which"
            raise UnsupportedValueError(
                f"{name} configuration has {key} = {values[key]}, {whose} is no row of an embedding of {rows}: "
                f"state {key} in config.json"
            )
    if values["mask_token_id"] == values["pad_token_id"]:
        raise UnsupportedValueError(
            f"{name} configuration has mask_token_id = pad_token_id = {values['pad_token_id']}: "
            "padding would be decoded as if it were masked"
        )


def rope_theta_of(model_type: str, values: Mapping[str, Any]) -> float:
    """The rotary base, under its key of transformers 4 (`rope_theta`) or 5 (`rope_parameters`)."""
    parameters = values.get("rope_parameters") or {}
    kind = parameters.get("rope_type", "default")
    if kind != "default":
        raise UnsupportedValueError(f"{model_type} configuration has rope_type = {kind!r}; only 'default' is known")
    theta = values.get("rope_theta", parameters.get("rope_theta"))
    if theta is None:
        raise MissingKeyError(f"{model_type} configuration lacks rope_theta")
    return float(theta)
