"""Installed libraries against the ranges that DARE declares: one sentence for each that is outside. Imports none.

The ranges stand in pyproject.toml alone. They are read back from the metadata of the installed package, so that what
pip resolves and what is refused here cannot differ. A source tree that was never installed declares nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

GATED = ("torch", "transformers")
"""What every family stands on, and what breaks deep inside when it is too old or too new."""


class VersionError(ImportError):
    """A library that every family stands on is missing, or its version is outside the declared range."""


@dataclass(frozen=True)
class Mismatch:
    """A library that is not what is declared. `installed` is None where it is missing; `needed` is a specifier."""

    name: str
    installed: str | None
    needed: str

    @property
    def finding(self) -> str:
        """What is here and what is needed."""
        return f"{self.installed or 'not installed'}, DARE needs {self.needed}"

    @property
    def remedy(self) -> str:
        """The command that brings one of the range. The quotes keep a shell from reading `<` and `>`."""
        return f"pip install '{self.name}{self.needed}'"

    @property
    def sentence(self) -> str:
        """All of it."""
        here = f"{self.name} {self.installed} is installed" if self.installed else f"{self.name} is not installed"
        return f"{here} and DARE needs {self.needed}; mend it with: {self.remedy}"


def ranges(requirements: Iterable[str], extra: str) -> dict[str, SpecifierSet]:
    """The range of each library that `extra` asks for on this Python; `requirements` as package metadata has them."""
    lines = map(Requirement, requirements)
    asked = [line for line in lines if line.marker is not None and line.marker.evaluate({"extra": extra})]
    return {canonicalize_name(line.name): line.specifier for line in asked}


def mismatch(name: str, installed: str | None, needed: SpecifierSet) -> Mismatch | None:
    """None where the installed version is in the range.

    Build labels (`2.13.0+cpu`) do not count. Pre-releases do: a nightly build of a declared line is in the range, one
    of the first line beyond it is not.
    """
    if installed is not None and needed.contains(installed, prereleases=True):
        return None
    low_to_high = sorted(map(str, needed), key=lambda bound: (bound.startswith("<"), bound))
    return Mismatch(name, installed, ",".join(low_to_high))


def mismatches(extra: str, names: Iterable[str] | None = None) -> list[Mismatch]:
    """What is missing or outside its range, among `names` or all libraries of the extra."""
    needed = _declared(extra)
    chosen = needed if names is None else [name for name in names if name in needed]
    found = [mismatch(name, _installed(name), needed[name]) for name in chosen]
    return [one for one in found if one is not None]


def require_declared() -> None:
    """Raise VersionError, one sentence per library, unless torch and transformers are in their declared ranges."""
    if wrong := mismatches("runner", GATED):
        raise VersionError(". ".join(one.sentence for one in wrong))


@cache
def _declared(extra: str) -> dict[str, SpecifierSet]:
    try:
        return ranges(metadata.requires("dare") or (), extra)
    except metadata.PackageNotFoundError:
        return {}


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
