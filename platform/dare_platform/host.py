"""What this machine and this program are, as attempts record it."""

from __future__ import annotations

import ipaddress
import os
import platform
import socket
from importlib import metadata
from pathlib import Path


def hostname() -> str:
    """Name of the machine."""
    return socket.gethostname()


def software_version() -> str:
    """Version of this package."""
    return metadata.version("dare")


def hardware() -> str:
    """Processor and cores, in words."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores"


def boot_id() -> str:
    """Changes when the machine starts anew, and from container to container: where it is equal, process ids compare.

    Empty where the kernel does not say.
    """
    file, space = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if not file.is_file():
        return ""
    processes = str(space.readlink()) if space.is_symlink() else ""
    return " ".join(filter(None, [file.read_text().strip(), processes]))


def source_revision() -> str | None:
    """Commit that this program was made from: an image says which in DARE_SOURCE_REVISION, a checkout in its `.git`.

    None for a wheel of which nobody said.
    """
    if said := os.environ.get("DARE_SOURCE_REVISION"):
        return said
    git = Path(__file__).resolve().parents[2] / ".git"
    head = git / "HEAD"
    if not head.is_file():
        return None
    said = head.read_text().strip()
    if not said.startswith("ref: "):
        return said
    ref = said.removeprefix("ref: ")
    if (git / ref).is_file():
        return (git / ref).read_text().strip()
    packed = git / "packed-refs"
    lines = packed.read_text().splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {ref}")), None)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
