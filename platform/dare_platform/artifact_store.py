"""Keeps files by the SHA-256 of their content: in a folder below DARE_HOME, or at any address that fsspec understands.

A file of a key is whole or absent: it is written under another name, read back, and only then given its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from dare_platform.errors import JobDirectoryError, OutputError, PlatformError
from dare_platform.ids import new_id
from dare_platform.inside import CHUNK, copy_inside, hash_inside
from dare_platform.settings import Settings


class ArtifactStoreError(PlatformError):
    """The store does not answer, or does not give back what it was given."""


class ArtifactStore(Protocol):
    """What is asked of a place for files. Every key comes from `storage_key`."""

    def keep(self, directory: Path, relative: str, sha256: str, size: int) -> None:
        """Copy a run's file in. OutputError when it is another file by now."""

    def place(self, sha256: str, target: Path) -> None:
        """Bring a file to a path that is not there yet, verified; a second name where it can be one.

        JobDirectoryError when it is missing or was changed.
        """

    def holds(self, sha256: str) -> bool:
        """Whether there is a file of that name; its bytes are not read."""

    def delete(self, sha256: str) -> None:
        """Remove a file; one that is gone already is no mistake."""

    def chunks(self, sha256: str) -> Iterator[bytes]:
        """The bytes of a file, in order, for a download. ArtifactStoreError when they are not what they were."""

    def name(self) -> str:
        """Where it is, for people; no secret."""


def storage_key(sha256: str) -> str:
    """Where a file of this content lies, relative to the store's address (DARE_HOME by default)."""
    return f"artifacts/{sha256[:2]}/{sha256}"


def artifact_store(settings: Settings) -> ArtifactStore:
    """The store of these settings."""
    if settings.artifact_store is None:
        return FolderStore(settings.home)
    return AddressStore(settings.artifact_store, settings.home / "incoming")


class FolderStore:
    """A folder of this machine."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def name(self) -> str:
        """The folder."""
        return str(self._home / "artifacts")

    def keep(self, directory: Path, relative: str, sha256: str, size: int) -> None:
        """Copied: a second name for the run's own file would be a file that what is left of the run can write to."""
        target = self._home / storage_key(sha256)
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with _copied(directory, relative, sha256, size, target.with_name(f"{target.name}.{new_id()}")) as fresh:
            fresh.rename(target)

    def place(self, sha256: str, target: Path) -> None:
        """A hard link where possible."""
        key = storage_key(sha256)
        try:
            found, _ = hash_inside(self._home, key)
        except OutputError as error:
            raise JobDirectoryError(f"the stored {error}") from error
        if found != sha256:
            raise JobDirectoryError(_changed(key, found, sha256))
        link_or_copy(self._home / key, target)

    def holds(self, sha256: str) -> bool:
        """One look at the folder."""
        return (self._home / storage_key(sha256)).is_file()

    def delete(self, sha256: str) -> None:
        """Job directories that have a second name for it keep theirs."""
        (self._home / storage_key(sha256)).unlink(missing_ok=True)

    def chunks(self, sha256: str) -> Iterator[bytes]:
        """Hashed on the way."""
        key = storage_key(sha256)
        try:
            with (self._home / key).open("rb") as file:
                yield from _hashed(file, key, sha256)
        except FileNotFoundError as error:
            raise ArtifactStoreError(f"{key} is missing in {self._home}") from error


class AddressStore:
    """An address such as s3://bucket/folder. Credentials are those of its own library, never settings of ours.

    `incoming` is a folder of this machine for files on their way in: a run's file is copied and hashed there first.
    """

    def __init__(self, address: str, incoming: Path) -> None:
        self._address, self._incoming = address.rstrip("/"), incoming
        with _answering(self.name()):
            from fsspec.core import url_to_fs

            # another worker may have written a moment ago: nothing about the store is remembered
            self._files, self._root = url_to_fs(self._address, use_listings_cache=False)

    def name(self) -> str:
        """The address without a name and password in it."""
        scheme, separator, rest = self._address.partition("://")
        return f"{scheme}{separator}{rest.rpartition('@')[2]}"

    def keep(self, directory: Path, relative: str, sha256: str, size: int) -> None:
        """Two copies, of which the first one is ours alone."""
        if self.holds(sha256):
            return
        self._incoming.mkdir(parents=True, exist_ok=True)
        with _copied(directory, relative, sha256, size, self._incoming / new_id()) as fresh:
            self.put(fresh, sha256)

    def put(self, file: Path, sha256: str) -> None:
        """Upload under another name, read it back, and only then rename."""
        part, key = f"{self._root}/incoming/{new_id()}", self._key(sha256)
        with _answering(self.name()):
            self._files.makedirs(part.rpartition("/")[0], exist_ok=True)
            try:
                self._files.put_file(str(file), part)
                with self._files.open(part, "rb") as written:
                    for _ in _hashed(written, storage_key(sha256), sha256):
                        pass
                self._files.makedirs(key.rpartition("/")[0], exist_ok=True)
                self._files.mv(part, key)
            finally:
                if self._files.exists(part):
                    self._files.rm_file(part)

    def place(self, sha256: str, target: Path) -> None:
        """Downloaded beside the target, and renamed when it is whole."""
        part = target.with_name(f"{target.name}.part")
        try:
            with part.open("xb") as file:
                for chunk in self.chunks(sha256):
                    file.write(chunk)
            part.chmod(0o444)
            part.rename(target)
        except ArtifactStoreError as error:
            raise JobDirectoryError(str(error)) from error
        finally:
            part.unlink(missing_ok=True)

    def holds(self, sha256: str) -> bool:
        """One question to the store."""
        with _answering(self.name()):
            return bool(self._files.isfile(self._key(sha256)))

    def is_empty(self) -> bool:
        """Whether no file is kept there."""
        with _answering(self.name()):
            try:
                return not self._files.find(f"{self._root}/artifacts")
            except FileNotFoundError:
                return True

    def delete(self, sha256: str) -> None:
        """Asked first: not every store says that a file was not there."""
        with _answering(self.name()):
            if self._files.isfile(self._key(sha256)):
                self._files.rm_file(self._key(sha256))

    def chunks(self, sha256: str) -> Iterator[bytes]:
        """Hashed on the way."""
        key = storage_key(sha256)
        with _answering(self.name()):
            try:
                with self._files.open(self._key(sha256), "rb") as file:
                    yield from _hashed(file, key, sha256)
            except FileNotFoundError as error:
                raise ArtifactStoreError(f"{key} is missing in {self.name()}") from error

    def _key(self, sha256: str) -> str:
        return f"{self._root}/{storage_key(sha256)}"


def round_trip(settings: Settings) -> str:
    """Write, read and remove a small file; where it went, or ArtifactStoreError."""
    store = artifact_store(settings)
    content = f"dare doctor {new_id()}".encode()
    sha256, folder = hashlib.sha256(content).hexdigest(), settings.home / "incoming"
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f"doctor-{new_id()}"
    try:
        probe.write_bytes(content)
        store.keep(folder, probe.name, sha256, len(content))
        if b"".join(store.chunks(sha256)) != content:
            raise ArtifactStoreError(f"{store.name()} gives back something else than it was given")
        store.delete(sha256)
    except OSError as error:
        raise ArtifactStoreError(f"{store.name()} cannot be written: {error.strerror or error}") from error
    finally:
        probe.unlink(missing_ok=True)
    return store.name()


def link_or_copy(source: Path, target: Path) -> None:
    """One inode for two names, or a copy where the file system has no links."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target, follow_symlinks=False)


@contextmanager
def _copied(directory: Path, relative: str, sha256: str, size: int, fresh: Path) -> Iterator[Path]:
    """A private copy of a run's file, on the disk and verified; it is gone after the block unless it was renamed."""
    try:
        copied = copy_inside(directory, relative, fresh, size)
        if copied != sha256:
            raise OutputError(f"the artifact {relative} is another file than a moment ago")
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        fresh.chmod(0o444)
        yield fresh
    finally:
        fresh.unlink(missing_ok=True)


def _hashed(file: BinaryIO, key: str, sha256: str) -> Iterator[bytes]:
    """The bytes of a file; the last of them are followed by an error when they were not the right ones."""
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK):
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != sha256:
        raise ArtifactStoreError(_changed(key, digest.hexdigest(), sha256))


def _changed(key: str, found: str, sha256: str) -> str:
    return (
        f"the stored file {key} has SHA-256 {found[:12]}, recorded was {sha256[:12]}: "
        "somebody changed it; restore it from a backup, or train again"
    )


@contextmanager
def _answering(name: str) -> Iterator[None]:
    """What a store's own library says of a fault, as one sentence."""
    try:
        yield
    except (OSError, ImportError, ValueError) as error:
        raise ArtifactStoreError(f"the artifact store {name} does not work: {error}") from error
    except Exception as error:
        if not _is_of_its_library(error):
            raise
        raise ArtifactStoreError(f"the artifact store {name} does not answer: {error}") from error


def _is_of_its_library(error: Any) -> bool:
    """botocore has a tree of errors of its own, which is there only where s3fs is installed."""
    return any(kind.__module__.partition(".")[0] in ("botocore", "aiobotocore") for kind in type(error).__mro__)
