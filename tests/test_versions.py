"""What is installed is compared with what pyproject.toml declares, before anything of a family is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from dare.versions import GATED, mismatch, mismatches, ranges, require_declared

ROOT = Path(__file__).resolve().parent.parent
TRANSFORMERS = SpecifierSet(">=4.57.6,<6")


@pytest.mark.parametrize("version", ["4.57.6", "4.58.0.dev0", "5.0.0rc1", "5.24.0", "5.99.1", "4.57.6+local.1"])
def test_a_version_in_the_range_is_no_mismatch(version: str) -> None:
    assert mismatch("transformers", version, TRANSFORMERS) is None


@pytest.mark.parametrize("version", ["4.57.5", "4.57.6.dev0", "4.9", "6.0.0", "6.0.0.dev0", "10.1"])
def test_a_version_outside_the_range_is_told_in_one_sentence_with_the_command_that_mends_it(version: str) -> None:
    found = mismatch("transformers", version, TRANSFORMERS)
    assert found is not None
    assert found.sentence == (
        f"transformers {version} is installed and DARE needs >=4.57.6,<6; "
        "mend it with: pip install 'transformers>=4.57.6,<6'"
    )


def test_a_missing_library_is_told_likewise() -> None:
    found = mismatch("torch", None, SpecifierSet("<2.15,>=2.9"))
    assert found is not None
    assert found.sentence == (
        "torch is not installed and DARE needs >=2.9,<2.15; mend it with: pip install 'torch>=2.9,<2.15'"
    )


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("2.13.0+cpu", True),
        ("2.9.1+cu128", True),
        ("2.14.0.dev20260101+cu130", True),
        ("2.8.0+cpu", False),
        ("2.15.0", False),
        ("2.15.0.dev20260101", False),
    ],
)
def test_a_build_label_does_not_count_and_a_nightly_build_belongs_to_its_line(version: str, fits: bool) -> None:
    assert (mismatch("torch", version, SpecifierSet(">=2.9,<2.15")) is None) == fits


def test_an_extra_has_the_libraries_whose_marker_holds_on_this_python() -> None:
    lines = [
        "rich<16,>=13.9",
        "Torch<2.15,>=2.9; extra == 'runner'",
        "celery[redis]<5.8,>=5.6; extra == 'platform'",
        "tomli>=2; python_version < '3.11' and extra == 'runner'",
    ]
    assert ranges(lines, "runner") == {"torch": SpecifierSet(">=2.9,<2.15")}
    assert ranges(lines, "platform") == {"celery": SpecifierSet(">=5.6,<5.8")}


def test_the_ranges_that_count_are_those_of_pyproject() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["runner"]
    written = {canonicalize_name(line.name): line.specifier for line in map(Requirement, declared)}
    assert written.keys() >= set(GATED)
    assert ranges(metadata.requires("dare") or (), "runner") == written, "installed before pyproject.toml was changed"


def test_all_that_the_runner_needs_is_here_and_in_its_range() -> None:
    assert mismatches("runner") == []
    require_declared()


def python(*arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def old_transformers(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH whose metadata, found first, is that of another release."""
    record = tmp_path / "transformers-4.46.2.dist-info" / "METADATA"
    record.parent.mkdir()
    record.write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 4.46.2\n")
    return tmp_path


def test_no_family_is_imported_with_libraries_outside_the_range(old_transformers: Path) -> None:
    done = python("-c", "import dare.families.llada", path=old_transformers)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("dare.versions.VersionError: transformers 4.46.2 is installed")


def test_a_command_of_the_runner_ends_in_the_sentence_alone(old_transformers: Path) -> None:
    done = python("-m", "dare", "generate", "S1", path=old_transformers)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("dare: transformers 4.46.2 is installed and DARE needs ")
    assert done.stderr.count("\n") == 1


def test_the_gate_imports_neither(tmp_path: Path) -> None:
    code = "import sys, dare.families; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    assert python("-c", code, path=tmp_path).stdout == "[]\n"
