"""Which NVIDIA Container Toolkit gives containers their GPU, and whether one may be started with it."""

from __future__ import annotations

import re
import shutil
import subprocess

from dare_platform.errors import LaunchError

FLOOR = (1, 17, 8)
"""Older ones let the content of an image run code on the host (CVE-2024-0132, CVE-2025-23266)."""
_PROGRAMS = (("nvidia-ctk", "--version"), ("nvidia-container-cli", "--version"))
_VERSION = re.compile(r"version:?\s+v?(\d+)\.(\d+)\.(\d+)([-~.+\w]*)", re.IGNORECASE)

Version = tuple[int, int, int]


def parse_version(said: str) -> Version | None:
    """`NVIDIA Container Toolkit CLI version 1.17.8`, `cli-version: 1.17.8`. A release candidate is older than what it
    is a candidate for."""
    found = _VERSION.search(said)
    if found is None:
        return None
    major, minor, patch = (int(found[part]) for part in (1, 2, 3))
    if found[4].startswith(("-rc", "~rc")):
        return _before((major, minor, patch))
    return major, minor, patch


def _before(version: Version) -> Version:
    major, minor, patch = version
    return (major, minor, patch - 1) if patch else (major, minor - 1, 999)


def toolkit_version() -> Version | None:
    """Of the one installed here; None where there is none to ask."""
    for program, *arguments in _PROGRAMS:
        found = shutil.which(program)
        if found is None:
            continue
        try:
            said = subprocess.run((found, *arguments), capture_output=True, text=True, timeout=10, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        version = parse_version(said)
        if version is not None:
            return version
    return None


def require_safe(version: Version | None) -> None:
    """LaunchError for a toolkit that is too old. One that cannot be asked, in another container say, is not refused."""
    if version is not None and version < FLOOR:
        said, floor = (".".join(map(str, one)) for one in (version, FLOOR))
        raise LaunchError(f"NVIDIA Container Toolkit {said} lets images out of their containers; install {floor}")
