"""How far the toy has come."""

from __future__ import annotations

from dare_platform.settings import Settings


def step_of(settings: Settings, run: str, token: int) -> int:
    """The step of its newest whole checkpoint; 0 while there is none, or while it is being replaced."""
    try:
        return int((settings.jobs / run / str(token) / "checkpoint" / "step").read_text() or 0)
    except FileNotFoundError:
        return 0
