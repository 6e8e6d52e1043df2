"""Runs as containers of the Docker engine, one each, siblings of whoever starts them."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from dare.catalog import UnknownBackboneError, added_root, backbone_directory, is_shipped
from dare_platform import nvidia_toolkit
from dare_platform.container_output import ContainerOutput
from dare_platform.container_profile import (
    COMMAND,
    ISOLATION,
    PROBE,
    READ_ONLY,
    RUN,
    TOKEN,
    UNPRIVILEGED,
    Engine,
    Ground,
    container_name,
    create_request,
    image_for,
    own_labels,
    probe_request,
)
from dare_platform.container_watch import ContainerWatch, Watched, deadline_labels
from dare_platform.engine import (
    CALL_SECONDS,
    SUBPATH_API,
    Container,
    DockerEngine,
    NameTakenError,
    NoImageError,
    StartError,
)
from dare_platform.errors import LaunchError
from dare_platform.job_directory import directory_of
from dare_platform.launcher import Observed, Order, Owned
from dare_platform.models import LOG_CHUNK_BYTES
from dare_platform.settings import Settings
from dare_platform.supervisor import Verdict

LOG = "output.log"
REMOVE_SECONDS = 20.0

log = logging.getLogger(__name__)


class DockerLauncher:
    """Containers of one installation on one engine. Touches nothing that does not carry the installation's label."""

    def __init__(
        self, settings: Settings, command: Sequence[str] = COMMAND, quiet_seconds: float = CALL_SECONDS
    ) -> None:
        """`quiet_seconds`: see `DockerEngine`."""
        self._settings = settings
        self._command = tuple(command)
        self._engine = DockerEngine(settings.containers.socket, quiet_seconds)
        self._check_engine()
        self._images = {name: self._engine.image_id(name) for name in set(settings.containers.images.values())}
        self._runs: dict[str, ContainerWatch | Observed] = {}
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)

    @property
    def isolation(self) -> str:
        """See `Launcher`."""
        return ISOLATION

    @property
    def engine_version(self) -> str:
        """Of the engine."""
        return self._engine.version

    @property
    def images(self) -> dict[str, str | None]:
        """The allow-list: images by name with their ids as last looked for; None for one that is not there."""
        return dict(self._images)

    def close(self) -> None:
        """Let the engine go. Containers go on."""
        self._engine.close()

    def start(self, order: Order) -> str:
        """See `Launcher`."""
        name = container_name(self._settings, order.name)
        with self._locks[order.name]:
            if order.name in self._runs:
                return order.name
            there = self._engine.find(name)
            if there is not None and self._require_own(there).status != "created":
                self._watch(order.name, there)
                return order.name
            if there is not None:  # somebody died between two calls
                self._remove(there.id)
            self._create_and_start(name, order)
        return order.name

    def adopt(self, order: Order) -> str:
        """See `Launcher`."""
        with self._locks[order.name]:
            if order.name in self._runs:
                return order.name
            there = self._engine.find(container_name(self._settings, order.name))
            if there is None:
                raise LaunchError(f"run {order.name} has no container to go on with")
            if self._require_own(there).status == "created":
                return self.start(order)
            self._watch(order.name, there)
        return order.name

    def adopt_all(self) -> int:
        """Watch every container that an earlier launcher left; how many. For the one launcher of a host."""
        found = self.list_own()
        for owned in found:
            with contextlib.suppress(LaunchError):  # it went in between
                self._watched(owned.name)
        return len(found)

    def state(self, name: str) -> Observed:
        """See `Launcher`. A container that an earlier launcher started is watched from here on."""
        run = self._watched(name)
        return run if isinstance(run, Observed) else run.observed

    def logs(self, name: str) -> str:
        """See `Launcher`."""
        run = self._watched(name)
        return "" if isinstance(run, Observed) else run.output.text()

    def output(self, name: str, offset: int) -> bytes:
        """See `Launcher`."""
        run = self._watched(name)
        return b"" if isinstance(run, Observed) else run.output.piece(offset, LOG_CHUNK_BYTES)

    def stop(self, name: str) -> None:
        """See `Launcher`."""
        if self._find(name) is None:
            return
        run = self._watched(name)
        if isinstance(run, ContainerWatch):
            run.end(self._settings.limits.grace_seconds)

    def list_own(self) -> list[Owned]:
        """See `Launcher`. Found by their labels, in whatever state."""
        owned = []
        for _, labels in self._engine.labels_of_all(own_labels(self._settings)):
            run_id, token = labels.get(RUN), labels.get(TOKEN, "")
            if run_id and token.isdigit():
                owned.append(Owned(run_id, int(token), adoptable=True))
        return owned

    def remove(self, name: str) -> None:
        """See `Launcher`."""
        with self._locks[name]:
            run = self._runs.get(name)
            there = self._find(name)
            if isinstance(run, ContainerWatch) and there is not None:
                run.end(0.0)
            if there is not None:
                self._remove(there.id)
            self._runs.pop(name, None)
            self._put_log_away(name)

    def prove(self) -> None:
        """LaunchError unless the engine sees a file that this process writes where job directories lie."""
        for container_id, labels in self._engine.labels_of_all(own_labels(self._settings)):
            if PROBE in labels:  # of a launcher that died while it proved
                self._remove(container_id)
        image_id = next((found for found in self._images.values() if found is not None), None)
        if image_id is None:
            return  # nothing can be started anyhow
        folder = self._settings.jobs / f".probe-{secrets.token_hex(8)}"
        said = secrets.token_hex(16)
        try:
            folder.mkdir(parents=True)
            folder.chmod(0o755)
            (folder / "said").write_text(said)
            self._ask_probe(image_id, folder, said)
        except OSError as error:
            raise LaunchError(f"{folder.parent} cannot be written to: {error.strerror}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _ask_probe(self, image_id: str, folder: Path, said: str) -> None:
        otherwise = (
            f"the container engine does not see {self._settings.home} as this process does: name the volume that "
            "DARE_HOME lies on in DARE_VOLUME, or give it the path that it has on the engine's host"
        )
        name = container_name(self._settings, folder.name.lstrip("."))
        try:
            probe = self._engine.create(name, probe_request(self._settings, image_id, folder, self._profile_engine()))
        except LaunchError as error:
            raise LaunchError(f"{otherwise} ({error})") from error
        try:
            self._engine.start(probe)
            heard = b"".join(self._engine.output(probe, follow=True)).decode("utf-8", "replace")
        except LaunchError as error:
            raise LaunchError(f"{otherwise} ({error})") from error
        finally:
            self._remove(probe)
        if heard != said:
            raise LaunchError(otherwise)

    def _check_engine(self) -> None:
        if self._settings.containers.volume is not None and self._engine.api_version < SUBPATH_API:
            raise LaunchError(
                f"the container engine is {self._engine.version}, which cannot give a container a part of a volume: "
                "install version 26 or newer, or leave DARE_VOLUME unset and keep DARE_HOME on the engine's host"
            )

    def _profile_engine(self) -> Engine:
        driver = "local" if "local" in self._engine.log_drivers else "json-file"
        return Engine(self._engine.cores, driver, self._engine.has_apparmor)

    def _create_and_start(self, name: str, order: Order) -> None:
        image = image_for(self._settings, order)
        image_id = self._images[image]
        if image_id is None:
            image_id = self._images[image] = self._engine.image_id(image)
        if image_id is None:
            self._runs[order.name] = _not_started(Verdict("image", f"The image {image} is not on this host."))
            return
        if order.gpu_uuid is not None:
            try:
                nvidia_toolkit.require_safe(nvidia_toolkit.toolkit_version())
            except LaunchError as error:
                self._runs[order.name] = _not_started(Verdict("gpu_fault", f"{error}."))
                return
        ground, engine = _look(order), self._profile_engine()
        deadline = deadline_labels(order.wall_seconds)
        request = create_request(self._settings, order, ground, engine, image_id, deadline, self._command)
        try:
            created = self._engine.create(name, request)
        except NoImageError:
            self._images[image] = None  # looked for again at the next start
            self._runs[order.name] = _not_started(Verdict("image", f"The image {image} is not on this host any more."))
            return
        except NameTakenError as error:
            raise LaunchError(f"run {order.name} is being started by somebody else") from error
        try:
            self._engine.start(created)
        except StartError as error:
            self._remove(created)
            self._runs[order.name] = _not_started(why_not_started(str(error)))
            return
        started = self._engine.find(created)
        if started is None:
            raise LaunchError(f"the container of run {order.name} was removed by somebody else")
        try:
            self._watch(order.name, started)
        except OSError as error:
            self._remove(created)
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            sentence = f"The run's output cannot be kept: {error.strerror}."
            self._runs[order.name] = _not_started(Verdict("disk" if full else "internal", sentence))

    def _find(self, name: str) -> Container | None:
        there = self._engine.find(container_name(self._settings, name))
        return None if there is None else self._require_own(there)

    def _require_own(self, there: Container) -> Container:
        """Somebody else's container of this name is never touched."""
        wanted = own_labels(self._settings)
        if any(there.labels.get(key) != value for key, value in wanted.items()) or RUN not in there.labels:
            raise LaunchError(f"the container {there.name} is none of ours")
        return there

    def _watched(self, name: str) -> ContainerWatch | Observed:
        found = self._runs.get(name)
        if found is not None:
            return found
        with self._locks[name]:
            if name in self._runs:
                return self._runs[name]
            there = self._find(name)
            if there is None:
                raise LaunchError(f"run {name} has no container")
            if there.status == "created":
                raise LaunchError(f"the container of run {name} was never started")
            return self._watch(name, there)

    def _watch(self, name: str, there: Container) -> ContainerWatch:
        directory = self._directory(name)
        directory.parent.mkdir(parents=True, exist_ok=True)
        output = ContainerOutput(
            lambda follow: self._engine.output(there.id, follow), _log_file(directory), self._settings.limits.log_bytes
        )
        watch = ContainerWatch(self._engine, Watched(name, there, directory), self._settings.limits, output)
        self._runs[name] = watch
        return watch

    def _directory(self, name: str) -> Path:
        run_id, _, token = name.rpartition("-")
        return directory_of(self._settings, run_id, int(token))

    def _remove(self, container_id: str) -> None:
        """Gone when this returns."""
        deadline = time.monotonic() + REMOVE_SECONDS
        self._engine.remove(container_id)
        while self._engine.find(container_id) is not None:
            if time.monotonic() > deadline:
                raise LaunchError(f"the container {container_id[:12]} cannot be removed")
            time.sleep(0.05)
            self._engine.remove(container_id)

    def _put_log_away(self, name: str) -> None:
        """Into the job directory, where the log of every run lies: nothing writes there any more."""
        directory = self._directory(name)
        file = _log_file(directory)
        with contextlib.suppress(OSError):  # no run depends on it
            directory.with_name(f"{directory.name}.end").unlink(missing_ok=True)
            try:
                file.rename(directory / LOG)
            except IsADirectoryError:  # of the run's own making
                file.unlink(missing_ok=True)


def why_not_started(said: str) -> Verdict:
    """What is at fault when the engine refuses a start, by what it says."""
    line = said.strip().split("\n", 1)[0][:300]
    lowered = said.lower()
    if "no space left" in lowered:
        return Verdict("disk", "The container engine's disk is full.")
    if "could not select device driver" in lowered:
        return Verdict("gpu_fault", "This host's container engine has no driver for GPUs: install its toolkit.")
    if "nvidia" in lowered or "cdi device" in lowered:
        return Verdict("gpu_fault", f"The GPU could not be given to the run's container: {line}")
    return Verdict("image", f"The run's container could not be started: {line}")


def _not_started(verdict: Verdict) -> Observed:
    return Observed(running=False, cause=verdict.cause, sentence=verdict.sentence)


def _log_file(directory: Path) -> Path:
    """Beside the job directory: the run has no path to it."""
    return directory.with_name(f"{directory.name}.log")


def _look(order: Order) -> Ground:
    """Who owns the job directory and what lies in it. Root's is given to a user without rights."""
    directory = order.directory
    try:
        owner = directory.stat()
        folders = frozenset(path.name for path in directory.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError as error:
        raise LaunchError(f"the job directory of run {order.name} cannot be read: {error.strerror}") from error
    uid, gid = owner.st_uid, owner.st_gid
    if uid == 0:
        uid = gid = UNPRIVILEGED
        try:
            _give(directory, uid, frozenset(READ_ONLY[order.kind]))
        except OSError as error:
            said = f"belongs to root and cannot be given to user {uid}: {error.strerror}"
            raise LaunchError(f"the job directory of run {order.name} {said}") from error
    return Ground(uid, gid or uid, folders, _backbone_folders(order), added_root())


def _give(directory: Path, uid: int, kept: frozenset[str]) -> None:
    """To `uid`, but for what the run may only read: its files may be stored under a second name."""
    for folder, folders, files in os.walk(directory):
        if Path(folder) == directory:
            folders[:] = [name for name in folders if name not in kept]
        for name in (*folders, *files):
            os.chown(Path(folder, name), uid, uid, follow_symlinks=False)
    os.chown(directory, uid, uid, follow_symlinks=False)


def _backbone_folders(order: Order) -> tuple[Path, ...]:
    """Of the order's backbone when it was added on this machine. Shipped ones lie in the image."""
    if order.backbone is None or order.kind in ("score", "check") or is_shipped(order.backbone):
        return ()
    try:
        files = backbone_directory(order.backbone)
    except UnknownBackboneError as error:
        raise LaunchError(str(error)) from error
    record = added_root() / order.backbone
    return (record,) if files == record else (record, files)
