"""What a run leaves of its data: a manifest that notices every change, and a report of what the data give away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import train_job, write_job
from typer.testing import CliRunner

from dare.__main__ import app
from dare.data import load_data_set
from dare.data import manifest as dataset_manifest
from dare.data.files import DataError
from dare.data.manifest import Manifest, read, verify
from dare.data.overlap import Report
from dare.run import run
from dare.spec import JobSpec, Result
from dare.tasks import load_task

TRAIN, TEST = (load_task("sudoku").items(split, None) for split in ("train", "test"))


def rows_file(path: Path, leaked: int = 0, unusable: int = 0, count: int = 6) -> Path:
    """Sudoku prompts, the first of them test items, the last without a gold."""
    items = [*TEST[:leaked], *TRAIN[: count - leaked - unusable]]
    rows = [{"prompt": item.prompt, "task": "sudoku", "gold": dict(item.gold)} for item in items]
    rows += [{"prompt": item.prompt, "task": "sudoku", "gold": None} for item in TRAIN[count : count + unusable]]
    path.write_text("".join(json.dumps({"id": f"r{number}", **row}) + "\n" for number, row in enumerate(rows)))
    return path


def job(policy: str = "report", data: str = "file:rows.jsonl") -> JobSpec:
    plain = train_job("llada", steps=1)
    assert plain.train is not None
    settings = plain.train.settings.model_copy(update={"overlap": policy})
    return plain.model_copy(update={"train": plain.train.model_copy(update={"data": data, "settings": settings})})


def ended(directory: Path, spec: JobSpec) -> tuple[Result, list[str]]:
    """The result of a run, and its alarms."""
    alarms: list[str] = []
    result = run(
        write_job(directory, spec), lambda e: alarms.append(f"{e.stage}: {e.detail}") if e.kind == "alarm" else None
    )
    return result, alarms


def test_a_run_names_its_data_what_it_set_aside_and_what_is_given_away(tmp_path: Path) -> None:
    rows_file(tmp_path / "rows.jsonl", leaked=2, unusable=1)
    result, alarms = ended(tmp_path, job())
    assert result.outcome == "succeeded", result.message
    manifest = read(tmp_path / dataset_manifest.NAME)
    assert result.provenance["data_manifest"] == manifest.digest()
    assert result.provenance["data"] == "file:rows.jsonl"
    assert (manifest.rows, manifest.kept, manifest.set_aside[0].id) == (6, 5, "r5")
    report = Report.model_validate_json((tmp_path / "overlap.json").read_text())
    assert [(one.task, one.item, one.rows) for one in report.contaminated] == [
        ("sudoku", TEST[0].id, ("r0",)),
        ("sudoku", TEST[1].id, ("r1",)),
    ]
    assert {name: result.metrics[name] for name in ("contaminated_items", "rows_set_aside", "rows_dropped")} == {
        "contaminated_items": 2, "rows_set_aside": 1, "rows_dropped": 0
    }  # fmt: skip
    assert alarms == [
        "set_aside: 1 of 6 rows are set aside and not trained on: 1 x 'gold' is null",
        f"overlap: training prompts give away test items: 2 of 256 of sudoku: {TEST[0].id} (exact), {TEST[1].id} "
        "(exact); the rows are trained on all the same; see overlap.json",
    ]


def test_the_policy_drop_leaves_the_rows_out_and_says_so(tmp_path: Path) -> None:
    rows_file(tmp_path / "rows.jsonl", leaked=2)
    result, alarms = ended(tmp_path, job("drop"))
    assert result.outcome == "succeeded", result.message
    assert result.metrics["rows_dropped"] == 2
    assert "2 training rows were left out" in alarms[0]
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines() if line]
    prompts = {event["sample"]["prompt"] for event in events if event["kind"] == "sample"}
    assert prompts
    assert not prompts & {item.prompt for item in TEST}


def test_data_that_are_all_given_away_or_all_unusable_end_the_run_with_a_sentence(tmp_path: Path) -> None:
    rows_file(tmp_path / "rows.jsonl", leaked=3, count=3)
    result, _ = ended(tmp_path, job("drop"))
    assert result.outcome == "failed"
    assert "all 3 rows of file:rows.jsonl give test items away: nothing is left" in result.message
    (tmp_path / "result.json").unlink()
    (tmp_path / dataset_manifest.NAME).unlink()
    rows_file(tmp_path / "rows.jsonl", unusable=2, count=2)
    result, _ = ended(tmp_path, job())
    assert "none of 2 rows can be trained on; rows.jsonl line 1: 'gold' is null" in result.message


def test_a_run_that_continues_with_other_data_stops_and_says_which_file_changed(tmp_path: Path) -> None:
    rows_file(tmp_path / "rows.jsonl")
    ended(tmp_path, job())
    (tmp_path / "result.json").unlink()
    rows_file(tmp_path / "rows.jsonl", count=5)
    result, _ = ended(tmp_path, job())
    assert "the data are not those that this run began with: rows.jsonl was SHA-256 " in result.message


def test_generated_data_have_a_manifest_without_files(tmp_path: Path) -> None:
    manifests = [load_data_set("prompts:countdown", tmp_path).manifest() for _ in range(2)]
    assert manifests[0] == manifests[1]
    assert (manifests[0].revision, manifests[0].files, manifests[0].kept) == ("countdown 1", (), 4096)


def written(folder: Path) -> tuple[Manifest, Path]:
    rows_file(folder / "rows.jsonl")
    manifest = load_data_set("file:rows.jsonl", folder).manifest()
    dataset_manifest.write(manifest, folder / "m.json")
    assert read(folder / "m.json") == manifest
    return manifest, folder / "rows.jsonl"


def test_every_change_of_a_file_is_named(tmp_path: Path) -> None:
    manifest, rows = written(tmp_path)
    assert verify(manifest, tmp_path) == []
    content = rows.read_bytes()
    for place in (0, len(content) // 2, len(content) - 2):
        rows.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert verify(manifest, tmp_path)[0].startswith("rows.jsonl has changed: its SHA-256 is ")
    rows.write_bytes(content + b"\n")
    assert "it has" in verify(manifest, tmp_path)[0]
    rows.unlink()
    assert verify(manifest, tmp_path) == [f"rows.jsonl is not in {tmp_path}"]


def test_the_hash_of_the_rows_tells_rows_and_their_order_apart(tmp_path: Path) -> None:
    texts = ['{"prompt": "a", "answer": "b"}\n', '{"prompt": "c", "answer": "d"}\n']
    digests = []
    for lines in (texts, texts[::-1], texts[:1], [*texts, texts[0]]):
        (tmp_path / "x.jsonl").write_text("".join(lines))
        digests.append(load_data_set("file:x.jsonl", tmp_path).manifest())
    assert len({manifest.rows_sha256 for manifest in digests}) == 4
    assert [manifest.repeated for manifest in digests] == [0, 0, 0, 1]


def test_what_is_no_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('{"version": 1}')
    with pytest.raises(DataError, match="is no manifest: source: Field required"):
        read(tmp_path / "m.json")


# --- commands ---------------------------------------------------------------------------------------------------------


def told(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["data", *map(str, words)])
    assert "Traceback" not in done.output
    return done.exit_code, " ".join(done.output.split())


def test_inspect_shows_rows_reasons_hashes_and_an_example(tmp_path: Path) -> None:
    path = rows_file(tmp_path / "rows.jsonl", unusable=1)
    code, said = told("inspect", path, "--backbone", "llada-tiny", "--manifest", tmp_path / "m.json")
    assert code == 0, said
    for words in ("prompts", "prompt/task/gold", "1 x 'gold' is null", "rows.jsonl line 6 (id r5)"):
        assert words in said
    assert f"prompt: <|startoftext|><|start_header_id|>user<|end_header_id|> {TRAIN[0].prompt}<|eot_id|>" in said
    assert told("verify", tmp_path / "m.json")[0] == 0
    _, as_json = told("inspect", path, "--json", "--row", 2)
    assert json.loads(as_json)["example"]["prompt"] == TRAIN[1].prompt
    path.write_text(path.read_text().replace("sudoku", "sudokU"))
    code, said = told("verify", tmp_path / "m.json")
    assert code == 1
    assert "has changed: its SHA-256 is" in said


def test_overlap_ends_with_one_where_items_are_given_away(tmp_path: Path) -> None:
    code, said = told("overlap", rows_file(tmp_path / "rows.jsonl", leaked=1), "--out", tmp_path / "o.json")
    assert code == 1
    assert f"sudoku {TEST[0].id}: exact, row r0" in said
    assert Report.model_validate_json((tmp_path / "o.json").read_text()).contaminated[0].item == TEST[0].id
    code, said = told("overlap", rows_file(tmp_path / "rows.jsonl"))
    assert code == 0
    assert "None of 768 test items is given away by 6 training prompts." in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["inspect", "absent.jsonl"], "there is no data file absent.jsonl"),
        (["inspect", "prompts:sums"], "unknown task 'sums'"),
        (["inspect", "hub:owner/name@main"], "has the revision 'main'; name the 40 hexadecimal digits of a commit"),
        (["inspect", "prompts:sudoku", "--row", "5000"], "--row is 5000; prompts:sudoku has 4096 rows to train on"),
        (["inspect", "prompts:sudoku", "--row", "0"], "--row is 0; it must be at least 1"),
        (["inspect", "prompts:sudoku", "--backbone", "gpt"], "unknown backbone 'gpt'; known: "),
        (["inspect", "prompts:sudoku", "--data", "absent"], "there is no folder of data absent"),
        (["verify", "absent.json"], "absent.json cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence_and_exit_code_two(words: list[str], sentence: str) -> None:
    code, said = told(*words)
    assert code == 2
    assert sentence in said


def test_training_takes_parquet_and_refuses_what_is_no_file_of_rows(tmp_path: Path) -> None:
    arguments = [
        "train",
        "--algorithm",
        "sft",
        "--backbone",
        "llada-tiny",
        "--out",
        str(tmp_path / "out"),
        "--steps",
        "1",
    ]
    (tmp_path / "rows.csv").write_text("prompt,answer")
    done = CliRunner().invoke(app, [*arguments, "--data", f"file:{tmp_path}/rows.csv"])
    assert done.exit_code == 2
    assert "rows.csv is no file of rows by its name" in done.output
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"question": [TRAIN[0].prompt], "answer": ["1" * 16]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    done = CliRunner().invoke(app, [*arguments, "--data", f"file:{tmp_path}/rows.parquet#question/answer"])
    assert done.exit_code == 0, done.output
    assert read(tmp_path / "out" / dataset_manifest.NAME).files[0].path == "train.parquet"
