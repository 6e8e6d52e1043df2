"""Published data files of tasks: fetched once into the data folder, recorded by hash, verified again at any time.

A file appears under its name only when it is whole and its hash is right. What came of it before an interruption lies
beside it as `NAME.part` and is gone on with, unless the server says that the file has changed.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dare.data_record import NAME, DataRecord, FileRecord, read_record
from dare.tasks import DataFile, MissingDataError, Task
from dare.weights.hashes import file_sha256

if TYPE_CHECKING:
    import httpx

TRIES = 3
"""Times that a broken connection is made again before the fetch fails."""
TIMEOUT = 60.0
"""Seconds without a byte after which a connection is broken."""
_CHUNK = 2**20

Advance = Callable[[str, int, int | None], object]
"""Told the file, the bytes that are here, and how many there are in all, where the server says so."""
State = Literal["generated", "verified", "fetched", "declared", "missing", "changed"]


class FetchError(RuntimeError):
    """A file cannot be had, or is not the one that it should be. One sentence that names it."""


@dataclass(frozen=True)
class Fetched:
    """One file of a task that is in the folder now, and whether this call brought it there."""

    path: str
    sha256: str
    bytes: int
    new: bool


def fetch(
    task: Task, folder: Path, endpoint: str | None = None, advance: Advance = lambda *_: None
) -> Sequence[Fetched]:
    """All files of a task, into `folder`, recorded in its `dare-data.json`. FetchError for the first that fails; those
    before it stay."""
    archives: dict[str, Path] = {}
    try:
        return [_fetched(task, file, folder, archives, endpoint, advance) for file in task.files]
    finally:
        for archive in archives.values():
            archive.unlink(missing_ok=True)


def _fetched(
    task: Task, file: DataFile, folder: Path, archives: dict[str, Path], endpoint: str | None, advance: Advance
) -> Fetched:
    path = folder / file.path
    known = read_record(folder).files.get(file.path)
    expected = file.sha256 or (known.sha256 if known else None)
    if path.exists():
        found = file_sha256(path)
        if expected not in (None, found):
            raise FetchError(
                f"{path} is not the file that task {task.name!r} needs: its SHA-256 is {found}, not {expected}; move "
                "it away and fetch again"
            )
        if expected is None:
            _record(folder, file.path, path, None, None)
        return Fetched(file.path, found, path.stat().st_size, new=False)
    if file.address is None:
        raise FetchError(f"{file.path} of task {task.name!r} has no address; {file.note or 'put it there by hand'}")
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_name(path.name + ".whole")
        revision = None
        if file.address.startswith("hub:"):
            revision = _from_hub(file.address, whole, endpoint)
        elif "!" in file.address:
            _from_archive(file.address, whole, folder, archives, advance)
        else:
            _download(file.address, whole, file.path, advance)
        found = file_sha256(whole)
        if file.sha256 not in (None, found):
            whole.unlink()
            raise FetchError(
                f"{file.address} is not the file {file.path} that task {task.name!r} needs: its SHA-256 is {found}, "
                f"not {file.sha256}"
            )
        if known is not None and known.sha256 != found:
            whole.unlink()
            raise FetchError(
                f"{file.address} has changed: its SHA-256 is {found}, and {known.sha256} was recorded on {known.date}; "
                f"to take the new file, remove {file.path} from {folder / NAME}"
            )
        written = _record(folder, file.path, whole, file.address, revision)
        whole.replace(path)
    return Fetched(file.path, written.sha256, written.bytes, new=True)


def _record(folder: Path, name: str, path: Path, address: str | None, revision: str | None) -> FileRecord:
    """Note what a file is, before it gets its name: a name without a record would be somebody else's file."""
    with _writing(folder / NAME):
        written = FileRecord(
            sha256=file_sha256(path),
            bytes=path.stat().st_size,
            rows=rows_of(path, name),
            address=address,
            revision=revision,
            date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        files = {**read_record(folder).files, name: written}
        record = DataRecord(files=dict(sorted(files.items())))
        scratch = folder / f"{NAME}.new"
        scratch.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
        scratch.replace(folder / NAME)
    return written


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A full disk and a folder that cannot be written to are one sentence."""
    try:
        yield
    except OSError as error:
        raise FetchError(
            f"{path} cannot be written: {error.strerror or error}; what came of it is kept, and the same command "
            "goes on"
        ) from error


def _download(address: str, whole: Path, name: str, advance: Advance) -> None:
    """One file by its address, from where an earlier call stopped."""
    import httpx

    part, validator = whole.with_suffix(".part"), whole.with_suffix(".validator")
    with httpx.Client(follow_redirects=True, timeout=TIMEOUT) as client:
        for attempt in range(1, TRIES + 1):
            try:
                _stream(client, address, part, validator, name, advance)
                break
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                raise FetchError(f"{address} cannot be had: the server answers {status}") from error
            except httpx.InvalidURL as error:
                raise FetchError(f"{address!r} is no address") from error
            except httpx.HTTPError as error:
                if attempt == TRIES:
                    here = part.stat().st_size if part.exists() else 0
                    kept = f": {here:,} bytes are here, and the same command goes on from there" if here else ""
                    raise FetchError(f"{address} cannot be had ({type(error).__name__}){kept}") from error
    part.replace(whole)
    validator.unlink(missing_ok=True)


def _stream(client: httpx.Client, address: str, part: Path, validator: Path, name: str, advance: Advance) -> None:
    """The bytes that are not here yet; all of them where the server cannot say that the file is still the same."""
    here = part.stat().st_size if part.exists() else 0
    known = validator.read_text(encoding="utf-8") if validator.exists() else ""
    headers = {"Accept-Encoding": "identity"}
    if here and known:
        headers |= {"Range": f"bytes={here}-", "If-Range": known}
    with client.stream("GET", address, headers=headers) as response:
        if response.status_code == 416 and here:  # no byte is left: the file was whole before it got its name
            part.unlink()
            validator.unlink()
            return _stream(client, address, part, validator, name, advance)
        response.raise_for_status()
        goes_on = response.status_code == 206 and response.headers.get("content-range", "").startswith(f"bytes {here}-")
        if not goes_on:
            here = 0
            tag = response.headers.get("etag", "")
            strong = tag if tag and not tag.startswith("W/") else response.headers.get("last-modified", "")
            validator.write_text(strong, encoding="utf-8")
        length = response.headers.get("content-length")
        total = here + int(length) if length else None
        with part.open("ab" if goes_on else "wb") as out:
            for chunk in response.iter_raw():  # as it comes: what is held back is lost with the connection
                out.write(chunk)
                here += len(chunk)
                advance(name, here, total)
    return None


def _from_archive(address: str, whole: Path, folder: Path, archives: dict[str, Path], advance: Advance) -> None:
    """One member of a zip file, which is fetched once for all files of a task. A member may lie in a folder more."""
    archive, _, member = address.partition("!")
    if archive not in archives:
        name = archive.rpartition("/")[2]
        path = folder / f".{name}"
        _download(archive, path, name, advance)
        archives[archive] = path
    try:
        with zipfile.ZipFile(archives[archive]) as opened:
            names = [name for name in opened.namelist() if name == member or name.endswith(f"/{member}")]
            if len(names) != 1:
                raise FetchError(f"{archive} has {len(names)} files {member}, where there should be one")
            with opened.open(names[0]) as source, whole.open("wb") as out:
                while chunk := source.read(_CHUNK):
                    out.write(chunk)
    except (zipfile.BadZipFile, EOFError) as error:
        raise FetchError(f"{archive} is no zip file that can be read") from error


def _from_hub(address: str, whole: Path, endpoint: str | None) -> str:
    """One file of a data set of the hub, at the commit that its main branch has now, which is returned."""
    from huggingface_hub import HfApi, hf_hub_download

    from dare.weights.hub import failures, said

    owner, name, path = address.removeprefix("hub:").split("/", 2)
    hub_id = f"{owner}/{name}"
    try:
        commit = HfApi(endpoint=endpoint).dataset_info(hub_id).sha
        cached = Path(hf_hub_download(hub_id, path, repo_type="dataset", revision=commit, endpoint=endpoint))
    except failures() as error:
        reason = said(error, hub_id, "main") or f"the hub cannot be reached for {hub_id} ({type(error).__name__})"
        raise FetchError(f"{reason}: {path} can also be put there by hand") from error
    with cached.open("rb") as source, whole.open("wb") as out:
        while chunk := source.read(_CHUNK):
            out.write(chunk)
    return str(commit)


def rows_of(path: Path, name: str) -> int | None:
    """Rows of a file by the kind that its name says, without a header; None where it is of no known kind."""
    try:
        if name.endswith(".jsonl"):
            with path.open("rb") as lines:
                return sum(1 for line in lines if line.strip())
        if name.endswith(".json"):
            return len(json.loads(path.read_bytes()))
        if name.endswith(".csv"):
            rows = sum(1 for _ in csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))
            return rows - (not name.startswith("mmlu/"))  # the only published files without a header
        if name.endswith(".parquet"):
            from pyarrow import parquet

            return int(parquet.read_metadata(path).num_rows)
    except (ValueError, csv.Error, TypeError, ImportError):
        return None
    return None


def state(task: Task, folder: Path | None) -> State:
    """Where a task's data stands on this machine."""
    if not task.needs_data:
        return "generated"
    stand = {_compared(file, folder)[0] for file in task.files}
    if stand == {"right"}:
        return "verified" if task.verified else "fetched"
    if "changed" in stand:
        return "changed"
    return "missing" if task.verified else "declared"


def problems(task: Task, folder: Path | None) -> list[str]:
    """What is wrong with the files of a task, one sentence each, and whether they hold as many items as they should."""
    compared = [_compared(file, folder) for file in task.files]
    if not task.needs_data or any(stand != "right" for stand, _ in compared):
        return [sentence for stand, sentence in compared if stand != "right"]
    try:
        items = task.items("test", folder)
    except (MissingDataError, ValueError, LookupError, TypeError) as error:
        return [f"the files of task {task.name!r} are what they were and cannot be read: {error}"]
    if task.count not in (None, len(items)):
        return [f"task {task.name!r} has {len(items)} items, not {task.count}"]
    return []


def _compared(file: DataFile, folder: Path | None) -> tuple[Literal["right", "missing", "unknown", "changed"], str]:
    """How a file stands to its hash, with a sentence that names it."""
    path = folder / file.path if folder else None
    if folder is None or path is None or not path.is_file():
        return "missing", f"{file.path} is missing"
    record = read_record(folder).files.get(file.path)
    expected, known = file.sha256 or (record and record.sha256), file.rows or (record and record.rows)
    if not expected:
        return "unknown", f"{file.path} is here, but nothing says what it is: `dare data fetch` records it"
    found = file_sha256(path)
    if found == expected:
        return "right", f"{file.path} is what it was"
    now = rows_of(path, file.path)
    how = f"it has {now} rows, not {known}" if known and now and now != known else "its rows are changed or reordered"
    return "changed", f"{file.path} is not the file it was: its SHA-256 is {found}, not {expected}; {how}"


def size(task: Task, folder: Path | None) -> int | None:
    """Bytes of the files of a task that are here; None where none is."""
    here = [folder / file.path for file in task.files if folder and (folder / file.path).is_file()]
    return sum(path.stat().st_size for path in here) if here else None


def rows(task: Task, folder: Path | None) -> int | None:
    """Rows of the test split: counted by the task, or as they were recorded when its file was fetched."""
    if task.count is not None or folder is None or not task.files:
        return task.count
    record = read_record(folder).files.get(task.files[-1].path)
    return record.rows if record else None
