"""docs/operate.md names what there is to set, and what can go wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from dare.spec import Cause

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = (REPOSITORY / "docs" / "operate.md").read_text(encoding="utf-8")


def test_every_setting_stands_on_the_page() -> None:
    code = (REPOSITORY / "platform" / "dare_platform" / "settings.py").read_text(encoding="utf-8")
    asked = {name.removesuffix("_FILE") for name in re.findall(r'"(DARE_[A-Z_]+)"', code)} - {"DARE_"}
    assert len(asked) > 30
    assert sorted(name for name in asked if f"| `{name}` |" not in PAGE) == []


def test_every_cause_stands_on_the_page() -> None:
    assert [cause for cause in get_args(Cause) if f"| `{cause}` |" not in PAGE] == []
