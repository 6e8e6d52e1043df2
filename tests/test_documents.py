"""Documents stay true: links lead somewhere, commands exist, and nothing shadows the standard library."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from dare_platform.cli import app

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
COMMANDS = get_command(app)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text())
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_dare_command_in_a_code_block_exists(document: Path) -> None:
    blocks = re.findall(r"^```\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)
    named = {word for block in blocks for word in re.findall(r"^dare ([a-z-]+)", block, re.MULTILINE)}
    assert named <= set(COMMANDS.commands)  # type: ignore[attr-defined]


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"`make ([a-z-]+)", document.read_text()))
        assert named <= targets, document


def test_the_example_in_the_submission_guide_is_the_file_itself() -> None:
    guide = (ROOT / "docs" / "submit.md").read_text()
    block = re.search(r"```python\n(.*?)```", guide, re.DOTALL)
    assert block is not None
    assert block.group(1).strip() in (ROOT / "examples" / "submission" / "algorithm.py").read_text()


def test_the_folder_named_platform_does_not_shadow_the_standard_library() -> None:
    code = "import platform; print(platform.system())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip()
    assert not (ROOT / "platform" / "__init__.py").exists()


def test_every_study_says_its_commit_machine_and_date() -> None:
    for study in (ROOT / "docs" / "studies").glob("*.md"):
        text = study.read_text()
        assert re.search(r"commit [0-9a-f]{7}", text), study
        assert re.search(r"\b20\d\d\b", text), study
        assert "cores" in text, study
