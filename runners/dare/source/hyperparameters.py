"""Hyperparameters of an algorithm: what each may be, and whether the values that somebody sets are that.

Settings come as YAML of one flat mapping. It is loaded without tags, aliases or nesting, a repeated key is refused,
and every value keeps its line, so that a message can say where.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from dare.source.problems import Problem, in_file_order, nearest
from dare.spec import Hyperparameters, HyperparameterValue

Scalar = Literal["bool", "int", "float", "str"]
LARGEST_SETTINGS = 64_000
LARGEST_NUMBER = {"int": 2**53, "float": 1e300}  # above 2^53 a JSON reader may lose digits
NEEDED = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text"}


@dataclass(frozen=True)
class Hyperparameter:
    """One field of an algorithm's class, its own or inherited."""

    name: str
    type: str
    """As written: `float`, `int | None`, `AdvantageKind`."""
    scalar: Scalar
    optional: bool
    """None is allowed."""
    choices: tuple[HyperparameterValue, ...] | None
    default: HyperparameterValue
    help: str
    line: int
    defined_in: str
    """Class that gives it this default."""


@dataclass(frozen=True)
class Settings:
    """Values as written, and the line of each."""

    values: dict[str, Any]
    lines: dict[str, int]
    problems: tuple[Problem, ...] = ()


def parse_settings(text: str, file_name: str = "settings") -> Settings:
    """Values and lines of a settings text; problems instead of exceptions, whatever the text is."""
    size = len(text.encode(errors="replace"))
    if size > LARGEST_SETTINGS:
        return _refused("too_large", None, f"{file_name}: {size / 1000:.0f} kB; the limit is 64 kB.")
    try:
        return _flat_mapping(text, file_name)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        return _refused("yaml", line, f"{file_name} line {line}: {error.problem or 'this is not YAML'}.")
    except (yaml.YAMLError, ValueError, RecursionError):  # a control character; a number of thousands of digits
        return _refused("yaml", None, f"{file_name}: this is not YAML of `name: value` lines.")


def _refused(code: str, line: int | None, text: str) -> Settings:
    return Settings({}, {}, (Problem(code, line, text),))


def _flat_mapping(text: str, file_name: str) -> Settings:
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):  # one by one: a bomb is refused before anything is built
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            return _refused("yaml", line, f"{file_name} line {line}: anchors and aliases are not allowed.")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > 1 or isinstance(event, yaml.SequenceStartEvent):
            return _refused("yaml", line, f"{file_name} line {line}: write `name: value` lines, nothing nested.")
    node = yaml.compose(text, yaml.SafeLoader)
    if node is None:
        return Settings({}, {})
    if not isinstance(node, yaml.MappingNode):
        return _refused("yaml", 1, f"{file_name} line 1: write `name: value` lines.")
    loader = yaml.SafeLoader("")
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    problems: list[Problem] = []
    for key_node, value_node in node.value:
        key, line = key_node.value, key_node.start_mark.line + 1
        if key in values:
            text = f"{file_name} line {line}: `{key}` is set twice, first in line {lines[key]}. Keep one."
            problems.append(Problem("twice", line, text))
            continue
        if not value_node.tag.startswith("tag:yaml.org,2002:"):
            text = f"{file_name} line {line}: `{key}` has the tag {value_node.tag}; tags are not allowed."
            problems.append(Problem("yaml", line, text))
            continue
        values[key], lines[key] = loader.construct_object(value_node), line
    return Settings(values, lines, tuple(problems))


def from_assignment(text: str) -> HyperparameterValue:
    """The value of `--set name=VALUE`: as in YAML, but `1e-5` is the number that it looks like."""
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return {"true": True, "false": False, "null": None, "none": None}.get(text.lower(), text)


def misfit(parameter: Hyperparameter, value: object) -> str | None:
    """How a value does not fit: the end of a sentence that begins with the name. None when it fits."""
    if value is None:
        return None if parameter.optional else f"is empty, {NEEDED[parameter.scalar]} is needed."
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    fits = {
        "bool": isinstance(value, bool),
        "int": number is not None and not (isinstance(number, float) and number % 1),
        "float": number is not None,
        "str": isinstance(value, str),
    }[parameter.scalar]
    if not fits:
        return f"is {_said(value)}, {NEEDED[parameter.scalar]} is needed.{_yaml_hint(parameter, value)}"
    if isinstance(number, float) and not math.isfinite(number):
        return f"is {value}; it must be finite."
    if number is not None and abs(number) > LARGEST_NUMBER[parameter.scalar]:
        return f"is too large; allowed is up to {LARGEST_NUMBER[parameter.scalar]:.3g}."
    if parameter.choices is not None and value not in parameter.choices:
        allowed = [f'"{choice}"' if isinstance(choice, str) else f"{choice}" for choice in parameter.choices]
        return f"is {_said(value, kind=False)}; allowed is {', '.join(allowed[:-1])} or {allowed[-1]}."
    return None


def _said(value: object, kind: bool = True) -> str:
    if isinstance(value, str):
        short = value if len(value) <= 40 else value[:39] + "…"
        return f'the text "{short}"' if kind else f'"{short}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _yaml_hint(parameter: Hyperparameter, value: object) -> str:
    """PyYAML reads `1e-5` as text: a float needs a point, and a sign in its exponent."""
    number = re.fullmatch(r"([-+]?)(\d+)(\.\d*)?[eE]([-+]?)(\d+)", value.strip()) if isinstance(value, str) else None
    if number is None or parameter.scalar != "float":
        return ""
    sign, whole, fraction, exponent_sign, exponent = number.groups()
    return f" In YAML write `{sign}{whole}{fraction or '.0'}e{exponent_sign or '+'}{exponent}`."


def check_values(
    parameters: Sequence[Hyperparameter],
    given: Mapping[str, object],
    lines: Mapping[str, int],
    where: str = "settings",
) -> tuple[Problem, ...]:
    """Every value that is unknown, of the wrong type, not finite, or outside its choices; in file order."""
    known = {parameter.name: parameter for parameter in parameters}
    problems = []
    for name, value in given.items():
        line = lines.get(name)
        at = f"{where} line {line}" if line else where
        if name not in known:
            text = f"{at}: unknown hyperparameter `{name}`.{nearest(name, known)}"
            problems.append(Problem("unknown_hyperparameter", line, text))
        elif wrong := misfit(known[name], value):
            problems.append(Problem("hyperparameter_value", line, f"{at}: `{name}` {wrong}"))
    return in_file_order(problems)


def settled(parameters: Sequence[Hyperparameter], given: Mapping[str, Any]) -> Hyperparameters:
    """Every hyperparameter with its value, numbers in the type of their field: two equal settings compare equal."""
    values = {parameter.name: parameter.default for parameter in parameters} | dict(given)
    return {parameter.name: as_typed(parameter, values[parameter.name]) for parameter in parameters}


def as_typed(parameter: Hyperparameter, value: HyperparameterValue) -> HyperparameterValue:
    """`1` for a float is 1.0, `8.0` for an int is 8."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"float": float, "int": int}[parameter.scalar](value) if parameter.scalar in ("float", "int") else value
    return value
