"""Row ids: 26 characters that sort by time of creation and say nothing about how many there are."""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # without i, l, o, u, which are misread


def new_id() -> str:
    """48 bits of milliseconds, then 80 random bits."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))
