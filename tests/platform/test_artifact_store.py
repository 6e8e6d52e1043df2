"""The place for files that runs leave: whole or absent, verified, in a folder or in a bucket."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from test_job_directory import WORLD, claim_of
from world import evaluate_job

from dare_platform.artifact_store import (
    AddressStore,
    ArtifactStore,
    ArtifactStoreError,
    FolderStore,
    artifact_store,
    round_trip,
    storage_key,
)
from dare_platform.errors import JobDirectoryError, OutputError
from dare_platform.job_directory import Weight, write_job_directory
from dare_platform.settings import Settings

CONTENT = b"weights " * 1000
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    directory = tmp_path / "job"
    (directory / "model").mkdir(parents=True)
    (directory / "model" / "model.safetensors").write_bytes(CONTENT)
    return directory


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket behind the S3 protocol, over HTTP."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    httpx.post(f"http://{host}:{port}/moto-api/reset")  # its buckets outlive a server of the same process
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
    files = S3FileSystem()
    files.mkdir("dare")
    yield "s3://dare/site"
    S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture(params=["folder", "file", pytest.param("s3", marks=pytest.mark.full)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    home = tmp_path / "home"
    home.mkdir()
    plain = Settings(home=home, database_url="sqlite:///unused")
    if request.param == "folder":
        return plain
    if request.param == "file":
        return replace(plain, artifact_store=f"file://{tmp_path}/elsewhere")
    return replace(plain, artifact_store=request.getfixturevalue("bucket"))


def keep(store: ArtifactStore, job: Path) -> None:
    store.keep(job, "model/model.safetensors", SHA, len(CONTENT))


def test_a_file_comes_back_as_it_was_given(settings: Settings, job: Path, tmp_path: Path) -> None:
    store = artifact_store(settings)
    assert not store.holds(SHA)
    keep(store, job)
    keep(store, job)  # a second run may leave the same file
    assert store.holds(SHA)
    assert b"".join(store.chunks(SHA)) == CONTENT
    store.place(SHA, tmp_path / "placed")
    assert (tmp_path / "placed").read_bytes() == CONTENT
    assert not list((settings.home / "incoming").glob("*"))
    store.delete(SHA)
    store.delete(SHA)
    assert not store.holds(SHA)
    with pytest.raises(JobDirectoryError, match="missing"):
        store.place(SHA, tmp_path / "again")
    assert not (tmp_path / "again.part").exists()
    with pytest.raises(ArtifactStoreError, match="missing"):
        b"".join(store.chunks(SHA))


def test_a_file_that_is_another_by_now_is_not_kept(settings: Settings, job: Path) -> None:
    store = artifact_store(settings)
    (job / "model" / "model.safetensors").write_bytes(CONTENT[::-1])
    with pytest.raises(OutputError, match="another file than a moment ago"):
        keep(store, job)
    assert not store.holds(SHA)


def test_a_changed_file_is_not_placed(settings: Settings, job: Path, tmp_path: Path) -> None:
    store = artifact_store(settings)
    keep(store, job)
    forge(settings, b"forged")
    with pytest.raises(JobDirectoryError, match="recorded was"):
        store.place(SHA, tmp_path / "placed")
    assert not (tmp_path / "placed").exists()
    with pytest.raises(ArtifactStoreError, match="recorded was"):
        b"".join(store.chunks(SHA))


def forge(settings: Settings, content: bytes) -> None:
    if settings.artifact_store is None:
        file = settings.home / storage_key(SHA)
        file.chmod(0o644)
        file.write_bytes(content)
        return
    from fsspec.core import url_to_fs

    files, root = url_to_fs(settings.artifact_store)
    files.pipe_file(f"{root}/{storage_key(SHA)}", content)


def test_a_folder_gives_a_second_name_instead_of_a_copy(tmp_path: Path, job: Path) -> None:
    store = FolderStore(tmp_path)
    keep(store, job)
    store.place(SHA, tmp_path / "placed")
    assert (tmp_path / "placed").stat().st_ino == (tmp_path / storage_key(SHA)).stat().st_ino
    assert (job / "model" / "model.safetensors").stat().st_nlink == 1


def test_an_upload_that_breaks_off_leaves_nothing_under_the_key(
    tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.local import LocalFileSystem

    def torn(self: LocalFileSystem, source: str, target: str, **_: object) -> None:
        Path(target).write_bytes(Path(source).read_bytes()[:100])

    monkeypatch.setattr(LocalFileSystem, "put_file", torn)
    store = AddressStore(f"file://{tmp_path}/elsewhere", tmp_path / "incoming")
    with pytest.raises(ArtifactStoreError, match="recorded was"):
        keep(store, job)
    assert not store.holds(SHA)
    assert not [path for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()]


def test_the_round_trip_of_the_doctor_leaves_nothing(settings: Settings) -> None:
    assert "s3cret" not in round_trip(settings)
    assert not [path for path in (settings.home / "artifacts").rglob("*") if path.is_file()]


def test_an_address_that_nothing_understands_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ArtifactStoreError, match="nowhere://bucket does not work"):
        AddressStore("nowhere://name:s3cret@bucket", tmp_path)


@pytest.mark.full
def test_a_store_that_does_not_answer_is_one_sentence(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(ArtifactStoreError, match="artifact store s3://absent/site does not"):
        list(AddressStore("s3://absent/site", tmp_path).chunks(SHA))


def test_an_evaluation_finds_the_weights_wherever_they_are_kept(settings: Settings, job: Path) -> None:
    keep(artifact_store(settings), job)
    weight = Weight("shards/model.safetensors", SHA)
    directory = write_job_directory(settings, claim_of(evaluate_job(WORLD)), (weight,))
    assert (directory / "weights" / "shards" / "model.safetensors").read_bytes() == CONTENT
    forge(settings, b"forged")
    with pytest.raises(JobDirectoryError, match="recorded was"):
        write_job_directory(settings, claim_of(evaluate_job(WORLD), token=2), (weight,))
