"""Write what each image installs: pip's own resolver, asked for an image's packages, answers with exact versions.

`python images/locks.py [LOCK ...]`; `make locks` writes all. torch is in no lock: it is a layer of its own, and whether
it is a CPU or a CUDA build depends on where it comes from. Its version is below, and docker-bake.hcl says the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
LOCK = "requirements.lock"
APART = ("torch", "transformers")
"""Requirements of the runner that an image may hold at a version of its own."""
NEVER_LISTED = ("dare", "torch")


@dataclass(frozen=True)
class Wanted:
    """What one image asks the resolver for."""

    extras: tuple[str, ...]
    """Of pyproject.toml."""
    pins: tuple[str, ...] = ()
    torch: str | None = None
    like_base: bool = True
    """Hold what the image shares with `base` at base's versions; else the engine of the image decides."""


CPU = Wanted(("runner", "platform", "evaluator"), torch="2.13.0")
MDLM = Wanted(("runner", "platform", "evaluator"), ("transformers==4.57.6",), torch="2.9.1")
SGLANG = Wanted(("runner", "platform"), ("transformers==4.57.1", "sglang==0.5.9"), torch="2.9.1", like_base=False)
LMDEPLOY = Wanted(("runner", "platform"), ("transformers==4.57.6", "lmdeploy==0.12.3"), torch="2.10.0", like_base=False)

LOCKS: dict[str, Wanted] = {
    f"base/{LOCK}": Wanted(("platform",), like_base=False),
    f"web/{LOCK}": Wanted(("platform", "leaderboard")),
    f"evaluator/{LOCK}": Wanted(("platform",), ("math-verify", "pyarrow")),
    **{f"{family}/{LOCK}": CPU for family in ("llada", "dream", "sdar", "llada2")},
    **{f"{family}/requirements-cuda.lock": MDLM for family in ("llada", "dream")},
    **{f"{family}/requirements-cuda.lock": SGLANG for family in ("sdar", "llada2")},
    "sdar/requirements-lmdeploy.lock": LMDEPLOY,
    f"scale/{LOCK}": Wanted(
        ("runner", "platform"),
        ("verl==0.9.1", "ray[default]==2.60.0", "tensordict==0.10.0", "transformers>=5.5.3,<5.11,!=5.6.0"),
        torch="2.13.0",
        like_base=False,
    ),
}


def requirements(wanted: Wanted) -> list[str]:
    """Everything that the resolver is asked for. A pin takes the place of our own range of the same package."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = [*project["dependencies"]]
    for extra in wanted.extras:
        own += project["optional-dependencies"][extra]
    pinned = {name for name in APART if any(pin.startswith((f"{name}=", f"{name}>")) for pin in wanted.pins)}
    if wanted.torch is not None:
        pinned.add("torch")
    kept = [line for line in own if not line.startswith(tuple(f"{name}>" for name in pinned))]
    torch = [] if wanted.torch is None else [f"torch=={wanted.torch}"]
    return [*dict.fromkeys([*kept, *wanted.pins, *torch])]


def question(wanted: Wanted) -> list[str]:
    """Arguments of `pip install` for what an image wants, constraints included."""
    constraints = []
    if wanted.like_base or wanted == LOCKS[f"base/{LOCK}"]:
        constraints.append(REPOSITORY / "constraints.txt")
    if wanted.like_base:
        constraints.append(HERE / "base" / LOCK)
    return [*requirements(wanted), *(part for file in constraints for part in ("--constraint", str(file)))]


def resolve(arguments: Sequence[str]) -> list[str]:
    """`name==version` of everything that pip would install into an empty environment, sorted; SystemExit if nothing."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        done = subprocess.run(
            [*pip, "--report", str(report), *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"pip finds no versions for {' '.join(arguments)}:\n{done.stderr}")
        chosen = json.loads(report.read_text(encoding="utf-8"))["install"]
    found = [(one["metadata"]["name"], one["metadata"]["version"].partition("+")[0]) for one in chosen]
    return sorted(f"{name.lower().replace('_', '-')}=={version}" for name, version in found)


def lines(answer: Sequence[str]) -> list[str]:
    """What of an answer a lock holds: not torch, and not what torch alone brings for its device."""
    apart = (*(f"{name}==" for name in NEVER_LISTED), "nvidia-c", "nvidia-n", "triton==")
    return [line for line in answer if not line.startswith(apart) or line.startswith(KEPT_NVIDIA)]


KEPT_NVIDIA = ("nvidia-ml-py==", "nvidia-cutlass-dsl")


def write(names: Sequence[str]) -> None:
    """Resolve and write these locks; those that ask for the same are resolved once."""
    if f"base/{LOCK}" in names:  # the others stand on it
        _write_all(LOCKS[f"base/{LOCK}"], [f"base/{LOCK}"])
    groups: dict[Wanted, list[str]] = {}
    for name in names:
        if name != f"base/{LOCK}":
            groups.setdefault(LOCKS[name], []).append(name)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(_write_all, groups, groups.values()))


def _write_all(wanted: Wanted, names: Sequence[str]) -> None:
    found = lines(resolve(question(wanted)))
    torch = f"; torch=={wanted.torch} lies below it" if wanted.torch else ""
    text = f"# Written by `make locks`{torch}.\n" + "".join(f"{line}\n" for line in found)
    for name in names:
        (HERE / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"images/{name}: {len(found)} packages\n")
        sys.stdout.flush()


if __name__ == "__main__":
    unknown = sorted(set(sys.argv[1:]) - set(LOCKS))
    if unknown:
        raise SystemExit(f"no lock {unknown[0]!r}; known: {', '.join(LOCKS)}")
    write(sys.argv[1:] or list(LOCKS))
