"""`dare data fetch|list|verify` against a real server on this machine: whole, cut short, changed, absent, disk full."""

from __future__ import annotations

import hashlib
import io
import json
import resource
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dare.commands.data import app
from dare.data import published
from dare.data.published import FetchError, fetch, problems, rows_of, state
from dare.data_record import NAME, DataRecordError, read_record
from dare.tasks import DataFile, Item, MissingDataError, Task, is_recorded, load_task, read_data, read_rows, task_names

CONTENT = b"".join(b'{"number": %d}\n' % n for n in range(20_000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FILE = "numbers/test.jsonl"


@dataclass
class Server:
    """Files by path. `cut` answers are closed after half of their bytes; `ranges` says whether it can go on."""

    files: dict[str, bytes] = field(default_factory=dict)
    cut: int = 0
    ranges: bool = True
    validators: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""

    @contextmanager
    def serving(self) -> Iterator[Server]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self._answer(body=False)

            def do_GET(self) -> None:
                self._answer(body=True)

            def _answer(self, body: bool) -> None:
                wanted = self.headers.get("Range")
                server.asked.append((f"{self.command} {self.path}", wanted))
                content = server.files.get(self.path.partition("?")[0])
                if content is None:
                    self.send_error(404)
                    return
                etag = f'"{hashlib.sha1(content).hexdigest()}"'
                start = 0
                if wanted and server.ranges and self.headers.get("If-Range") == etag:
                    start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(content) > 0:
                    self.send_error(416)
                    return
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
                if server.validators:
                    self.send_header("ETag", etag)
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                if not body:
                    return
                rest = content[start:]
                if server.cut:
                    server.cut -= 1
                    rest = rest[: len(rest) // 2]
                self.wfile.write(rest)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        self.address = f"http://127.0.0.1:{http.server_port}"
        try:
            yield self
        finally:
            http.shutdown()
            http.server_close()
            thread.join()


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server({f"/{FILE}": CONTENT}).serving() as serving:
        yield serving


def numbers(*files: DataFile, count: int | None = None) -> Task:
    """A task over a file of numbers."""

    def items(split: str, data: Path | None) -> Sequence[Item]:
        lines = read_data("numbers", data, files[-1].path, files[-1].sha256).splitlines()
        return [Item(str(n), line, {}) for n, line in enumerate(lines)]

    return replace(load_task("gsm8k"), name="numbers", files=files, count=count, items=items)


def verified(server: Server, sha256: str = SHA256) -> Task:
    return numbers(DataFile(FILE, sha256, f"{server.address}/{FILE}", rows=20_000), count=20_000)


def declared(server: Server) -> Task:
    return numbers(DataFile(FILE, None, f"{server.address}/{FILE}"))


def refused(task: Task, folder: Path, endpoint: str | None = None) -> str:
    with pytest.raises(FetchError) as error:
        fetch(task, folder, endpoint)
    return str(error.value)


def scratch(folder: Path) -> list[str]:
    """Names of what lies in a folder that is neither a data file nor its record."""
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and p.name not in (NAME, Path(FILE).name))


def test_a_file_is_fetched_whole_and_recorded_with_hash_bytes_rows_address_and_date(
    server: Server, tmp_path: Path
) -> None:
    told: list[tuple[str, int, int | None]] = []
    (found,) = fetch(declared(server), tmp_path, advance=lambda *step: told.append(step))
    assert (tmp_path / FILE).read_bytes() == CONTENT
    assert (found.path, found.sha256, found.bytes, found.new) == (FILE, SHA256, len(CONTENT), True)
    record = read_record(tmp_path).files[FILE]
    assert (record.sha256, record.bytes, record.rows) == (SHA256, len(CONTENT), 20_000)
    assert record.address == f"{server.address}/{FILE}"
    assert len(record.date) == len("2026-01-31T12:00:00Z")
    assert told[-1] == (FILE, len(CONTENT), len(CONTENT))
    assert scratch(tmp_path) == []


def test_a_file_that_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    fetch(declared(server), tmp_path)
    before = len(server.asked)
    (found,) = fetch(declared(server), tmp_path)
    assert not found.new
    assert len(server.asked) == before


def test_an_interrupted_fetch_goes_on_from_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.cut = published.TRIES
    said = refused(verified(server), tmp_path)
    assert "cannot be had (RemoteProtocolError)" in said
    assert "bytes are here, and the same command goes on from there" in said
    assert not (tmp_path / FILE).exists()
    assert not (tmp_path / NAME).exists()
    here = (tmp_path / f"{FILE}.part").stat().st_size
    assert len(CONTENT) * 3 // 4 < here < len(CONTENT)
    server.asked.clear()
    fetch(verified(server), tmp_path)
    assert server.asked == [(f"GET /{FILE}", f"bytes={here}-")]
    assert (tmp_path / FILE).read_bytes() == CONTENT
    assert scratch(tmp_path) == []


def test_a_broken_connection_is_made_again_without_a_word(server: Server, tmp_path: Path) -> None:
    server.cut = 1
    fetch(verified(server), tmp_path)
    assert (tmp_path / FILE).read_bytes() == CONTENT
    assert len(server.asked) == 2


@pytest.mark.parametrize("able", ["changed", "no ranges", "no validators"])
def test_a_file_that_may_have_changed_since_the_interruption_is_fetched_from_the_start(
    able: str, server: Server, tmp_path: Path
) -> None:
    server.validators = able != "no validators"
    server.cut = published.TRIES if server.validators else 1
    if server.validators:
        refused(declared(server), tmp_path)
    if able == "changed":
        server.files[f"/{FILE}"] = CONTENT[::-1]
    server.ranges = able != "no ranges"
    fetch(declared(server), tmp_path)
    assert (tmp_path / FILE).read_bytes() == server.files[f"/{FILE}"]


def test_a_file_that_was_whole_when_the_fetch_was_killed_is_taken_anyway(server: Server, tmp_path: Path) -> None:
    server.cut = published.TRIES
    refused(verified(server), tmp_path)
    (tmp_path / f"{FILE}.part").write_bytes(CONTENT)
    fetch(verified(server), tmp_path)
    assert (tmp_path / FILE).read_bytes() == CONTENT


def test_a_verified_file_with_another_hash_is_refused_and_named_and_leaves_nothing(
    server: Server, tmp_path: Path
) -> None:
    said = refused(verified(server, "0" * 64), tmp_path)
    assert f"is not the file {FILE} that task 'numbers' needs: its SHA-256 is {SHA256}, not {'0' * 64}" in said
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_an_own_file_in_the_place_of_a_verified_one_is_refused_and_not_overwritten(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "numbers").mkdir()
    (tmp_path / FILE).write_text("mine\n")
    assert "move it away and fetch again" in refused(verified(server), tmp_path)
    assert (tmp_path / FILE).read_text() == "mine\n"


def test_a_declared_file_that_changed_at_its_source_is_not_taken_in_place_of_the_recorded_one(
    server: Server, tmp_path: Path
) -> None:
    fetch(declared(server), tmp_path)
    (tmp_path / FILE).unlink()
    server.files[f"/{FILE}"] = CONTENT[::-1]
    assert "has changed: its SHA-256 is" in refused(declared(server), tmp_path)
    assert not (tmp_path / FILE).exists()
    assert read_record(tmp_path).files[FILE].sha256 == SHA256


def test_an_absent_file_an_absent_server_and_no_address_are_one_sentence_each(server: Server, tmp_path: Path) -> None:
    absent = numbers(DataFile("a/b.jsonl", None, f"{server.address}/a/b.jsonl"))
    assert refused(absent, tmp_path) == f"{server.address}/a/b.jsonl cannot be had: the server answers 404"
    nobody = numbers(DataFile("a/b.jsonl", None, "http://127.0.0.1:1/b.jsonl"))
    assert refused(nobody, tmp_path) == "http://127.0.0.1:1/b.jsonl cannot be had (ConnectError)"
    by_hand = numbers(DataFile("a/b.jsonl", None, None, note="ask its authors for it"))
    assert refused(by_hand, tmp_path) == "a/b.jsonl of task 'numbers' has no address; ask its authors for it"


def test_a_file_put_there_by_hand_is_recorded_as_it_is(tmp_path: Path) -> None:
    task = numbers(DataFile("a/b.jsonl", None, None, note="ask its authors for it"))
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b.jsonl").write_text("{}\n{}\n")
    assert not is_recorded(task, tmp_path)
    (found,) = fetch(task, tmp_path)
    assert not found.new
    record = read_record(tmp_path).files["a/b.jsonl"]
    assert (record.address, record.rows) == (None, 2)
    assert is_recorded(task, tmp_path)
    assert len(task.items("test", tmp_path)) == 2


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process can grow larger: what a full disk is to the one who writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_one_sentence_and_the_fetch_goes_on_once_there_is_room(server: Server, tmp_path: Path) -> None:
    with largest_file(100_000):
        said = refused(verified(server), tmp_path)
    assert f"{tmp_path / FILE} cannot be written: File too large; what came of it is kept" in said
    assert not (tmp_path / FILE).exists()
    assert (tmp_path / f"{FILE}.part").stat().st_size <= 100_000
    fetch(verified(server), tmp_path)
    assert (tmp_path / FILE).read_bytes() == CONTENT
    assert server.asked[-1][1] == "bytes=100000-"


def test_a_folder_in_the_way_is_one_sentence(server: Server, tmp_path: Path) -> None:
    (tmp_path / "numbers").write_text("a file")
    assert "cannot be written" in refused(verified(server), tmp_path)


def archive(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as opened:
        for name, content in members.items():
            opened.writestr(name.replace("__", "/") + ".jsonl", content)
    return out.getvalue()


def test_members_of_one_archive_are_taken_from_one_download(server: Server, tmp_path: Path) -> None:
    server.files["/all.zip"] = archive(data__numbers__test=CONTENT, data__numbers__train=b"{}\n")
    address = f"{server.address}/all.zip!numbers/"
    task = numbers(
        DataFile("numbers/train.jsonl", None, f"{address}train.jsonl"), DataFile(FILE, SHA256, f"{address}test.jsonl")
    )
    fetch(task, tmp_path)
    assert (tmp_path / FILE).read_bytes() == CONTENT
    assert read_record(tmp_path).files["numbers/train.jsonl"].address == f"{address}train.jsonl"
    assert len(server.asked) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [NAME, "numbers"]


def test_an_archive_without_the_member_or_that_is_none_is_named(server: Server, tmp_path: Path) -> None:
    server.files |= {"/all.zip": archive(other=b"{}"), "/none.zip": b"<html>"}
    task = numbers(DataFile(FILE, None, f"{server.address}/all.zip!{FILE}"))
    assert "all.zip has 0 files numbers/test.jsonl, where there should be one" in refused(task, tmp_path)
    task = numbers(DataFile(FILE, None, f"{server.address}/none.zip!{FILE}"))
    assert "none.zip is no zip file that can be read" in refused(task, tmp_path)


def test_a_file_of_the_hub_is_fetched_at_the_commit_of_its_branch_which_is_recorded(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    info = {
        "_id": "1", "id": "owner/set", "sha": COMMIT, "private": False, "tags": [], "downloads": 0, "likes": 0,
        "siblings": [],
    }  # fmt: skip
    server.files |= {
        "/api/datasets/owner/set": json.dumps(info).encode(),
        f"/datasets/owner/set/resolve/{COMMIT}/data/test.jsonl": CONTENT,
    }
    task = numbers(DataFile(FILE, None, "hub:owner/set/data/test.jsonl"))
    fetch(task, tmp_path / "data", server.address)
    assert (tmp_path / "data" / FILE).read_bytes() == CONTENT
    assert read_record(tmp_path / "data").files[FILE].revision == COMMIT
    absent = numbers(DataFile("b.jsonl", None, "hub:owner/none/b.jsonl"))
    assert "b.jsonl can also be put there by hand" in refused(absent, tmp_path / "data", server.address)


def test_rows_are_counted_by_the_kind_of_file(tmp_path: Path) -> None:
    for name, content, rows in (
        ("a.jsonl", "{}\n\n{}\n", 2), ("a.json", "[1, 2, 3]", 3), ("a.csv", 'x,y\n1,"a\nb"\n2,c\n', 2),
        ("mmlu/test/a.csv", "q,a\nr,b\n", 2), ("a.json", "{", None), ("a.txt", "x", None),
    ):  # fmt: skip
        path = tmp_path / "file"
        path.write_text(content)
        assert rows_of(path, name) == rows, name


# State, problems and the commands


def test_missing_changed_short_and_reordered_files_are_named(server: Server, tmp_path: Path) -> None:
    task = verified(server)
    assert (state(task, None), state(task, tmp_path)) == ("missing", "missing")
    assert problems(task, tmp_path) == [f"{FILE} is missing"]
    fetch(task, tmp_path)
    assert (state(task, tmp_path), problems(task, tmp_path)) == ("verified", [])
    lines = CONTENT.splitlines(keepends=True)
    (tmp_path / FILE).write_bytes(b"".join(reversed(lines)))
    (problem,) = problems(task, tmp_path)
    assert problem.startswith(f"{FILE} is not the file it was: its SHA-256 is ")
    assert problem.endswith(f"not {SHA256}; its rows are changed or reordered")
    (tmp_path / FILE).write_bytes(b"".join(lines[:-1]))
    assert problems(task, tmp_path)[0].endswith("it has 19999 rows, not 20000")
    assert state(task, tmp_path) == "changed"


def test_a_count_that_the_file_does_not_have_is_a_problem(server: Server, tmp_path: Path) -> None:
    task = numbers(DataFile(FILE, SHA256, f"{server.address}/{FILE}"), count=163)
    fetch(task, tmp_path)
    assert problems(task, tmp_path) == ["task 'numbers' has 20000 items, not 163"]


def test_a_declared_task_is_declared_until_it_is_fetched_and_then_has_its_rows(server: Server, tmp_path: Path) -> None:
    task = declared(server)
    assert (state(task, tmp_path), published.rows(task, tmp_path)) == ("declared", None)
    fetch(task, tmp_path)
    assert (state(task, tmp_path), published.rows(task, tmp_path)) == ("fetched", 20_000)
    assert published.size(task, tmp_path) == len(CONTENT)
    (tmp_path / NAME).unlink()
    assert state(task, tmp_path) == "declared"
    assert "nothing says what it is" in problems(task, tmp_path)[0]


def test_a_damaged_record_is_one_sentence(server: Server, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("{")
    with pytest.raises(DataRecordError, match=r"dare-data\.json cannot be read as a record of data files: delete it"):
        fetch(declared(server), tmp_path)
    code, said = told("fetch", "arc_c", "--data", str(tmp_path))
    assert code == 1
    assert "cannot be read as a record" in said


def told(*arguments: str) -> tuple[int, str]:
    """Exit code and all that was said."""
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_a_file_by_hand_that_is_not_in_the_published_layout_is_said_when_it_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "hellaswag").mkdir()
    (tmp_path / "hellaswag/hellaswag.jsonl").write_text('{"ctx": "a", "endings": ["b"]}\n')
    code, said = told("fetch", "hellaswag", "--data", str(tmp_path))
    assert code == 1
    assert "the files of task 'hellaswag' are what they were and cannot be read: 'query'" in said
    (tmp_path / NAME).unlink()
    (tmp_path / "hellaswag/hellaswag.jsonl").write_bytes(b"\xff\xfe")
    code, said = told("fetch", "hellaswag", "--data", str(tmp_path))
    assert (code, "is no text in UTF-8" in said) == (1, True)


def test_list_names_every_task_without_any_data(tmp_path: Path) -> None:
    code, said = told("list", "--json")
    rows = {row["task"]: row for row in json.loads(said)}
    assert code == 0
    assert list(rows) == task_names()
    assert (rows["sudoku"]["state"], rows["sudoku"]["items"]) == ("generated", 256)
    assert (rows["mmlu"]["state"], rows["mmlu"]["files"], rows["mmlu"]["items"]) == ("missing", 114, 14_042)
    assert (rows["gpqa"]["state"], rows["gpqa"]["items"], rows["gpqa"]["bytes"]) == ("declared", None, None)
    code, said = told("list", "--data", str(tmp_path))
    assert code == 0
    assert "xstest" in said


@pytest.mark.shared
def test_verify_hashes_the_files_of_tasks_and_names_the_one_that_is_missing(shared: Path, tmp_path: Path) -> None:
    code, said = told("verify", "sudoku_published", "countdown_published", "--data", str(shared / "data"))
    assert code == 0
    assert "sudoku_published: its files (1) are what they should be, 500 items." in said
    name = "sudoku/4x4_test_sudoku.csv"
    (tmp_path / "sudoku").mkdir()
    (tmp_path / name).write_bytes((shared / "data" / name).read_bytes())
    code, said = told("verify", "sudoku_published", "countdown_published", "--data", str(tmp_path))
    assert code == 1
    assert "sudoku_published: its files (1) are what they should be, 500 items." in said
    assert "countdown_published: countdown/countdown_cd3_test.jsonl is missing" in said
    code, said = told("verify", "--all", "--data", str(shared / "data"))
    assert code == 0
    assert "mmlu: its files (114) are what they should be, 14,042 items." in said


def test_verify_and_fetch_refuse_what_they_cannot_do(tmp_path: Path) -> None:
    assert told("verify")[0] == 2
    assert told("verify", "gsm8k", "--all")[0] == 2
    assert told("verify", "gsm8k", "nothing")[0] == 2
    code, said = told("verify", "gpqa", "--data", str(tmp_path / "absent"))
    assert (code, "there is no folder of data" in said) == (2, True)
    code, said = told("fetch", "gpqa")
    assert (code, "--data FOLDER" in said) == (2, True)
    code, said = told("fetch", "gpqq", "--data", str(tmp_path))
    assert (code, "unknown task 'gpqq'" in said) == (2, True)
    code, said = told("fetch", "sudoku", "--data", str(tmp_path))
    assert (code, "there is nothing to fetch" in said) == (0, True)


@pytest.mark.parametrize("name", [name for name in task_names() if load_task(name).files])
def test_every_address_of_a_task_is_one_that_can_be_fetched(name: str) -> None:
    for file in load_task(name).files:
        if file.address is None:
            assert file.note or file.sha256
            continue
        scheme, _, rest = file.address.partition(":")
        assert scheme in ("https", "hub")
        assert rest.count("/") >= 2
        assert not file.path.startswith(("/", ".."))


def test_a_line_separator_inside_a_row_ends_no_row_and_a_broken_line_is_named(tmp_path: Path) -> None:
    def rows(text: str) -> list[dict[str, Any]]:
        (tmp_path / "rows.jsonl").write_text(text, encoding="utf-8")
        return read_rows("made", tmp_path, "rows.jsonl", hashlib.sha256(text.encode()).hexdigest())

    assert rows('{"question": "a\u2028b"}\n\n{"question": "c"}\n') == [{"question": "a\u2028b"}, {"question": "c"}]
    with pytest.raises(MissingDataError, match=r"rows\.jsonl of task 'made', line 2: "):
        rows('{"question": "a"}\n{"question": \n')
