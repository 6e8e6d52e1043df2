"""Hyperparameters of an entry beside the defaults of its class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dare.source.hyperparameters import Hyperparameter
from dare.spec import HyperparameterValue


@dataclass(frozen=True)
class SettingView:
    """A hyperparameter of an entry against the default of its class."""

    name: str
    type: str
    default: HyperparameterValue
    value: HyperparameterValue
    changed: bool
    help: str


def compare(parameters: Sequence[Hyperparameter], values: Mapping[str, HyperparameterValue]) -> tuple[SettingView, ...]:
    """Every hyperparameter with its default and its value, those that differ first."""
    views = [
        SettingView(
            name=parameter.name,
            type=parameter.type,
            default=parameter.default,
            value=values.get(parameter.name, parameter.default),
            changed=values.get(parameter.name, parameter.default) != parameter.default,
            help=parameter.help,
        )
        for parameter in parameters
    ]
    return tuple(sorted(views, key=lambda view: not view.changed))
