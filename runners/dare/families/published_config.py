"""What a published configuration must say before our modules may claim to compute the same model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


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


def check_published_config(
    model_type: str, values: Mapping[str, Any], required: Sequence[str], only: Mapping[str, tuple[Any, ...]]
) -> None:
    """Every key of `required` is there, and every key of `only`, where given, has one of the values we implement."""
    missing = [key for key in required if key not in values]
    if missing:
        raise MissingKeyError(f"{model_type} configuration lacks {', '.join(missing)}")
    for key, known in only.items():
        if key in values and values[key] not in known:
            allowed = " or ".join(repr(value) for value in known)
            raise UnsupportedValueError(
                f"{model_type} configuration has {key} = {values[key]!r}; only {allowed} is known"
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
