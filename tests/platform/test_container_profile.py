"""A container is made from an order and settings alone, with every confinement, and with what its kind may see."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dare.spec import RunKind
from dare_platform.container_profile import BOOT, DEADLINE, Engine, Ground, create_request, image_for, own_labels
from dare_platform.container_watch import boot_clock, deadline_labels, deadline_of
from dare_platform.docker_launcher import why_not_started
from dare_platform.errors import LaunchError
from dare_platform.launcher import Order
from dare_platform.nvidia_toolkit import FLOOR, parse_version, require_safe
from dare_platform.score_seccomp import ALLOWED, NAMESPACES, score_seccomp
from dare_platform.settings import GIB, MIB, Containers, Limits, Settings

HOME = Path("/srv/dare")
IMAGE = "sha256:" + "a" * 64
KINDS: tuple[RunKind, ...] = get_args(RunKind)
ENGINE = Engine(cores=16)
FOLDERS = {
    "train": {"entry", "data", "home", "tmp", "checkpoint"},
    "check": {"entry", "data", "home", "tmp"},
    "evaluate": {"weights", "predictions", "home", "tmp"},
    "score": {"predictions", "home", "tmp"},
}


def settings(**containers: Any) -> Settings:
    images = {"llada": "dare-llada:1", "dream": "dare-dream:1"}
    return Settings(
        home=HOME,
        database_url="postgresql+psycopg://dare:database-canary@db/dare",
        data=Path("/srv/published"),
        launcher_secret="launcher-canary",
        smtp_url="smtp://me:mail-canary@mail",
        limits=Limits(memory_bytes=8 * GIB, cpus=2.0),
        containers=Containers(**{"installation": "here", "images": images, **containers}),
    )


def order(kind: RunKind = "train", **changes: Any) -> Order:
    return replace(Order("run1", 3, HOME / "jobs/run1/3", 60.0, kind, "llada", 7), **changes)


def request(kind: RunKind = "train", ground: Ground | None = None, **containers: Any) -> dict[str, Any]:
    ground = ground or Ground(1000, 1000, frozenset(FOLDERS[kind]))
    return create_request(settings(**containers), order(kind), ground, ENGINE, IMAGE, deadline_labels(60.0))


def environment(made: dict[str, Any]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in made["Env"])


def mounts(made: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    return {mount["Target"]: (mount["Source"], mount["ReadOnly"]) for mount in made["HostConfig"]["Mounts"]}


@pytest.mark.parametrize("kind", KINDS)
def test_every_container_is_confined(kind: RunKind) -> None:
    made = request(kind)
    host = made["HostConfig"]
    assert made["Image"] == IMAGE
    assert [*made["Entrypoint"], *made["Cmd"]] == ["python", "-P", "-m", "dare", "run", "/job"]
    assert made["User"] == "1000:1000"
    assert (host["ReadonlyRootfs"], host["CapDrop"], host["NetworkMode"], host["Privileged"]) == (
        True, ["ALL"], "none", False,
    )  # fmt: skip
    assert host["Memory"] == host["MemorySwap"] == 8 * GIB
    assert host["PidsLimit"] == 512
    assert host["NanoCpus"] == 2_000_000_000
    assert host["ShmSize"] == GIB
    assert host["OomScoreAdj"] == 500
    assert (host["IpcMode"], host["Init"], host["AutoRemove"], host["RestartPolicy"]) == (
        "private", True, False, {"Name": "no"},
    )  # fmt: skip
    assert host["Tmpfs"]["/tmp"].startswith("rw,nosuid,nodev,noexec,")
    assert {one["Name"]: one["Hard"] for one in host["Ulimits"]}["core"] == 0
    assert host["LogConfig"]["Type"] == "local"
    assert host["DeviceRequests"] == []
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert {"CapAdd", "Devices", "Binds", "PidMode", "UsernsMode", "VolumesFrom"} & host.keys() == set()


@pytest.mark.parametrize("kind", KINDS)
def test_only_score_runs_get_another_seccomp_profile_than_the_engines(kind: RunKind) -> None:
    options = [one for one in request(kind)["HostConfig"]["SecurityOpt"] if one != "no-new-privileges:true"]
    assert options == ([f"seccomp={score_seccomp()}"] if kind == "score" else [])


def test_apparmors_profile_is_left_out_for_score_runs_alone() -> None:
    engine = replace(ENGINE, has_apparmor=True)
    for kind in KINDS:
        ground = Ground(1000, 1000, frozenset(FOLDERS[kind]))
        made = create_request(settings(), order(kind), ground, engine, IMAGE, {})
        assert ("apparmor=unconfined" in made["HostConfig"]["SecurityOpt"]) == (kind == "score")


def test_a_score_run_beside_an_entry_or_weights_is_refused() -> None:
    for folder in ("entry", "weights"):
        with pytest.raises(LaunchError, match="holds an entry or weights"):
            request("score", Ground(1000, 1000, frozenset({folder})))


def test_each_kind_sees_what_it_needs_and_cannot_change_what_it_is_given() -> None:
    job = "/srv/dare/jobs/run1/3"
    assert mounts(request("train")) == {
        "/job": (job, False), "/job/entry": (f"{job}/entry", True), "/job/data": (f"{job}/data", True),
    }  # fmt: skip
    assert mounts(request("check")) == mounts(request("train"))
    assert mounts(request("evaluate")) == {
        "/job": (job, False), "/job/weights": (f"{job}/weights", True), "/data": ("/srv/published", True),
    }  # fmt: skip
    assert mounts(request("score")) == {
        "/job": (job, False), "/job/predictions": (f"{job}/predictions", True), "/data": ("/srv/published", True),
    }  # fmt: skip


def test_what_runs_an_entry_finds_no_published_data() -> None:
    found = {kind: environment(request(kind))["DARE_DATA"] for kind in KINDS}
    assert found == {"train": "/job/data", "check": "/job/data", "evaluate": "/data", "score": "/data"}


def test_an_added_backbone_lies_where_its_record_says_and_score_runs_need_none() -> None:
    folders = (HOME / "backbones/mine", Path("/models/mine"))
    for kind in KINDS:
        ground = Ground(1000, 1000, frozenset(), folders, HOME / "backbones")
        seen = mounts(request(kind, ground))
        assert ("/models/mine" in seen) == ("/srv/dare/backbones/mine" in seen) == (kind != "score")
        assert all(read_only for target, (_, read_only) in seen.items() if target != "/job")


def test_on_a_named_volume_a_run_gets_its_own_part_of_it() -> None:
    made = request("evaluate", volume="dare_home", data_volume="dare_data")
    parts = {one["Target"]: (one["Source"], one["VolumeOptions"]) for one in made["HostConfig"]["Mounts"]}
    assert parts == {
        "/job": ("dare_home", {"NoCopy": True, "Subpath": "jobs/run1/3"}),
        "/job/weights": ("dare_home", {"NoCopy": True, "Subpath": "jobs/run1/3/weights"}),
        "/data": ("dare_data", {"NoCopy": True}),
    }
    assert {one["Type"] for one in made["HostConfig"]["Mounts"]} == {"volume"}


def test_what_does_not_lie_on_the_volume_is_refused() -> None:
    with pytest.raises(LaunchError, match="does not lie on the volume"):
        request("evaluate", volume="dare_home")  # the published data is elsewhere


@pytest.mark.parametrize("kind", KINDS)
def test_no_secret_reaches_a_container(kind: RunKind) -> None:
    said = json.dumps(request(kind))
    assert "canary" not in said
    told = {key for key in environment(request(kind)) if key.startswith("DARE_")}
    assert told == {"DARE_BACKBONES", "DARE_DATA"}


def test_one_gpu_by_its_uuid_and_never_all() -> None:
    ground = Ground(1000, 1000, frozenset())
    uuid = "GPU-3b1c8f0a-0000-4000-8000-000000000001"
    made = create_request(settings(), order(gpu_uuid=uuid), ground, ENGINE, IMAGE, {})
    (device,) = made["HostConfig"]["DeviceRequests"]
    assert device == {"Driver": "nvidia", "DeviceIDs": [uuid], "Capabilities": [["gpu"]]}
    assert environment(made)["NVIDIA_VISIBLE_DEVICES"] == uuid
    assert environment(request())["NVIDIA_VISIBLE_DEVICES"] == "void"
    for other in ("all", "0", "GPU-1,GPU-2", ""):
        if other:
            with pytest.raises(LaunchError, match="no UUID"):
                create_request(settings(), order(gpu_uuid=other), ground, ENGINE, IMAGE, {})


def test_labels_say_whose_it_is_and_until_when() -> None:
    labels = request()["Labels"]
    assert labels.items() >= own_labels(settings()).items()
    assert (labels["dare.run"], labels["dare.token"], labels["dare.kind"]) == ("run1", "3", "train")
    assert 59 < deadline_of(labels) - boot_clock() < 60.001  # it is rounded
    assert deadline_of({**labels, BOOT: "another start of the machine"}) == 0.0
    assert deadline_of({**labels, DEADLINE: "later"}) == 0.0


@given(st.text(max_size=40))
def test_a_strange_installation_never_reaches_a_name(installation: str) -> None:
    from dare_platform.container_profile import container_name

    try:
        made = container_name(settings(installation=installation), "run1-3")
    except LaunchError:
        return
    assert made == f"dare-{installation}-run1-3"
    assert all(letter in "abcdefghijklmnopqrstuvwxyz0123456789_.-" for letter in installation)


def test_score_runs_take_the_evaluators_image_where_there_is_one() -> None:
    assert image_for(settings(), order("score")) == "dare-llada:1"
    both = settings(images={"llada": "dare-llada:1", "evaluator": "dare-evaluator:1"})
    assert image_for(both, order("score")) == "dare-evaluator:1"
    assert image_for(both, order("evaluate")) == "dare-llada:1"
    with pytest.raises(LaunchError, match="DARE_IMAGES names no image for the family sdar"):
        image_for(both, order(family="sdar"))


def test_the_engine_keeps_more_of_a_log_than_a_run_may_print() -> None:
    options = request()["HostConfig"]["LogConfig"]["Config"]
    assert int(options["max-size"].removesuffix("m")) * MIB >= 8 * Limits().log_bytes
    assert options["max-file"] == "2"


def test_a_machine_with_fewer_cores_gives_what_it_has() -> None:
    made = create_request(settings(), order(), Ground(1000, 1000, frozenset()), Engine(cores=1), IMAGE, {})
    assert made["HostConfig"]["NanoCpus"] == 1_000_000_000


def test_the_score_profile_refuses_what_a_scorer_has_no_business_with() -> None:
    refused = "ptrace process_vm_readv bpf perf_event_open keyctl add_key setns userfaultfd io_uring_setup kexec_load "
    refused += "init_module open_by_handle_at move_mount fsopen mount_setattr personality chroot settimeofday reboot"
    assert set(refused.split()) & {*ALLOWED, *NAMESPACES} == set()
    assert set(NAMESPACES) & set(ALLOWED) == set()
    assert len(ALLOWED) == len(set(ALLOWED))
    profile = json.loads(score_seccomp())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b80a", (1, 17, 8)),
        ("cli-version: 1.14.6\nlib-version: 1.14.6\nbuild date: 2024-02-27", (1, 14, 6)),
        ("NVIDIA Container Toolkit CLI version v1.18.0", (1, 18, 0)),
        ("NVIDIA Container Toolkit CLI version 1.17.8-rc.1", (1, 17, 7)),
        ("NVIDIA Container Toolkit CLI version 1.18.0~rc.2", (1, 17, 999)),
        ("NVIDIA Container Toolkit CLI version 1.17.8-1", (1, 17, 8)),
        ("command not found", None),
        ("version twelve", None),
        ("", None),
    ],
)
def test_the_toolkits_version_is_read(said: str, version: tuple[int, int, int] | None) -> None:
    assert parse_version(said) == version


@given(st.tuples(*[st.integers(0, 40)] * 3))
def test_a_toolkit_below_the_floor_starts_nothing(version: tuple[int, int, int]) -> None:
    said = f"NVIDIA Container Toolkit CLI version {'.'.join(map(str, version))}"
    assert parse_version(said) == version
    if version < FLOOR:
        with pytest.raises(LaunchError, match=r"install 1\.17\.8"):
            require_safe(version)
    else:
        require_safe(version)
    require_safe(None)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ('could not select device driver "nvidia" with capabilities: [[gpu]]', "gpu_fault"),
        ("OCI runtime create failed: nvidia-container-cli: device error: GPU-1: unknown device", "gpu_fault"),
        ("write /var/lib/docker/tmp: no space left on device", "disk"),
        ('exec: "python": executable file not found in $PATH: unknown', "image"),
    ],
)
def test_a_start_that_the_engine_refuses_has_its_cause_and_one_sentence(said: str, cause: str) -> None:
    verdict = why_not_started(said)
    assert verdict.cause == cause
    assert "\n" not in verdict.sentence
