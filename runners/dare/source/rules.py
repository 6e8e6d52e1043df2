"""What a submitted file may use: which imports, names and method signatures. One sentence for each breach.

Like all reading of source, these rules catch mistakes and plain disregard of the rules; they confine nobody.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dare.source.names import hooks, module_tree, names_of, public_names, qualified
from dare.source.problems import Problem, nearest

STANDARD = frozenset({"__future__", "collections.abc", "dataclasses", "math", "typing"})
SEAM = frozenset({"dare.algorithm", "dare.types", "dare.objectives", "dare.forward_process"})
BUILTINS = frozenset(
    {
        "__import__",
        "breakpoint",
        "compile",
        "eval",
        "exec",
        "exit",
        "globals",
        "input",
        "locals",
        "open",
        "quit",
        "vars",
    }
)
HARMLESS_DUNDERS = frozenset({"__all__", "__doc__", "__init__", "__name__", "__post_init__"})
FILES = "Entries read and write no files."
RANDOM = "It touches global random state. Use the generators that the hooks pass in."
PROCESSES = "Entries start nothing and load no code."
SETTINGS = "It changes a setting of the whole process; those belong to the track."
TORCH = {
    "torch.load": FILES,
    "torch.save": FILES,
    "torch.from_file": FILES,
    "torch.serialization": FILES,
    "torch.package": FILES,
    "torch.hub": "Entries run without a network.",
    "torch.manual_seed": RANDOM,
    "torch.seed": RANDOM,
    "torch.initial_seed": RANDOM,
    "torch.random": RANDOM,
    "torch.get_rng_state": RANDOM,
    "torch.default_generator": RANDOM,
    "torch.cuda.manual_seed": RANDOM,
    "torch.cuda.manual_seed_all": RANDOM,
    "torch.use_deterministic_algorithms": SETTINGS,
    "torch.backends": SETTINGS,
    "torch.compile": PROCESSES,
    "torch.distributed": PROCESSES,
    "torch.multiprocessing": PROCESSES,
    "torch.jit": PROCESSES,
    "torch.ops": PROCESSES,
    "torch.classes": PROCESSES,
    "torch.utils": PROCESSES,
    "torch.os": FILES,
    "torch.sys": PROCESSES,
}
DRAWS = frozenset(
    f"torch.{name}"
    for name in ("bernoulli", "multinomial", "normal", "rand", "randint", "randn", "randperm", "poisson")
)
DRAWS_OF_A_TENSOR = frozenset({"bernoulli_", "exponential_", "normal_", "random_", "uniform_"})


def rule_problems(tree: ast.Module, file_name: str, algorithm: ast.ClassDef | None) -> list[Problem]:
    """All breaches in a file; `algorithm` is its one class, when that is known."""
    problems = [*_imports(tree, file_name), *_names(tree, file_name)]
    if algorithm is not None:
        problems += [
            *_decorator(algorithm, tree, file_name),
            *_signatures(algorithm, file_name),
            *_attributes(algorithm, tree, file_name),
        ]
    return problems


def _imports(tree: ast.Module, file_name: str) -> Iterator[Problem]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if not _importable(alias.name):
                    yield _import_refused(f"import {alias.name}", node.lineno, file_name)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                full = f"{module}.{alias.name}"
                if reason := _torch_reason(full):
                    text = f"`{file_name}` line {node.lineno}: `{full}` is not allowed. {reason}"
                    yield Problem("forbidden_name", node.lineno, text)
                elif not (_importable(module) or (module == "dare" and _importable(full)) or full == "collections.abc"):
                    yield _import_refused(f"from {module} import {alias.name}", node.lineno, file_name)
                elif module_tree(module) is not None and alias.name not in public_names(module) | {"*"}:
                    text = f"`{file_name}` line {node.lineno}: `{module}` has no `{alias.name}`."
                    text += nearest(alias.name, public_names(module))
                    yield Problem("unknown_import", node.lineno, text)


def _importable(module: str) -> bool:
    if module in STANDARD | SEAM or module == "dare.algorithms":
        return True
    if module == "torch" or module.startswith("torch."):
        return _torch_reason(module) is None
    return module.startswith("dare.algorithms.") and module_tree(module) is not None


def _import_refused(written: str, line: int, file_name: str) -> Problem:
    text = (
        f"`{file_name}` line {line}: `{written}` is not allowed. "
        "Entries may import torch, math, dataclasses, typing and dare. Entries run without a network."
    )
    return Problem("forbidden_import", line, text)


def _torch_reason(name: str) -> str | None:
    """Why a dotted name under torch may not be used; None when it may."""
    parts = name.split(".")
    if parts[0] != "torch":
        return None
    for end in range(2, len(parts) + 1):
        if reason := TORCH.get(".".join(parts[:end])):
            return reason
    return SETTINGS if len(parts) > 1 and parts[1].startswith("set_") else None


def _names(tree: ast.Module, file_name: str) -> Iterator[Problem]:
    names = names_of(tree)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        written = reason = None
        if isinstance(node, ast.Name) and node.id in BUILTINS and isinstance(node.ctx, ast.Load):
            written, reason = node.id, FILES if node.id == "open" else "Entries run no text as code and ask nobody."
        elif isinstance(node, ast.Name) and _is_dunder(node.id):
            written, reason = node.id, "It reaches behind the language."
        elif isinstance(node, ast.Attribute) and _is_dunder(node.attr):
            written, reason = node.attr, "It reaches behind the language."
        elif isinstance(node, ast.Attribute) and id(node) not in inner:
            full = qualified(node, names) or ""
            written, reason = full, _torch_reason(full)
        elif isinstance(node, ast.Call) and not any(word.arg in ("generator", None) for word in node.keywords):
            full = qualified(node.func, names) or ""
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if full in DRAWS or method in DRAWS_OF_A_TENSOR:
                written = full if full in DRAWS else method
                reason = "Without `generator=` it draws from global random state. Pass one that the hooks give you."
        if written and reason:
            line = getattr(node, "lineno", 1)
            yield Problem("forbidden_name", line, f"`{file_name}` line {line}: `{written}` is not allowed. {reason}")


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in HARMLESS_DUNDERS | BUILTINS


def _decorator(cls: ast.ClassDef, tree: ast.Module, file_name: str) -> Iterator[Problem]:
    for decorator in cls.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        if qualified(call.func if call else decorator, names_of(tree)) == "dataclasses.dataclass":
            on = {
                word.arg
                for word in (call.keywords if call else ())
                if isinstance(word.value, ast.Constant) and word.value.value is True
            }
            if {"frozen", "kw_only"} <= on:
                return
    line = cls.lineno
    text = f"`{file_name}` line {line}: `{cls.name}` must be a frozen dataclass."
    text += " Write `@dataclass(frozen=True, kw_only=True)` above it."
    yield Problem("not_a_dataclass", line, text)


def _signatures(cls: ast.ClassDef, file_name: str) -> Iterator[Problem]:
    for node in cls.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name not in hooks():
            continue
        wanted = hooks()[node.name]
        arguments = node.args
        positional = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
        required = positional[1 : len(positional) - len(arguments.defaults)] if positional else []
        missing = [
            argument.arg
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is None
        ]
        takes_all = arguments.vararg is not None and arguments.kwarg is not None
        fits = tuple(positional[1 : 1 + len(wanted)]) == wanted and len(required) <= len(wanted) and not missing
        if isinstance(node, ast.AsyncFunctionDef) or not (fits or (takes_all and not missing and len(required) == 0)):
            given, needed = ", ".join([*positional[1:], *missing]), ", ".join(wanted)
            text = f"`{file_name}` line {node.lineno}: `{node.name}` takes ({given}); it must take ({needed})."
            if isinstance(node, ast.AsyncFunctionDef):
                text = f"`{file_name}` line {node.lineno}: `{node.name}` is `async`; write a plain function."
            yield Problem("signature", node.lineno, text)


def _attributes(cls: ast.ClassDef, tree: ast.Module, file_name: str) -> Iterator[Problem]:
    """`self.mc_sample` where the class has `mc_samples`. Silent when a base class cannot be read."""
    known = _members(cls, tree)
    for method in cls.body:
        if not isinstance(method, ast.FunctionDef) or not method.args.args:
            continue
        own = method.args.args[0].arg
        for node in ast.walk(method):
            if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == own):
                continue
            at = f"`{file_name}` line {node.lineno}"
            if not isinstance(node.ctx, ast.Load):
                text = f"{at}: `{own}.{node.attr}` is set, but an algorithm is frozen. Keep values in local variables."
                yield Problem("frozen", node.lineno, text)
            elif known is not None and node.attr not in known and not _is_dunder(node.attr):
                fields = known - set(hooks())
                text = f"{at}: unknown hyperparameter `{node.attr}`.{nearest(node.attr, fields)}"
                yield Problem("unknown_hyperparameter", node.lineno, text)


def _members(cls: ast.ClassDef, tree: ast.Module, depth: int = 0) -> set[str] | None:
    """Names that instances of a class have, bases included; None when a base cannot be read."""
    members: set[str] = set()
    for node in cls.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            members.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            members.add(node.target.id)
        elif isinstance(node, ast.Assign):
            members |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for base in cls.bases:
        module, _, name = (qualified(base, names_of(tree)) or "?").rpartition(".")
        where = module_tree(module) if module else tree
        found = next((n for n in where.body if isinstance(n, ast.ClassDef) and n.name == name), None) if where else None
        above = _members(found, where, depth + 1) if found and where and depth < 20 else None
        if above is None:
            return None
        members |= above
    return members
