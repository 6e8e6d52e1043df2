"""What a name in a file stands for: `D1` is `dare.algorithms.d1.D1`, `F.relu` is `torch.nn.functional.relu`."""

from __future__ import annotations

import ast
import threading
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources

ALGORITHM = "dare.algorithm.Algorithm"
Names = Mapping[str, str]


@lru_cache(maxsize=64)
def names_of(tree: ast.Module) -> Names:
    """Imported names and plain aliases of a module (`Base = D1`), each with its qualified name.

    Imports count wherever they stand, so that one inside a function is seen too.
    """
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    names[alias.asname] = alias.name
                else:
                    root = alias.name.partition(".")[0]
                    names[root] = root
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name | ast.Attribute):
            value = qualified(statement.value, names)
            for target in statement.targets:
                if isinstance(target, ast.Name) and value and target.id != value:
                    names[target.id] = value
    return names


def qualified(node: ast.expr, names: Names) -> str | None:
    """Dotted name of an expression such as `F.relu`, through imports; None for anything that is no plain name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Subscript):  # class MyRule(Base[int])
        return None
    if not isinstance(node, ast.Name):
        return None
    return ".".join([names.get(node.id, node.id), *reversed(parts)])


PARSING = threading.Lock()
"""Held around every `ast.parse`: in two threads at once, Python 3.11 may raise SystemError."""


def parsed(text: str) -> ast.Module:
    """The syntax tree of a text."""
    with PARSING:
        return ast.parse(text)


@cache
def module_tree(module: str) -> ast.Module | None:
    """Syntax tree of one of our own modules, `dare.algorithms.d1`; None if there is no such file."""
    parts = module.split(".")
    if parts[0] != "dare" or len(parts) < 2 or not all(part.isidentifier() for part in parts):
        return None
    file = resources.files("dare").joinpath(*parts[1:-1], f"{parts[-1]}.py")
    return parsed(file.read_text(encoding="utf-8")) if file.is_file() else None


@cache
def hooks() -> dict[str, tuple[str, ...]]:
    """Methods of the base classes that an entry may override, with the parameters they must take."""
    tree = module_tree("dare.algorithm")
    assert tree is not None
    bases = [node for node in tree.body if isinstance(node, ast.ClassDef)]  # those of errors have no methods
    return {
        node.name: tuple(argument.arg for argument in node.args.args[1:])
        for base in bases
        for node in base.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


@cache
def public_names(module: str) -> frozenset[str]:
    """What one of our modules defines itself: the modules that it imports are not among it."""
    tree = module_tree(module)
    names: set[str] = set()
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return frozenset(name for name in names if not name.startswith("_"))
