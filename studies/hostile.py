"""The table of hostile cases and what kept each of them, from what `pytest tests/hostile` has seen last.

`python -m studies.hostile` writes docs/studies/hostile.md.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEEN = ROOT / "artefacts" / "hostile.json"
STUDY = ROOT / "docs" / "studies" / "hostile.md"
LONGEST = 170

INTRODUCTION = """# What a hostile entry reaches

Somebody submits a file, and it runs on your machine. `pytest tests/hostile` runs such files in the real container, with
the profile that every run gets, and writes down what each tried and what said no. `python -m studies.hostile` makes
this page of it.

```
pytest tests/hostile
python -m studies.hostile
```

Run on {date}, on the tree that follows commit {commit}, {cores} cores of {cpu}, Linux {kernel}, Docker Engine {engine}
(cgroup v{cgroup}, runc, the engine's own seccomp filter), Python {python}.

Canaries are planted first: a secret in the launcher's environment and settings, files of another run, its weights, a
test split, a database, a listening port on every address of the host, an abstract socket. The programs are told where
they are; a real entry would have to guess.
"""

SECTIONS = {
    "attempt": (
        "Attempts",
        "Each tries one thing, as the run's user, in the container of a training, and says what it saw.",
        "kept by",
    ),
    "control": (
        "Would it have been noticed?",
        "The same attempts in an ordinary container of the same engine: the cases can fail, and it is the profile\n"
        "that refuses. What the others try, the engine refuses everybody.",
        "seen",
    ),
    "program": (
        "Programs that run wild",
        "One container each; limits of 192 MiB of memory, 64 processes and threads, 64 MiB and 2,000 files of disk,\n"
        "64 KiB of output.",
        "ended by",
    ),
    "entry": (
        "Entries that are after the board",
        "Submitted files, run by the real worker and runner: check, training and evaluation in containers of their\n"
        "own.",
        "what became of it",
    ),
}

REST = """## Tried elsewhere

- **Archives** (`tests/platform/test_archives.py`, {archives} of them): paths that lead out, absolute ones, links,
  devices, pipes, sparse files, names that differ only in case, names twice, passwords, control characters, headers
  without end, overlapping members (42 kB that call themselves 4 GB), a megabyte of gzip that is a gigabyte. Each is
  refused in a sentence, in under a second of CPU and with less than 24 MB.
- **Outputs** (`tests/platform/test_hostile_outputs.py`): {results} kinds of `result.json`, {checkpoints} of checkpoints
  that lie, files of a terabyte, second names, files swapped while they are read, curves without end, trees deeper than
  any path.
- **Programs that a model writes** are another matter, with a sandbox of their own: `tests/test_sandbox.py`.

## Not shown

- Faults of the kernel. A container shares it; who needs more puts the engine into a virtual machine.
- GPUs: a device is given by UUID to one run at a time; what a driver leaks from one run to the next was not tried.
- Side channels: time, caches, the load of a core.
- An entry writes its own weights, and may compute them as it likes within its budget. What it knows of public tasks it
  may know.
- A run's directory is measured every few seconds. In between it can take what its disk has, and at once: reserving
  space costs no time. DARE_HOME belongs on a file system of its own, better on one with quotas.
"""


def page(rows: Sequence[dict[str, str]]) -> str:
    """The whole study."""
    parts = [INTRODUCTION.format(**machine())]
    for kind, (title, sentence, column) in SECTIONS.items():
        mine = sorted((row for row in rows if row["kind"] == kind), key=lambda row: row["case"])
        if not mine:
            continue
        lines = [f"| {row['case']} | {_shortened(row['observed'])} |" for row in mine]
        parts.append("\n".join((f"## {title}\n\n{sentence}\n", f"| case | {column} |", "|---|---|", *lines)) + "\n")
    parts.append(REST.format(**_counts()))
    return "\n".join(parts)


def _shortened(text: str) -> str:
    text = re.sub(r"/\S*/dare-hostile-\w+/home", "HOME", text)  # no path of this machine
    text = re.sub(r"\b(?:\d{1,3}\.){3}\d{1,3}:\d{4,5}\b", "the host", text)
    text = text.replace("|", "\\|").replace("`", "'")
    text = re.sub(r"\[Errno -3\] ", "", re.sub(r"(?:HOME|/)\S*?/(?:d{100}/?|d+\.\.\.)+", "...", text))
    text = _grouped(text.split("; "))
    return text if len(text) <= LONGEST else text[: LONGEST - 3].rsplit(" ", 1)[0] + " ..."


def _grouped(parts: Sequence[str]) -> str:
    """`EPERM: mount, chroot` for two attempts that ended alike."""
    alike: dict[str, list[str]] = {}
    for part in dict.fromkeys(parts):
        what, colon, how = part.rpartition(": ")
        ended = colon and re.fullmatch(r"E[A-Z]+|Temporary failure in name resolution", how)
        alike.setdefault(how if ended else part, []).extend([what] if ended else [])
    return "; ".join(f"{how}: {', '.join(whats)}" if whats else how for how, whats in alike.items())


def machine() -> dict[str, object]:
    """Where and when this was run, for the head of a page."""
    cpu = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    cores = len(re.findall(r"^processor", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    return {
        "date": time.strftime("%-d %B %Y"),
        "commit": _said("git", "rev-parse", "--short=7", "HEAD"),
        "cores": {1: "one", 2: "two", 4: "four"}.get(cores, cores),
        "cpu": cpu[1] if cpu else platform.machine(),
        "kernel": ".".join(platform.release().split(".")[:2]),
        "engine": _said("docker", "version", "--format", "{{.Server.Version}}"),
        "cgroup": _said("docker", "info", "--format", "{{.CgroupVersion}}"),
        "python": platform.python_version(),
    }


def _counts() -> dict[str, int]:
    """How many cases the tables of the two other files have."""
    archives = (ROOT / "tests" / "platform" / "test_archives.py").read_text()
    outputs = (ROOT / "tests" / "platform" / "test_hostile_outputs.py").read_text()

    def entries(text: str, table: str) -> int:
        body = text.split(f"\n{table}", 1)[1].split("\n}\n", 1)[0]
        return len(re.findall(r"^    \"[^\"]+\": \(", body, re.MULTILINE))

    return {
        "archives": entries(archives, "HOSTILE"),
        "results": entries(outputs, "RESULTS"),
        "checkpoints": entries(outputs, "CHECKPOINTS"),
    }


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()


if __name__ == "__main__":
    STUDY.write_text(page(json.loads(SEEN.read_text())))
