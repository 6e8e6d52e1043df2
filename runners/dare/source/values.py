"""Types and defaults of hyperparameters, read from syntax trees: nothing is evaluated."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from dare.source.hyperparameters import Hyperparameter, Scalar, as_typed, misfit
from dare.source.names import PARSING, module_tree, names_of, qualified
from dare.source.problems import Problem
from dare.spec import HyperparameterValue

SCALARS = ("bool", "int", "float", "str")


class NoValue:
    """Stands for "no constant", since None is one."""


NO_VALUE = NoValue()


@dataclass(frozen=True)
class _Type:
    scalar: Scalar
    optional: bool
    choices: tuple[HyperparameterValue, ...] | None


def read_field(
    name: str, annotation: ast.expr, value: ast.expr | None, tree: ast.Module, owner: str, line: int, file_name: str
) -> Hyperparameter | Problem:
    """The field `name: annotation = value` of class `owner`, or what keeps it from being a hyperparameter."""
    at = f"`{file_name}` line {line}"
    quoted = isinstance(annotation, ast.Constant) and isinstance(annotation.value, str)
    written = ast.unparse(annotation).strip("'") if quoted else ast.unparse(annotation)
    kind = _type(annotation, tree)
    if kind is None:
        text = f"{at}: hyperparameter `{name}` has the type `{written}`."
        text += " Use bool, int, float, str, Literal, or one of these `| None`."
        return Problem("type", line, text)
    if value is None:
        text = f"{at}: hyperparameter `{name}` has no default. Give it the published value: `{name}: {written} = …`."
        return Problem("no_default", line, text)
    default = constant(value, tree)
    if isinstance(default, NoValue):
        text = (
            f"{at}: the default of `{name}` is `{ast.unparse(value)}`. Write a plain number, text, True, False or None."
        )
        return Problem("default", line, text)
    parameter = Hyperparameter(name, str(written), kind.scalar, kind.optional, kind.choices, default, "", line, owner)
    wrong = misfit(parameter, default)
    if wrong:
        return Problem("default", line, f"{at}: the default of `{name}` {wrong}")
    return replace(parameter, default=as_typed(parameter, default))


def _type(annotation: ast.expr, tree: ast.Module, depth: int = 0) -> _Type | None:
    """The supported types: a scalar, a Literal of one kind of scalar, an alias of one, each perhaps `| None`."""
    if depth > 5:
        return None
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            with PARSING:
                quoted = ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return None
        return _type(quoted, tree, depth + 1)
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        sides = [annotation.left, annotation.right]
        kept = [side for side in sides if not (isinstance(side, ast.Constant) and side.value is None)]
        inner = _type(kept[0], tree, depth + 1) if len(kept) == 1 else None
        return replace(inner, optional=True) if inner else None
    if isinstance(annotation, ast.Subscript):
        outer = qualified(annotation.value, names_of(tree)) or ""
        if outer == "typing.Optional":
            inner = _type(annotation.slice, tree, depth + 1)
            return replace(inner, optional=True) if inner else None
        return _literal(annotation.slice) if outer == "typing.Literal" else None
    name = qualified(annotation, names_of(tree))
    if name in SCALARS:
        return _Type(name, False, None)  # type: ignore[arg-type]  # a key of SCALARS
    return _alias(name, tree, depth) if name else None


def _literal(inner: ast.expr) -> _Type | None:
    elements = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    values = [element.value for element in elements if isinstance(element, ast.Constant)]
    kinds = {type(value).__name__ for value in values if value is not None}
    if len(values) != len(elements) or len(kinds) != 1 or not kinds <= set(SCALARS):
        return None
    return _Type(kinds.pop(), None in values, tuple(values))  # type: ignore[arg-type]  # a key of SCALARS


def _alias(name: str, tree: ast.Module, depth: int) -> _Type | None:
    """A type alias of this file, or of one of our modules: `AdvantageKind`."""
    module, _, bare = name.rpartition(".")
    where = module_tree(module) if module else tree
    for node in where.body if where is not None else []:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == bare for t in node.targets):
            return _type(node.value, where, depth + 1) if where is not None else None
    return None


def constant(value: ast.expr | None, tree: ast.Module, depth: int = 0) -> HyperparameterValue | NoValue:
    """A constant without running anything: literals, signs, the four operations, constants of the same file."""
    if depth > 10:
        return NO_VALUE
    if isinstance(value, ast.Constant) and isinstance(value.value, bool | int | float | str | None):
        return value.value
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub | ast.UAdd):
        inner = constant(value.operand, tree, depth + 1)
        if type(inner) in (int, float):
            return -inner if isinstance(value.op, ast.USub) else inner  # type: ignore[operator]
    if isinstance(value, ast.BinOp):
        left, right = constant(value.left, tree, depth + 1), constant(value.right, tree, depth + 1)
        if type(left) in (int, float) and type(right) in (int, float):
            return _arithmetic(value.op, left, right)  # type: ignore[arg-type]
    if isinstance(value, ast.Name):
        for node in tree.body:
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == value.id for t in node.targets):
                return constant(node.value, tree, depth + 1)
    return NO_VALUE


def _arithmetic(operator: ast.operator, left: float, right: float) -> float | NoValue:
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    return left / right if isinstance(operator, ast.Div) and right else NO_VALUE
