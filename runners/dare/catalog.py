"""What can be run, known without importing torch: backbones by their record, algorithms and families by source.

Backbones are shipped with the package or added by a person: `dare backbone add` leaves a record in `added_root()`.
"""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from pydantic import Field, ValidationError

from dare.frozen import Frozen
from dare.sampling_config import SamplingConfig
from dare.source import AlgorithmSource, literal_set, read_source
from dare.source.names import module_tree, names_of, parsed, qualified
from dare.source.problems import Problem, nearest
from dare.spec import BackboneRef
from dare.support import RECORDED, Support, missing_records, support


class UnknownAlgorithmError(ValueError):
    """No file of that name is among the built-in algorithms."""


class UnreadableSourceError(ValueError):
    """A file of ours does not say what it must say; the message names it."""


class UnknownBackboneError(ValueError):
    """No backbone of that name is in the catalog, or its files are not where they were."""


class BackboneRecord(Frozen):
    """One backbone: `backbone.json` beside its weights."""

    name: str
    family: str
    revision: str
    weights_sha256: str
    tokenizer_sha256: str
    parameters: int
    tiny: bool
    """Small enough for a CPU worker."""
    licence: str
    summary: str
    sampling: SamplingConfig
    """How its rollouts are decoded when nobody says otherwise."""
    recipe: dict[str, str | int | float] = Field(default_factory=dict)
    """How a backbone that we made was made."""
    directory: str | None = None
    """Where config, weights and tokenizer of an added backbone lie; None is beside the record."""
    origin: str | None = None
    """The hub id that an added backbone was fetched from, at `revision`; None for a folder."""
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of every file of an added backbone."""

    @property
    def ref(self) -> BackboneRef:
        """What a job says of it."""
        return BackboneRef(
            name=self.name,
            family=self.family,
            revision=self.revision,
            weights_sha256=self.weights_sha256,
            tokenizer_sha256=self.tokenizer_sha256,
        )


def added_root() -> Path:
    """Where the records of added backbones lie: DARE_BACKBONES, or `backbones` in DARE_HOME."""
    return Path(
        os.environ.get("DARE_BACKBONES") or Path(os.environ.get("DARE_HOME") or ".dare") / "backbones"
    ).absolute()


def backbone_directory(name: str) -> Path:
    """Where a backbone's config, weights and tokenizer lie."""
    record = backbones().get(name)
    if record is None:
        raise UnknownBackboneError(f"unknown backbone {name!r}; known: {', '.join(backbones())}")
    if record.directory is None:
        return _shipped_root() / name
    directory = Path(record.directory)
    if not directory.is_dir():
        raise UnknownBackboneError(
            f"backbone {name} was added from {directory}, which is not there now: bring it back, or add it again"
        )
    return directory


def backbones() -> dict[str, BackboneRecord]:
    """All backbones by name: shipped ones, and those that were added on this machine."""
    added = [_record(file) for file in sorted(added_root().glob("*/backbone.json"))]
    return {**_shipped(), **{record.name: record for record in added if record.name not in _shipped()}}


def is_shipped(name: str) -> bool:
    """Whether a backbone comes with the package."""
    return name in _shipped()


def _shipped_root() -> Path:
    return Path(str(resources.files("dare").joinpath("backbones")))


@cache
def _shipped() -> dict[str, BackboneRecord]:
    records = [_record(file) for file in sorted(_shipped_root().glob("*/backbone.json"))]
    return {record.name: record for record in records}


def _record(file: Path) -> BackboneRecord:
    try:
        return BackboneRecord.model_validate_json(file.read_text(encoding="utf-8"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UnreadableSourceError(f"{file}: {where}: {first['msg']}; remove it and add the backbone again") from error


@cache
def algorithms() -> dict[str, AlgorithmSource]:
    """All built-in algorithms by the name of their file, read and not imported."""
    root = Path(str(resources.files("dare").joinpath("algorithms")))
    return {file.stem: _built_in(file) for file in sorted(root.glob("*.py")) if not file.stem.startswith("_")}


def _built_in(file: Path) -> AlgorithmSource:
    reading = read_source(file.read_bytes(), file.stem, file.name, built_in=True)
    if reading.algorithm is None:
        raise UnreadableSourceError(f"built-in algorithm {file.name}: {reading.problems[0].text}")
    return reading.algorithm


def load_source(name: str) -> AlgorithmSource:
    """A built-in algorithm by name; UnknownAlgorithmError suggests the nearest one."""
    if name not in algorithms():
        raise UnknownAlgorithmError(f"There is no built-in algorithm `{name}`.{nearest(name, algorithms())}")
    return algorithms()[name]


@dataclass(frozen=True)
class FamilyRecord:
    """What a family's folder says of itself: `FAMILY` in its `__init__`."""

    name: str
    kind: str
    records: frozenset[str]
    """What its sampler can record of a rollout."""


@cache
def families() -> dict[str, FamilyRecord]:
    """All families by name, read and not imported."""
    root = Path(str(resources.files("dare").joinpath("families")))
    folders = sorted(file.parent for file in root.glob("*/__init__.py"))
    return {folder.name: _family(folder) for folder in folders}


def _family(folder: Path) -> FamilyRecord:
    """Class attributes of the class that `FAMILY` is an instance of, or the keywords that it is made with."""
    tree = parsed((folder / "__init__.py").read_text(encoding="utf-8"))
    said: dict[str, ast.expr] = {}
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        named = any(isinstance(target, ast.Name) and target.id == "FAMILY" for target in targets)
        if named and isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == value.func.id]
            said = _class_attributes(classes[0]) if classes else {}
            said |= {word.arg: word.value for word in value.keywords if word.arg}
    kind, records = said.get("kind"), literal_set(_resolved(said.get("records"), tree))
    if not (isinstance(kind, ast.Constant) and kind.value in ("masked", "block")) or records is None:
        raise UnreadableSourceError(
            f"family {folder.name}: FAMILY must be made from a class of its __init__.py that has `kind` and `records`"
        )
    return FamilyRecord(name=folder.name, kind=str(kind.value), records=records)


def _resolved(value: ast.expr | None, tree: ast.Module) -> ast.expr | None:
    """What a name stands for when one of our modules defines it; anything else as it is."""
    name = qualified(value, names_of(tree)) if isinstance(value, ast.Name | ast.Attribute) else None
    module, _, bare = (name or "").rpartition(".")
    where = module_tree(module) if module else tree
    if name is None or where is None:
        return value
    for node in where.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == bare for target in targets):
            return getattr(node, "value", None)
    return value


def _class_attributes(cls: ast.ClassDef) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for node in cls.body:
        if isinstance(node, ast.Assign):
            found |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node.value
    return found


def support_of(algorithm: AlgorithmSource, family: str) -> Support:
    """Whether an algorithm runs on a family, and whether its authors ran it on one of that kind."""
    said = families()[family]
    return support(algorithm.record, algorithm.published_for, said.kind, said.records)


def unsupported(algorithm: AlgorithmSource, backbone: BackboneRecord) -> Problem | None:
    """Why an algorithm cannot train a backbone: its sampler does not record what the algorithm reads."""
    missing = missing_records(algorithm.record, families()[backbone.family].records)
    if not missing:
        return None
    wanted = ", ".join(f'"{record}"' for record in missing)
    things = " and ".join(RECORDED[record] for record in missing)
    text = (
        f"`{algorithm.class_name}` needs {things} (`record={{{wanted}}}`); the sampler of {backbone.name} does not "
        "record them. Choose another backbone or leave `record` empty."
    )
    return Problem("not_recorded", None, text)
