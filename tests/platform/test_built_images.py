"""Images as they are built: what is in them, as whom they run, and what they share."""

from __future__ import annotations

import subprocess
from functools import cache
from typing import Any

import pytest
from containers import bake, engine, revision

pytestmark = pytest.mark.full

FAMILIES = ("llada", "dream", "sdar", "llada2")
NO_MODELS = ("web", "evaluator")
CONFINED = (
    "--rm",
    "--read-only",
    "--network",
    "none",
    "--cap-drop",
    "ALL",
    "--tmpfs",
    "/tmp",
    "--env",
    "OMP_NUM_THREADS=1",
)
PROMPT = "S0321003004002100"


@cache
def images() -> dict[str, str]:
    """Ids by name."""
    return bake(*FAMILIES, *NO_MODELS)


def attributes(name: str) -> dict[str, Any]:
    return dict(engine().images.get(images()[name]).attrs)


def inside(image: str, *command: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """A command in a container as a run has it."""
    return subprocess.run(
        ["docker", "run", *CONFINED, *options, image, *command], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_decodes_as_nobody_without_network_on_a_read_only_root(family: str) -> None:
    done = inside(images()[family], "python", "-P", "-m", "dare", "generate", PROMPT, "--backbone", f"{family}-tiny")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert attributes(family)["Config"]["User"] == "10001:10001"


def test_torch_is_on_a_machine_once() -> None:
    """Families differ above the layers of torch and of their packages, which are all but a hundredth of an image."""
    layers = [attributes(family)["RootFS"]["Layers"] for family in FAMILIES]
    shared = next(at for at, found in enumerate(zip(*layers, strict=False)) if len(set(found)) > 1)
    alike = [one["Size"] for one in engine().images.get(images()["llada"]).history()][::-1]
    sizes = [size for size in alike if size]
    assert sum(sizes[shared:]) < sum(sizes) / 100


@pytest.mark.parametrize("name", NO_MODELS)
def test_an_image_without_models_works_without_torch(name: str) -> None:
    module = {"web": "leaderboard.serving", "evaluator": "dare.scoring_run"}[name]
    program = f"import {module}, importlib.util as u; assert u.find_spec('torch') is None"
    done = inside(images()[name], "python", "-P", "-c", program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [*FAMILIES, *NO_MODELS])
def test_an_image_says_of_which_revision_it_is_and_holds_no_secret(name: str) -> None:
    found = attributes(name)["Config"]
    assert found["Labels"]["org.opencontainers.image.revision"] == revision()
    assert f"DARE_SOURCE_REVISION={revision()}" in found["Env"]
    assert not [said for said in found["Env"] if any(word in said.upper() for word in ("SECRET", "PASSWORD", "TOKEN"))]
    listed = inside(images()[name], "find", "/var/lib/dare", "/data", "/source", "/wheels", "-mindepth", "1")
    assert listed.stdout == ""


def test_every_package_of_an_image_finds_what_it_wants() -> None:
    for name in ("llada", *NO_MODELS):
        done = inside(images()[name], "pip", "check")
        assert done.returncode == 0, f"{name}: {done.stdout}"
