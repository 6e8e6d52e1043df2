"""compose.yaml without a stack: what it wants to be told, by whom, and what it says when it is not."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from containers import REPOSITORY, Stack, built, engine, environment

FILES = ("compose.yaml", "compose.gpu.yaml")
SENTENCE = "write .env first; `make up` does that"


def compose(*arguments: str, folder: Path = REPOSITORY, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", "compose", *arguments],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The compose files where no .env is."""
    for name in (*FILES, ".env.example"):
        shutil.copy(REPOSITORY / name, tmp_path)
    return tmp_path


def configured(*arguments: str, **more: str) -> dict[str, Any]:
    done = compose("--env-file", ".env.example", *arguments, "config", "--format", "json", **more)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_no_secret_has_a_default_and_no_image_is_the_latest() -> None:
    for name in FILES:
        text = (REPOSITORY / name).read_text()
        for variable in re.findall(r"\$\{(\w*(?:PASSWORD|SECRET)\w*)\b([^}]*)\}", text):
            assert variable[1] in (f":?{SENTENCE}", ":-"), variable
        assert "latest" not in text
        assert "pull_policy" not in text
        assert not re.search(r"(privileged|network_mode: *host|pid: *host)", text)
        yaml.safe_load(text)


def test_the_site_alone_is_published_and_metrics_are_for_the_inside() -> None:
    services = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())["services"]
    assert [name for name, service in services.items() if "ports" in service] == ["web"]
    control = services["control"]
    (inside,) = (name for name, how in control["networks"].items() if "aliases" in how)
    assert inside == "inside"
    assert control["environment"]["DARE_METRICS_HOST"] in control["networks"][inside]["aliases"]
    assert control["environment"]["DARE_METRICS_PORT"] == "9464"


def test_the_example_names_what_compose_reads_with_the_defaults_it_has() -> None:
    example = (REPOSITORY / ".env.example").read_text()
    shown = dict(re.findall(r"^# (\w+)=(.*)$", example, re.MULTILINE))
    text = "".join((REPOSITORY / name).read_text() for name in FILES)
    for name, value in shown.items():
        defaults = set(re.findall(rf"\$\{{{name}:-([^}}]*)\}}", text))
        if name in ("COMPOSE_FILE", "COMPOSE_PROFILES", "DARE_TAG") or name.startswith("DARE_GPU_"):
            continue  # shown as they are set for GPUs
        assert defaults == {value}, name


@pytest.mark.full
def test_without_secrets_one_sentence_names_make_up(elsewhere: Path) -> None:
    engine()
    done = compose("up", folder=elsewhere)
    assert done.returncode != 0
    assert done.stderr.strip().count("\n") == 0
    assert done.stderr.strip().endswith(SENTENCE)


@pytest.mark.full
def test_the_example_validates_alone_and_with_gpus() -> None:
    engine()
    assert {"worker-llada", "worker-dream", "worker-sdar", "worker-llada2"} < set(configured()["services"])
    both = ("--file", "compose.yaml", "--file", "compose.gpu.yaml", "--profile", "gpu-dream")
    found = configured(*both, DARE_GPU_DREAM="GPU-1234")["services"]
    assert set(found) - set(configured()["services"]) == {"gpu-dream"}
    worker = found["gpu-dream"]
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
    assert (device["device_ids"], device["driver"]) == (["GPU-1234"], "nvidia")
    assert worker["environment"]["DARE_GPU_UUID"] == "GPU-1234"
    assert worker["command"][-2:] == ["--device", "gpu"]


@pytest.mark.full
def test_two_projects_share_no_volume_and_no_label() -> None:
    engine()
    names = [
        {volume["name"] for volume in configured(COMPOSE_PROJECT_NAME=name)["volumes"].values()} for name in ("a", "b")
    ]
    assert names[0] == {"a_home", "a_data", "a_database", "a_broker", "a_backups"}
    assert not names[0] & names[1]
    launcher = configured(COMPOSE_PROJECT_NAME="a")["services"]["launcher"]["environment"]
    assert (launcher["DARE_INSTALLATION"], launcher["DARE_VOLUME"]) == ("a", "a_home")


@pytest.mark.full
def test_secrets_are_random_readable_for_their_owner_and_written_once(tmp_path: Path) -> None:
    built("web")
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    first, second = (Stack(folder, ()).env for folder in folders)
    secrets = [line for file in (first, second) for line in file.read_text().splitlines() if re.search("=.{48}$", line)]
    assert len(set(secrets)) == 6
    assert "change-me" not in re.sub("#.*", "", first.read_text())
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    group = re.search(r"^DARE_SOCKET_GROUP=(\d+)$", first.read_text(), re.MULTILINE)
    assert group is not None
    assert int(group[1]) == os.stat("/var/run/docker.sock").st_gid  # noqa: PTH116
    before = first.read_text()
    subprocess.run(["bash", folders[0] / "images" / "environment.sh"], check=True, env=environment())
    assert first.read_text() == before
    assert not list(folders[0].glob(".env.??????"))
