"""What a run's container may be: the engine's create request, built from an order and settings alone.

Every part is written here or taken from a short list: image ids that the installation names, one command, folders of
this installation. Nothing that a run, an entry or a worker says reaches the engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare.spec import RunKind
from dare_platform.container_output import engine_log_bytes
from dare_platform.errors import LaunchError
from dare_platform.job_directory import DATA
from dare_platform.launcher import Order
from dare_platform.score_seccomp import score_seccomp
from dare_platform.settings import MIB, Settings

ISOLATION = (
    "A container of its own: no network, no capabilities, nothing of the host but its own directory and what it may "
    "read, with limits on memory, processors, processes, output and time."
)
COMMAND = ("python", "-P", "-m", "dare", "run")
"""-P: what lies in the folder where it starts is no module."""
JOB = "/job"
PUBLISHED_DATA = "/data"
APP = {"app": "dare"}
INSTALLATION, RUN, TOKEN, KIND, DEADLINE, WALL, BOOT, PROBE = (
    f"dare.{name}" for name in ("installation", "run", "token", "kind", "deadline", "wall", "boot", "probe")
)
"""Labels. A deadline is in seconds since the boot that `boot` names, which no change of the clock moves; `wall` is how
many seconds the run was given."""
UNPRIVILEGED = 10001
"""Who a run is when its directory belongs to root."""
THREADS = 8
"""A container counts threads as processes, of which libraries start several in each."""
OPEN_FILES = 4096
"""An engine that is in a container itself may not give more."""
READ_ONLY: Mapping[RunKind, tuple[str, ...]] = {
    "train": ("entry", DATA),
    "check": ("entry", DATA),
    "evaluate": ("weights",),
    "score": ("predictions",),
}
"""What a run of each kind finds in its directory and cannot change."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_DEVICE = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,80}")


@dataclass(frozen=True)
class Engine:
    """What a request depends on of the engine that gets it."""

    cores: float
    log_driver: str = "local"
    has_apparmor: bool = False


@dataclass(frozen=True)
class Ground:
    """What lies on the disk for an order."""

    uid: int
    gid: int
    folders: frozenset[str]
    """Names in the job directory."""
    backbone: tuple[Path, ...] = ()
    """Folders of an added backbone: its record's, and where its files lie."""
    backbones: Path = Path("/nowhere")
    """Where records of added backbones are looked for."""


def container_name(settings: Settings, name: str) -> str:
    """Of the container of `Order.name`."""
    installation = settings.containers.installation
    if not _NAME.fullmatch(installation) or not _NAME.fullmatch(name):
        raise LaunchError(f"{installation!r} and {name!r} cannot be in a container's name")
    return f"dare-{installation}-{name}"


def own_labels(settings: Settings) -> dict[str, str]:
    """By which everything that this installation starts is known, and nothing else."""
    return {**APP, INSTALLATION: settings.containers.installation}


def image_for(settings: Settings, order: Order) -> str:
    """The installation's image for an order; LaunchError when it names none."""
    images = settings.containers.images
    names = ("evaluator", order.family) if order.kind == "score" else (order.family,)
    found = next((images[name] for name in names if name in images), None)
    if found is None:
        raise LaunchError(f"DARE_IMAGES names no image for the family {order.family}")
    return found


def create_request(
    settings: Settings,
    order: Order,
    ground: Ground,
    engine: Engine,
    image_id: str,
    deadline: Mapping[str, str],
    command: Sequence[str] = COMMAND,
) -> dict[str, Any]:
    """The body of the engine's `create`."""
    if order.kind == "score" and ground.folders & {"entry", "weights"}:
        raise LaunchError(f"run {order.name} scores answers, but its directory holds an entry or weights")
    return {
        "Image": image_id,
        "Entrypoint": [command[0]],
        "Cmd": [*command[1:], JOB],
        "User": f"{ground.uid}:{ground.gid}",
        "Env": [f"{key}={value}" for key, value in _environment(settings, order, ground).items()],
        "Labels": {
            **own_labels(settings),
            RUN: order.run_id,
            TOKEN: str(order.token),
            KIND: order.kind,
            **deadline,
        },
        "WorkingDir": JOB,
        "Healthcheck": {"Test": ["NONE"]},
        "NetworkDisabled": True,
        "HostConfig": {
            **_limits(settings, engine),
            **_confinement(order, engine),
            "Mounts": _mounts(settings, order, ground),
            "DeviceRequests": _devices(order),
        },
    }


def probe_request(settings: Settings, image_id: str, folder: Path, engine: Engine) -> dict[str, Any]:
    """Of a container that prints the file `said` in a folder of ours: whether the engine sees what we see."""
    return {
        "Image": image_id,
        "Entrypoint": ["python"],
        "Cmd": ["-c", f"print(open('{JOB}/said').read(), end='')"],
        "User": f"{UNPRIVILEGED}:{UNPRIVILEGED}",
        "Labels": {**own_labels(settings), PROBE: folder.name},
        "NetworkDisabled": True,
        "HostConfig": {
            **_limits(settings, engine),
            **_hardened(),
            "SecurityOpt": ["no-new-privileges:true"],
            "Mounts": [_mount(settings, folder, JOB, read_only=True)],
        },
    }


def _environment(settings: Settings, order: Order, ground: Ground) -> dict[str, str]:
    """Nothing of ours but where things lie: no secret can leak from what is not there."""
    environment = {
        "HOME": f"{JOB}/home",
        "TMPDIR": f"{JOB}/tmp",
        "USER": "dare",  # who has no name on this system cannot be looked up, and some libraries look
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
        "DARE_BACKBONES": str(ground.backbones),
        "NVIDIA_VISIBLE_DEVICES": order.gpu_uuid or "void",  # whatever an image asks for
    }
    if order.gpu_uuid:
        environment["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
    if order.kind in ("train", "check"):  # it runs an entry's code, which shall find no test split
        environment["DARE_DATA"] = f"{JOB}/{DATA}"
    elif settings.data is not None:
        environment["DARE_DATA"] = PUBLISHED_DATA
    return environment


def _limits(settings: Settings, engine: Engine) -> dict[str, Any]:
    limits = settings.limits
    largest_file = limits.directory_bytes + MIB  # for one that nobody sees, having been opened and removed
    log_mebibytes = -(-engine_log_bytes(limits.log_bytes) // MIB)
    log_options = {"max-size": f"{log_mebibytes}m", "max-file": "2"}
    if engine.log_driver == "local":
        log_options["compress"] = "false"
    return {
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,  # without it the engine adds as much again
        "NanoCpus": int(min(limits.cpus, engine.cores) * 1e9),
        "PidsLimit": THREADS * limits.processes,
        "ShmSize": min(limits.shared_memory_bytes, limits.memory_bytes),
        "OomScoreAdj": 500,
        "Ulimits": [
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "nofile", "Soft": OPEN_FILES, "Hard": OPEN_FILES},
            {"Name": "fsize", "Soft": largest_file, "Hard": largest_file},
        ],
        "Tmpfs": {"/tmp": f"rw,nosuid,nodev,noexec,mode=1777,size={max(16 * MIB, limits.memory_bytes // 16)}"},
        "LogConfig": {"Type": engine.log_driver, "Config": log_options},
    }


def _hardened() -> dict[str, Any]:
    return {
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "NetworkMode": "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Privileged": False,
        "Init": True,
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
    }


def _confinement(order: Order, engine: Engine) -> dict[str, Any]:
    """Without a word about seccomp and AppArmor the engine's own profiles hold, which refuse namespaces.

    Score runs keep programs apart in namespaces. They hold no entry's code and no weights, and get a filter of ours.
    """
    options = ["no-new-privileges:true"]
    if order.kind == "score":
        options.append(f"seccomp={score_seccomp()}")
        if engine.has_apparmor:
            options.append("apparmor=unconfined")  # the engine's profile refuses every mount
    return {**_hardened(), "SecurityOpt": options}


def _devices(order: Order) -> list[dict[str, Any]]:
    """One device by its UUID; never a number, never all."""
    if order.gpu_uuid is None:
        return []
    if not _DEVICE.fullmatch(order.gpu_uuid):
        raise LaunchError(f"{order.gpu_uuid!r} is no UUID of a GPU")
    return [{"Driver": "nvidia", "DeviceIDs": [order.gpu_uuid], "Capabilities": [["gpu"]]}]


def _mounts(settings: Settings, order: Order, ground: Ground) -> list[dict[str, Any]]:
    mounts = [_mount(settings, order.directory, JOB, read_only=False)]
    for folder in READ_ONLY[order.kind]:
        if folder in ground.folders:
            mounts.append(_mount(settings, order.directory / folder, f"{JOB}/{folder}", read_only=True))
    if order.kind in ("evaluate", "score") and settings.data is not None:
        volume = settings.containers.data_volume
        if volume is not None:
            mounts.append(_volume(volume, "", PUBLISHED_DATA, read_only=True))
        else:
            mounts.append(_mount(settings, settings.data, PUBLISHED_DATA, read_only=True))
    if order.kind != "score":  # where it lies here it lies there: its record says where
        mounts += [_mount(settings, folder, str(folder), read_only=True) for folder in ground.backbone]
    return mounts


def _mount(settings: Settings, folder: Path, target: str, *, read_only: bool) -> dict[str, Any]:
    """A folder of ours as the engine sees it: a part of the named volume, or a path of its host."""
    volume = settings.containers.volume
    if volume is None:
        bind = {"Propagation": "rprivate"}
        return {
            "Type": "bind", "Source": str(folder), "Target": target, "ReadOnly": read_only, "BindOptions": bind
        }  # fmt: skip
    if not folder.is_relative_to(settings.home):
        raise LaunchError(f"{folder} does not lie on the volume {volume}; put it below {settings.home}")
    return _volume(volume, str(folder.relative_to(settings.home)), target, read_only=read_only)


def _volume(name: str, part: str, target: str, *, read_only: bool) -> dict[str, Any]:
    options = {"NoCopy": True, **({"Subpath": part} if part else {})}
    return {"Type": "volume", "Source": name, "Target": target, "ReadOnly": read_only, "VolumeOptions": options}
