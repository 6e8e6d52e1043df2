"""Write what each image installs: pip's own resolver, asked for an image's packages, answers with exact versions.

`python images/locks.py [LOCK ...]`; `make locks` writes all. torch is in no lock: it is a layer of its own, and whether
it is a CPU or a CUDA build depends on where it comes from. Its version is below, and docker-bake.hcl says the same.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
LOCK = "requirements.lock"
EVERYTHING = ("runner", "platform", "leaderboard", "evaluator")
"""Extras of the project's own environment, in which everything is tested. Images that can, hold its versions."""
TORCH = "2.13.0"
METADATA_ONLY = ("--use-feature=fast-deps",)
"""Gigabytes of CUDA are then read about, not downloaded; pip 25 and newer."""


@dataclass(frozen=True)
class Wanted:
    """What one image asks the resolver for."""

    extras: tuple[str, ...]
    """Of pyproject.toml. Without any, nothing of ours is asked for."""
    pins: tuple[str, ...] = ()
    torch: str | None = None
    like_project: bool = True
    """At the versions of the project's environment; else what comes with the image decides."""


CPU = Wanted(("runner", "platform", "evaluator"), torch=TORCH)
MDLM = Wanted(("runner", "platform", "evaluator"), ("transformers==4.57.6",), "2.9.1")
SGLANG = Wanted(("runner", "platform"), ("transformers==4.57.1", "sglang==0.5.9"), "2.9.1", like_project=False)
LMDEPLOY = Wanted((), ("transformers==4.57.6", "lmdeploy==0.12.3"), "2.10.0", like_project=False)
"""A server in an environment of its own: it holds peft below what the runner declares."""
VERL = ("verl==0.9.1", "ray[default]==2.60.0", "tensordict==0.10.0", "transformers>=5.5.3,<5.11,!=5.6.0")

LOCKS: dict[str, Wanted] = {
    f"base/{LOCK}": Wanted(("platform",)),
    f"web/{LOCK}": Wanted(("platform", "leaderboard")),
    f"evaluator/{LOCK}": Wanted(("platform",), ("math-verify", "pyarrow")),
    **{f"{family}/{LOCK}": CPU for family in ("llada", "dream", "sdar", "llada2")},
    **{f"{family}/requirements-cuda.lock": MDLM for family in ("llada", "dream")},
    **{f"{family}/requirements-cuda.lock": SGLANG for family in ("sdar", "llada2")},
    "sdar/requirements-lmdeploy.lock": MDLM,
    "sdar/lmdeploy.lock": LMDEPLOY,
    f"scale/{LOCK}": Wanted(("runner",), VERL, TORCH, like_project=False),
}


def requirements(wanted: Wanted) -> list[str]:
    """Everything that the resolver is asked for. A pin takes the place of our own range of the same package."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = [*project["dependencies"]] if wanted.extras else []
    for extra in wanted.extras:
        own += project["optional-dependencies"][extra]
    pins = [*wanted.pins, *([f"torch=={wanted.torch}"] if wanted.torch else [])]
    pinned = {_name(pin) for pin in pins}
    return [*dict.fromkeys(line for line in own if _name(line) not in pinned), *pins]


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0].lower()


def resolve(wanted: Wanted, constraints: Sequence[Path] = ()) -> list[str]:
    """`name==version` of everything but torch that pip would install into an empty environment; SystemExit if none."""
    asked = [*requirements(wanted), *(part for file in constraints for part in ("--constraint", str(file)))]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", *METADATA_ONLY]
        done = subprocess.run([*pip, "--report", str(report), *asked], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"pip finds no versions for {' '.join(asked)}:\n{done.stderr}")
        chosen = json.loads(report.read_text(encoding="utf-8"))["install"]
    found = [(one["metadata"]["name"], one["metadata"]["version"].partition("+")[0]) for one in chosen]
    return sorted(f"{name.lower().replace('_', '-')}=={version}" for name, version in found if name != "torch")


def write(names: Sequence[str]) -> None:
    """Resolve and write these locks; those that ask for the same are resolved once."""
    groups: dict[Wanted, list[str]] = {}
    for name in names:
        groups.setdefault(LOCKS[name], []).append(name)
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project.txt"
        if any(wanted.like_project for wanted in groups):
            everything = resolve(Wanted(EVERYTHING, torch=TORCH), [REPOSITORY / "constraints.txt"])
            project.write_text("\n".join(everything))
        for wanted, alike in groups.items():
            found = resolve(wanted, [project] if wanted.like_project else [])
            below = f" torch=={wanted.torch} lies below it." if wanted.torch else ""
            text = f"# Written by `make locks`.{below}\n" + "".join(f"{line}\n" for line in found)
            for name in alike:
                (HERE / name).write_text(text, encoding="utf-8")
                sys.stdout.write(f"images/{name}: {len(found)} packages\n")
                sys.stdout.flush()


if __name__ == "__main__":
    unknown = sorted(set(sys.argv[1:]) - set(LOCKS))
    if unknown:
        raise SystemExit(f"no lock {unknown[0]!r}; known: {', '.join(LOCKS)}")
    write(sys.argv[1:] or list(LOCKS))
