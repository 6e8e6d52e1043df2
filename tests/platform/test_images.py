"""What the images are made of: their Dockerfiles, their locks, and that both say the same as pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

REPOSITORY = Path(__file__).resolve().parents[2]
IMAGES = REPOSITORY / "images"
sys.path.insert(0, str(IMAGES))

from locks import LOCKS, METADATA_ONLY, requirements  # noqa: E402

NAMES = sorted(file.parent.name for file in IMAGES.glob("*/Dockerfile"))
OVER_BASE = [name for name in NAMES if name != "base"]
BAKE = (REPOSITORY / "docker-bake.hcl").read_text()
PINS = (
    ("llada", "requirements-cuda.lock", {"torch": "2.9.1", "transformers": "4.57.6"}),
    ("dream", "requirements-cuda.lock", {"torch": "2.9.1", "transformers": "4.57.6"}),
    ("sdar", "requirements-cuda.lock", {"torch": "2.9.1", "transformers": "4.57.1", "sglang": "0.5.9"}),
    ("llada2", "requirements-cuda.lock", {"torch": "2.9.1", "transformers": "4.57.1", "sglang": "0.5.9"}),
    ("sdar", "lmdeploy.lock", {"torch": "2.10.0", "transformers": "4.57.6", "lmdeploy": "0.12.3"}),
    ("scale", "requirements.lock", {"torch": "2.13.0", "verl": "0.9.1", "ray": "2.60.0", "tensordict": "0.10.0"}),
)


def dockerfile(name: str) -> list[str]:
    """Instructions, continued lines joined."""
    text = (IMAGES / name / "Dockerfile").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def lock(name: str) -> dict[str, str]:
    """Versions by package."""
    lines = (IMAGES / name).read_text().splitlines()[1:]
    return dict(line.split("==") for line in lines)


def test_there_is_an_image_for_every_part() -> None:
    assert set(NAMES) == {"base", "llada", "dream", "sdar", "llada2", "evaluator", "scale", "web"}
    assert all(f'target "{name}"' in BAKE for name in NAMES)


def test_images_have_the_version_of_the_package_wherever_it_is_named() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(r'variable "VERSION" \{\s+default = "(.*)"', BAKE)[1] == version  # type: ignore[index]
    compose = (REPOSITORY / "compose.yaml").read_text() + (REPOSITORY / "compose.gpu.yaml").read_text()
    assert set(re.findall(r"DARE_(?:VERSION|TAG):-([^}]*)\}", compose)) == {version}


@pytest.mark.parametrize("name", NAMES)
def test_a_dockerfile_can_be_built_from_another_base_and_fetches_no_frontend(name: str) -> None:
    text = (IMAGES / name / "Dockerfile").read_text()
    lines = dockerfile(name)
    assert lines[0].startswith("ARG BASE_IMAGE=")
    assert "${BASE_IMAGE}" in [line.split()[1] for line in lines if line.startswith("FROM")]
    assert "syntax=" not in text
    assert ":latest" not in text
    assert not re.search(r"^ADD |curl|wget|apt-get", text, re.MULTILINE)
    assert not re.search(r"(?i)^(ARG|ENV) .*(secret|password|token)", text, re.MULTILINE)


@pytest.mark.parametrize("name", OVER_BASE)
def test_an_image_runs_as_nobody_and_says_what_it_was_made_from(name: str) -> None:
    lines = dockerfile(name)
    last_stage = lines[max(place for place, line in enumerate(lines) if line.startswith("FROM")) :]
    assert [line for line in last_stage if line.startswith("USER")] == ["USER 10001:10001"]
    assert 'org.opencontainers.image.revision="${SOURCE_REVISION}"' in " ".join(lines)
    assert any(line.startswith("HEALTHCHECK") for line in lines)
    package = next(place for place, line in enumerate(lines) if "/wheels" in line)
    assert all(not line.startswith("RUN") for line in lines[package + 1 :])  # what changes most often comes last
    assert len(lines) <= 20


def test_families_share_the_layers_of_torch_and_of_their_packages() -> None:
    """Equal instructions over equal files are one layer: torch is on a machine once."""
    layers = [
        [line for line in dockerfile(f) if "pip install" in line][:2] for f in ("llada", "dream", "sdar", "llada2")
    ]
    assert all(found == layers[0] for found in layers)
    assert "TORCH" in layers[0][0]
    contents = {(IMAGES / f / "requirements.lock").read_text() for f in ("llada", "dream", "sdar", "llada2")}
    assert len(contents) == 1


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_holds_one_version_of_everything_that_is_asked_for(name: str) -> None:
    found = lock(name)
    assert not {"torch", "dare"} & set(found)
    for line in requirements(LOCKS[name]):
        wanted = Requirement(line)
        if wanted.name == "torch" or (wanted.marker and not wanted.marker.evaluate({"python_version": "3.11"})):
            continue
        version = found[wanted.name.lower().replace("_", "-")]
        assert wanted.specifier.contains(Version(version), prereleases=True), f"{line}, and the lock has {version}"


@pytest.mark.parametrize(("image", "file", "pins"), PINS)
def test_an_image_for_gpus_has_the_pins_of_its_engine(image: str, file: str, pins: dict[str, str]) -> None:
    wanted = LOCKS[f"{image}/{file}"]
    found = {**lock(f"{image}/{file}"), "torch": str(wanted.torch)}
    assert {name: found[name] for name in pins} == pins
    assert f"torch=={wanted.torch}" in BAKE


def test_the_images_without_models_have_no_torch() -> None:
    for name in ("base", "web", "evaluator"):
        assert not {"torch", "transformers", "opencompass"} & set(lock(f"{name}/requirements.lock"))
        assert "TORCH" not in (IMAGES / name / "Dockerfile").read_text()


@pytest.mark.full
@pytest.mark.parametrize(
    ("image", "file"), [(image, file) for image, file, _ in PINS if image not in ("dream", "llada2")]
)
def test_pip_finds_every_version_of_an_image_that_cannot_be_built_here(image: str, file: str) -> None:
    """By its resolver alone: that all of them exist, and want nothing of one another that is not so."""
    arguments = ["--requirement", str(IMAGES / image / file), f"torch=={LOCKS[f'{image}/{file}'].torch}"]
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", *METADATA_ONLY]
    done = subprocess.run([*pip, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
