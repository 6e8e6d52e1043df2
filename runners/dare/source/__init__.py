"""What an algorithm file says, read from its text with `ast` and never by importing it. Works without torch.

`read_source` gives the class, its hyperparameters and every problem a person can mend before anything runs. This is
a courtesy to the one who submits, and no security boundary: text can hide what it does. Entry code is confined by
the place where it runs, whatever was read here.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from dare.source.hyperparameters import Hyperparameter, check_values, settled
from dare.source.names import ALGORITHM, Names, hooks, module_tree, names_of, parsed, qualified
from dare.source.problems import Problem, in_file_order
from dare.source.rules import rule_problems
from dare.source.values import NO_VALUE, constant, read_field
from dare.spec import Hyperparameters

TrainsOn = Literal["demonstrations", "preferences", "prompts"]
LARGEST_FILE = 1_000_000
CLASS_CHOICES = {
    "trains_on": ("demonstrations", "preferences", "prompts"),
    "needs": ("full", "old", "ref"),
    "record": ("confidence", "step_map", "tree", "x0"),
    "published_for": ("block", "masked"),
}
SETS = tuple(name for name in CLASS_CHOICES if name != "trains_on")


@dataclass(frozen=True)
class AlgorithmSource:
    """An algorithm as its file describes it."""

    name: str
    class_name: str
    summary: str
    """First sentence of the module, or of the class: what differs, and from where."""
    base: str
    line: int
    hyperparameters: tuple[Hyperparameter, ...]
    trains_on: TrainsOn
    needs: frozenset[str]
    record: frozenset[str]
    published_for: frozenset[str]
    """Kinds of family that the method's authors ran it on; on others it is our extension."""
    overridden: tuple[str, ...]
    text: str
    sha256: str

    def settled(self, given: Mapping[str, Any]) -> Hyperparameters:
        """Every hyperparameter with its value: `given` over the defaults, numbers in the type of their field."""
        return settled(self.hyperparameters, given)


@dataclass(frozen=True)
class Reading:
    """The outcome of reading a file. `algorithm` is None when no class could be made out."""

    algorithm: AlgorithmSource | None
    problems: tuple[Problem, ...]


def read_source(content: bytes, name: str, file_name: str = "algorithm.py", built_in: bool = False) -> Reading:
    """Read one file. `built_in` skips the rules that bind submitted entries only."""
    tree = parse(content, file_name)
    if isinstance(tree, Problem):
        return Reading(None, (tree,))
    try:
        return _read(tree, content.decode().removeprefix("\ufeff"), name, file_name, built_in)
    except RecursionError:  # Python parses deeper expressions than it can print
        return Reading(None, (_too_deep(file_name),))


def _read(tree: ast.Module, text: str, name: str, file_name: str, built_in: bool) -> Reading:
    found = _algorithm_classes(tree)
    problems = [] if built_in else rule_problems(tree, file_name, found[0] if len(found) == 1 else None)
    if len(found) != 1:
        problems.append(_not_one_class(found, file_name))
        return Reading(None, in_file_order(problems))
    described = _describe(found[0], tree, file_name)
    problems += described.problems
    if "full" in described.needs and not _says(found[0], tree, "aux_loss"):
        text = f'`{file_name}` line {found[0].lineno}: `{found[0].name}` needs "full" distributions and has no '
        text += '`aux_loss` to read them. Write one, or leave "full" out of `needs`.'
        problems.append(Problem("no_aux_loss", found[0].lineno, text))
    if not _says(found[0], tree, "loss"):
        text = f"`{file_name}` line {found[0].lineno}: `{found[0].name}` has no `loss`. Write one, or derive from GRPO."
        problems.append(Problem("no_loss", found[0].lineno, text))
    source = AlgorithmSource(
        name=name,
        class_name=found[0].name,
        summary=first_sentence(ast.get_docstring(tree) or ast.get_docstring(found[0]) or ""),
        base=described.base,
        line=found[0].lineno,
        hyperparameters=tuple(described.fields.values()),
        trains_on=described.trains_on,
        needs=described.needs,
        record=described.record,
        published_for=described.published_for,
        overridden=tuple(
            node.name for node in found[0].body if isinstance(node, ast.FunctionDef) and node.name in hooks()
        ),
        text=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )
    return Reading(source, in_file_order(problems))


def parse(content: bytes, file_name: str) -> ast.Module | Problem:
    """The syntax tree, or the one problem that keeps us from having one."""
    if len(content) > LARGEST_FILE:
        size = f"{len(content) / 1e6:.1f}" if len(content) >= 1_050_000 else f"{len(content) / 1e6:.3f}"
        text = f"`{file_name}` is {size} MB; the limit is 1 MB. Weights and data do not belong in an entry."
        return Problem("too_large", None, text)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        where = f"first bad byte at position {error.start + 1:,}"
        return Problem("not_utf8", None, f"`{file_name}` is not UTF-8 ({where}). Save it as UTF-8.")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        if encoding not in ("utf-8", "utf-8-sig"):
            text = f"`{file_name}` line 1: it declares the encoding {encoding}. Save it as UTF-8."
            return Problem("not_utf8", 1, text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an escape like "\d" in their file is not ours to report
            return parsed(text.removeprefix("\ufeff"))
    except SyntaxError as error:
        line = error.lineno or 1
        return Problem("syntax", line, f"`{file_name}` line {line}: {error.msg}.")
    except (ValueError, RecursionError, MemoryError):
        return _too_deep(file_name)


def _too_deep(file_name: str) -> Problem:
    return Problem("syntax", None, f"`{file_name}` is not Python that can be read: it is nested too deeply.")


def first_sentence(docstring: str) -> str:
    """The first paragraph up to its first full stop, on one line; abbreviations inside it do not end it."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    head, stop, _ = paragraph.partition(". ")
    return head + "." if stop else paragraph


def check_hyperparameters(
    source: AlgorithmSource, given: Mapping[str, object], lines: Mapping[str, int], where: str = "settings"
) -> tuple[Problem, ...]:
    """Problems of the values that somebody sets for this algorithm."""
    return check_values(source.hyperparameters, given, lines, where)


# --- which class ----------------------------------------------------------------------------------------------------


def _classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _bases(cls: ast.ClassDef, names: Names) -> list[str]:
    return [name for base in cls.bases if (name := qualified(base, names)) is not None]


def resolve_class(name: str, tree: ast.Module) -> tuple[ast.ClassDef, ast.Module] | None:
    """A class by its qualified name, or by its bare name within `tree`; with the module that defines it."""
    module, _, class_name = name.rpartition(".")
    where = module_tree(module) if module else tree
    found = _classes(where).get(class_name) if where is not None else None
    return (found, where) if found is not None and where is not None else None


def is_algorithm(cls: ast.ClassDef, tree: ast.Module, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a class derives from Algorithm, through aliases, built-in algorithms or classes of its own file."""
    seen |= {cls.name}
    return any(_is_root(*found) or is_algorithm(*found, seen) for found in _parents(cls, tree, seen))


def _says(cls: ast.ClassDef, tree: ast.Module, hook: str, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a class or one that it derives from has a hook of its own; the bare Algorithm's do not count."""
    if any(isinstance(node, ast.FunctionDef) and node.name == hook for node in cls.body):
        return True
    seen |= {cls.name}
    return any(not _is_root(*found) and _says(*found, hook, seen) for found in _parents(cls, tree, seen))


def _parents(cls: ast.ClassDef, tree: ast.Module, seen: frozenset[str]) -> Iterator[tuple[ast.ClassDef, ast.Module]]:
    """The classes that a class derives from, as far as they are ours or of its own file; no name twice in a chain."""
    for base in _bases(cls, names_of(tree)):
        found = resolve_class(base, tree)
        if found is not None and found[0].name not in seen:
            yield found


def _is_root(cls: ast.ClassDef, tree: ast.Module) -> bool:
    module, _, name = ALGORITHM.rpartition(".")
    return cls.name == name and tree is module_tree(module)


def _algorithm_classes(tree: ast.Module) -> list[ast.ClassDef]:
    return [cls for cls in _classes(tree).values() if is_algorithm(cls, tree)]


def _not_one_class(found: list[ast.ClassDef], file_name: str) -> Problem:
    if not found:
        text = (
            f"`{file_name}`: no class derives from Algorithm. "
            "Write one: `from dare.algorithm import GRPO`, then `class MyRule(GRPO):`."
        )
        return Problem("no_class", None, text)
    count = {2: "two", 3: "three", 4: "four"}.get(len(found), str(len(found)))
    listed = ", ".join(f"`{cls.name}` line {cls.lineno}" for cls in found)
    text = f"`{file_name}`: {count} classes derive from Algorithm ({listed}). Keep one"
    return Problem("two_classes", None, f"{text}; small functions beside it are fine.")


# --- what the class says --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Description:
    fields: dict[str, Hyperparameter]
    trains_on: TrainsOn
    needs: frozenset[str]
    record: frozenset[str]
    published_for: frozenset[str]
    base: str
    problems: tuple[Problem, ...]


def _describe(cls: ast.ClassDef, tree: ast.Module, file_name: str, depth: int = 0) -> _Description:
    """Fields and class variables, bases first. Problems are those of this class, never those of a base."""
    fields: dict[str, Hyperparameter] = {}
    kept: dict[str, object] = {"trains_on": "prompts", **dict.fromkeys(SETS, frozenset())}
    bases = _bases(cls, names_of(tree))
    for base in reversed(bases if depth < 20 else []):
        resolved = resolve_class(base, tree)
        if resolved is None or resolved[0] is cls:
            continue
        above = _describe(*resolved, file_name, depth + 1)
        for name, inherited in above.fields.items():
            fields[name] = inherited
        kept = {"trains_on": above.trains_on, **{name: getattr(above, name) for name in SETS}}
    problems: list[Problem] = []
    for position, node in enumerate(cls.body):
        value: ast.expr | None = None
        annotation: ast.expr | None = None
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            target, value = node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            target, annotation, value = node.target.id, node.annotation, node.value
        else:
            continue
        at = f"`{file_name}` line {node.lineno}"
        if target in CLASS_CHOICES:
            read = _class_value(target, value, at, node.lineno)
            if annotation is not None and not _is_class_variable(annotation):
                text = f"{at}: `{target}` is no hyperparameter. Annotate it with `ClassVar`."
                problems.append(Problem("class_variable", node.lineno, text))
            if isinstance(read, Problem):
                problems.append(read)
            else:
                kept[target] = read
        elif annotation is None:
            if target in fields:
                text = f"{at}: hyperparameter `{target}` has no type, so its new default is ignored."
                text += f" Write `{target}: {fields[target].type} = …`."
                problems.append(Problem("no_type", node.lineno, text))
            elif not target.startswith("_") and constant(value, tree) is not NO_VALUE:
                text = f"{at}: hyperparameter `{target}` has no type."
                text += f" Write `{target}: float = …`, or annotate it with `ClassVar` if it is none."
                problems.append(Problem("no_type", node.lineno, text))
        elif not _is_class_variable(annotation):
            help_text = _docstring_after(cls.body, position)
            field = read_field(target, annotation, value, tree, cls.name, node.lineno, file_name)
            if isinstance(field, Problem):
                problems.append(field)
            else:
                inherited_help = fields[target].help if target in fields else ""
                fields[target] = replace(field, help=help_text or inherited_help)
    return _Description(
        fields=fields,
        trains_on=kept["trains_on"],  # type: ignore[arg-type]  # one of CLASS_CHOICES
        needs=kept["needs"],  # type: ignore[arg-type]
        record=kept["record"],  # type: ignore[arg-type]
        published_for=kept["published_for"],  # type: ignore[arg-type]
        base=bases[0].rpartition(".")[2] if bases else "",
        problems=tuple(problems),
    )


def _is_class_variable(annotation: ast.expr) -> bool:
    return "ClassVar" in ast.unparse(annotation)


def _docstring_after(body: list[ast.stmt], position: int) -> str:
    following = body[position + 1] if position + 1 < len(body) else None
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        value = following.value.value
        return " ".join(value.split()) if isinstance(value, str) else ""
    return ""


def _class_value(name: str, value: ast.expr | None, at: str, line: int) -> str | frozenset[str] | Problem:
    """Value of one of CLASS_CHOICES."""
    choices = CLASS_CHOICES[name]
    read = literal_set(value) if name != "trains_on" else None
    if name == "trains_on" and isinstance(value, ast.Constant) and value.value in choices:
        return str(value.value)
    if read is not None and read <= set(choices):
        return read
    listed = ", ".join(f'"{choice}"' for choice in choices)
    form = f"one of {listed}" if name == "trains_on" else f"a `frozenset` of some of {listed}"
    given = ast.unparse(value) if value is not None else "nothing"
    return Problem("class_variable", line, f"{at}: `{name}` is `{given}`; it must be {form}.")


def literal_set(value: ast.expr | None) -> frozenset[str] | None:
    """The strings of `frozenset({...})`, `frozenset()` or a set display; None for anything else."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "frozenset":
        if not value.args:
            return frozenset()
        value = value.args[0]
    if not isinstance(value, ast.Set | ast.List | ast.Tuple):
        return None
    strings = [item.value for item in value.elts if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return frozenset(strings) if len(strings) == len(value.elts) else None
