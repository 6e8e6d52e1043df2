"""Rows of JSONL, JSON and Parquet: the same in every format, and one sentence for what is no row."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dare.data import load_data_set
from dare.data.columns import JudgedItem
from dare.data.files import DataError, local_data, pick, read_rows
from dare.data.hub import HubReference, fetch_data, parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)
answers = st.one_of(st.none(), st.just(""), texts)


def write(rows: list[dict[str, Any]], path: Path) -> Path:
    """The rows in the format of the name."""
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(lines, encoding="utf-8")
    return path


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.fixed_dictionaries({"prompt": texts, "answer": answers}), min_size=1, max_size=5))
def test_every_format_gives_the_same_rows_and_sets_the_same_ones_aside(
    tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    """Line separators inside a text are text; a null gold and an empty one are set aside in each."""
    usable = [row for row in rows if row["answer"] is not None and row["answer"]]
    found = []
    for name in ("x.jsonl", "x.jsonl.gz", "x.json", "x.parquet"):
        write([*rows, {"prompt": "last", "answer": "one"}], tmp_path / name)
        data_set = load_data_set(f"file:{name}", tmp_path)
        found.append((list(data_set.examples), list(data_set.ids), data_set.manifest().rows_sha256))
        assert len(data_set.examples) == len(usable) + 1
        assert {row.id for row in data_set.set_aside} | set(data_set.ids) == {str(n) for n in range(1, len(rows) + 2)}
    assert all(one == found[0] for one in found)


def test_golds_with_other_keys_in_each_row_are_the_same_from_parquet(tmp_path: Path) -> None:
    """Parquet gives every row all keys of the column: those without a value are none."""
    rows = [
        {"prompt": "a", "task": "countdown", "gold": {"numbers": [3, 5, 7], "target": 22}},
        {"prompt": "b", "task": "sudoku", "gold": {"puzzle": "3102200002100320"}},
    ]
    golds = []
    for name in ("x.jsonl", "x.parquet"):
        write(rows, tmp_path / name)
        examples = load_data_set(f"file:{name}", tmp_path).examples
        golds.append([dict(one.item.gold) for one in examples if isinstance(one, JudgedItem)])
    assert golds[0] == golds[1] == [row["gold"] for row in rows]


def test_an_object_of_rows_gives_its_keys_as_ids(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"p7": {"prompt": "a", "answer": "b"}}')
    assert load_data_set("file:x.json", tmp_path).ids == ["p7"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.jsonl", b'{"prompt": "a", "answer": "b"}\n{"prompt": "\xff"}', "line 2 is not UTF-8: byte 0xff at 12"),
        ("x.jsonl", b'{"prompt": "a"', "line 1 is no JSON"),
        ("x.jsonl", b'{"prompt": "a", "prompt": "b"}', "line 1 has the column 'prompt' twice"),
        ("x.jsonl", b'"text"', "line 1 is no JSON object with columns: 'text'"),
        ("x.jsonl", b"\n\n", "x.jsonl has no rows"),
        ("x.jsonl", b"[" * 100_000, "line 1 is no JSON"),
        ("x.jsonl", b'{"prompt": ' + b"[" * 99 + b"]" * 99 + b"}", "line 1: 'prompt' nests deeper than 16 levels"),
        ("x.jsonl", b'{"prompt": ' + b"1" * 5000 + b"}", "line 1 is no JSON: Exceeds the limit"),
        ("x.jsonl.gz", b"not packed", "x.jsonl.gz cannot be read"),
        ("x.json", b"3", "x.json is no array of rows: it begins with '3'"),
        ("x.json", b"[3]", "row 1 is no JSON object"),
        ("x.parquet", b"PAR1", "x.parquet cannot be read as Parquet after row 0"),
        ("x.csv", b"prompt,answer", "x.csv is no file of rows by its name; it must end in .jsonl, "),
        ("x.jsonl", b'{"id": 1, "prompt": "a", "answer": "b"}\n' * 2, "line 2 has the id '1', which x.jsonl line 1"),
        ("x.jsonl", b'{"id": 1.5, "prompt": "a", "answer": "b"}', "'id' is 1.5; it must be a text or a whole number"),
    ],
)  # fmt: skip
def test_what_is_no_file_of_rows_is_refused_with_its_place(
    name: str, content: bytes, words: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        load_data_set(f"file:{name}", tmp_path)


def test_a_gold_that_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    gold = {"numbers": [3, 5, 7], "target": Decimal("22")}
    write([{"prompt": "a", "task": "countdown", "gold": gold}], tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"row 1: 'gold' holds a Decimal, Decimal\('22'\); JSON has none"):
        load_data_set("file:x.parquet", tmp_path)


def test_rows_are_read_as_they_are_needed(tmp_path: Path) -> None:
    """The second line is broken, and nobody has asked for it yet."""
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{')
    rows = read_rows(tmp_path / "x.jsonl")
    assert next(rows).values == {"a": 1}
    with pytest.raises(DataError, match="line 2"):
        next(rows)


# --- splits and shards ------------------------------------------------------------------------------------------------


def test_a_split_is_all_of_its_shards_in_order() -> None:
    names = ["README.md", "main/train-00001-of-00002.parquet", "main/train-00000-of-00002.parquet", "main/test.jsonl"]
    assert pick(names, "train", "x") == names[2:0:-1]
    assert pick(names, "main/train", "x") == names[2:0:-1]
    assert pick(names, "main/test.jsonl", "x") == ["main/test.jsonl"]
    with pytest.raises(DataError, match="x has no file or split 'dev'; it has: main/test, main/train"):
        pick(names, "dev", "x")
    with pytest.raises(DataError, match="x has more than one file for ''"):
        pick(names, "", "x")
    with pytest.raises(DataError, match="more than one file for 'train'; it has: a/train, b/train"):
        pick(["a/train.jsonl", "b/train.jsonl"], "train", "x")
    with pytest.raises(DataError, match=r"x has 1 of the 2 shards of 'main/train\.parquet'"):
        pick(names[1:2], "train", "x")


def test_a_split_of_a_folder_is_copied_into_a_job_directory_and_read_there(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for number, prompt in enumerate("ab"):
        write([{"prompt": prompt, "answer": "1"}], folder / f"train-0000{number}-of-00002.parquet")
    local = local_data(f"file:{folder}/train#prompt/answer")
    assert local is not None
    local.copy_to(tmp_path)
    assert local.reference == "file:train#prompt/answer"
    data_set = load_data_set(local.reference, tmp_path)
    assert [name for _, name in data_set.files] == [f"train-0000{number}-of-00002.parquet" for number in (0, 1)]
    assert [example.prompt for example in data_set.examples if not isinstance(example, JudgedItem)] == ["a", "b"]
    assert local_data("prompts:sudoku") is None


# --- the hub ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test, and no hub."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "cache"


def test_a_data_set_in_the_cache_needs_no_network(cache: Path) -> None:
    snapshot = cache / "datasets--owner--name" / "snapshots" / COMMIT
    (snapshot / "main").mkdir(parents=True)
    write([{"question": "q", "answer": "a"}], snapshot / "main" / "train.parquet")
    write([{"question": "q", "answer": "a"}], snapshot / "main" / "test.parquet")
    data_set = load_data_set(f"hub:owner/name@{COMMIT}/main/train", Path())
    assert data_set.ids == ["1"]
    manifest = data_set.manifest()
    assert (manifest.revision, manifest.files[0].path) == (COMMIT, "main/train.parquet")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("owner/name", "hub:owner/name has no revision; name the 40 hexadecimal digits of a commit"),
        ("owner/name@main/train", "has the revision 'main'; name the 40 hexadecimal digits"),
        ("name@" + COMMIT, "'name' is no name of a data set of the hub"),
        (f"owner/name@{COMMIT}/../../x", "leads out of the data set"),
    ],
)
def test_a_revision_that_may_move_and_a_name_that_is_none_are_refused(place: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        parse(place)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """What of the hub's protocol the client uses for a data set, over a folder: endpoint, folder, files asked for."""
    folder, asked = tmp_path / "published", list[str]()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            path = self.path.partition("?")[0].strip("/")
            names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
            headers: dict[str, str] = {"X-Error-Code": "RepoNotFound"}
            content = None
            if path.startswith("api/datasets/owner/name/tree/"):
                files = [{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in names]
                headers, content = {}, json.dumps(files).encode()
            elif path.startswith("api/datasets/owner/name"):
                info = {"_id": "1", "id": "owner/name", "sha": COMMIT, "private": False, "tags": [], "downloads": 0}
                headers, content = {}, json.dumps({**info, "siblings": [{"rfilename": n} for n in names]}).encode()
            elif path.startswith(prefix := f"datasets/owner/name/resolve/{COMMIT}/"):
                name = path.removeprefix(prefix)
                asked.append(name)
                content = (folder / name).read_bytes()
                headers = {"ETag": f'"{len(content):040}"', "X-Repo-Commit": COMMIT}
            self.send_response(404 if content is None else 200)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if body and content:
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder, asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_only_the_files_of_the_split_are_fetched_and_once(hub: tuple[str, Path, list[str]], cache: Path) -> None:
    endpoint, folder, asked = hub
    folder.mkdir()
    (folder / "name.py").write_text("raise SystemExit('remote code ran')")
    write([{"question": "q", "answer": "a"}], folder / "train.jsonl")
    write([{"question": "other", "answer": "a"}], folder / "test.jsonl")
    wanted = HubReference("owner/name", COMMIT, "train")
    fetched = fetch_data(wanted, endpoint)
    assert [name for _, name in fetched] == ["train.jsonl"]
    assert fetched[0][0].read_bytes() == (folder / "train.jsonl").read_bytes()
    assert set(asked) == {"train.jsonl"}
    asked.clear()
    assert fetch_data(wanted, "http://127.0.0.1:9") == fetched  # from the cache: nobody listens there
    with pytest.raises(DataError, match="owner/name has no file or split 'dev'; it has: test, train"):
        fetch_data(HubReference("owner/name", COMMIT, "dev"), endpoint)
    with pytest.raises(DataError, match="the hub has no owner/other"):
        fetch_data(HubReference("owner/other", COMMIT, "dev"), endpoint)


def test_without_a_network_and_a_cache_the_sentence_says_what_to_do(cache: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be reached for owner/name .* name them as file:<path>"):
        fetch_data(HubReference("owner/name", COMMIT, "train"), "http://127.0.0.1:9")
