"""`python -m dare`: sentences and exit codes. The long way through it is in test_run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import train_job
from typer.testing import CliRunner

from dare.__main__ import app
from dare.spec import AlgorithmSpec, CheckSpec

EXAMPLE = Path(__file__).parent.parent / "examples" / "submission" / "algorithm.py"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "--algorithm", "d1", "--backbone", "llada", "--out", "{tmp}/x"], "unknown backbone 'llada'"),
        (["train", "--algorithm", "d1", "--backbone", "sdar-tiny", "--out", "{tmp}/x", "--set", "clip"], "name=value"),
        (["train", "--algorithm", "d1", "--backbone", "sdar-tiny", "--out", "{tmp}/x", "--settings", "{tmp}/no"], "no"),
        (["evaluate", "{tmp}"], "has no job.json"),
        (["run", "{tmp}"], "has no job.json"),
        (["check", "{tmp}/absent.py"], "there is no file"),
        (["pretrain", "gpt"], "no recipe for backbone 'gpt'"),
        (["generate", "S1", "--backbone", "gpt"], "unknown backbone 'gpt'"),
    ],
)
def test_a_request_that_makes_no_sense_gets_one_sentence_and_exit_code_two(
    words: list[str], sentence: str, tmp_path: Path
) -> None:
    done = CliRunner().invoke(app, [word.format(tmp=tmp_path) for word in words])
    assert done.exit_code == 2, done.output
    assert sentence in done.output.replace("\n", " ")
    assert "Traceback" not in done.output


TRAIN = ["train", "--backbone", "sdar-tiny", "--out", "{tmp}/out", "--steps", "1"]


@pytest.mark.parametrize(
    ("words", "settings", "sentence"),
    [
        (["--algorithm", "sft", "--data", "file:{tmp}/none.jsonl"], "", "there is no data file"),
        (["--algorithm", "{tmp}/none.py"], "", "there is no file"),
        (["--algorithm", "d1"], "settings: 3", "settings is 3; it must be a mapping"),
        (["--algorithm", "d1"], "hyperparameters: [1]", "hyperparameters is [1]; it must be a mapping"),
        (["--algorithm", "d1"], "settings: {learning_rate: fast}", "learning_rate is 'fast': Input should be a valid"),
        (["--algorithm", "d1"], "settings: {lr: 1}", "lr is 1: Extra inputs are not permitted"),
        (["--algorithm", "d1", "--set", "clip_low=abc"], "", '`clip_low` is the text "abc", a number is needed'),
        (["--algorithm", "bgpo", "--set", "mc_sample=2"], "", "Did you mean `mc_samples`?"),
        (
            ["--algorithm", "d1", "--stop-on", "boom"],
            "",
            "--stop-on boom: there is no such alarm; known: nan, collapse",
        ),
    ],
)
def test_a_training_that_cannot_start_says_why_and_writes_nothing(
    words: list[str], settings: str, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "s.yaml").write_text(settings)
    arguments = [word.format(tmp=tmp_path) for word in [*TRAIN, *words, "--settings", "{tmp}/s.yaml"]]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert sentence in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--algorithm", "sft", "--data", "prompts:sudoku"], "trains on demonstrations, the data are prompts"),
        (["--algorithm", "sft", "--data", "file:{tmp}/odd.jsonl"], "the tokenizer has no token for"),
    ],
)
def test_a_training_that_fails_at_its_data_says_why(words: list[str], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "odd.jsonl").write_text('{"prompt": "h\u00e9llo", "answer": "x"}\n', encoding="utf-8")
    done = CliRunner().invoke(app, [word.format(tmp=tmp_path) for word in [*TRAIN, *words]])
    assert done.exit_code == 1, done.output
    assert sentence in done.output
    assert "Traceback" not in done.output


def test_training_settings_come_from_a_file_and_a_wrong_part_is_named(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("hyperparameters: {mc_samples: 2}\nsettings: {prompts_per_step: 2, group_size: 2}\n")
    bad.write_text("optimiser: {lr: 1}\n")
    common = ["train", "--algorithm", "bgpo", "--backbone", "sdar-tiny", "--steps", "1"]
    refused = CliRunner().invoke(app, [*common, "--out", str(tmp_path / "b"), "--settings", str(bad)])
    assert refused.exit_code == 2
    assert "unknown part 'optimiser'" in refused.output
    done = CliRunner().invoke(app, [*common, "--out", str(tmp_path / "a"), "--settings", str(good)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a" / "model" / "model.safetensors").is_file()
    assert not (tmp_path / "a" / "checkpoint").exists()
    assert "rehearse" in done.output
    other = CliRunner().invoke(app, [*common, "--out", str(tmp_path / "a"), "--seed", "9"])
    assert other.exit_code == 2
    assert "already holds another job" in other.output.replace("\n", " ")
    evaluate = ["evaluate", str(tmp_path / "a"), "--task", "countdown", "--task", "countdown", "--limit"]
    scored = CliRunner().invoke(app, [*evaluate, "2"])
    assert scored.exit_code == 0, scored.output
    assert "countdown" in scored.output
    another = CliRunner().invoke(app, [*evaluate, "3"])
    assert another.exit_code == 2
    assert "holds an evaluation with other tasks, limit or samples" in another.output
    model = tmp_path / "a" / "model" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"\0")
    retrained = CliRunner().invoke(app, [*evaluate, "2"])
    assert retrained.exit_code == 2
    assert "evaluates another policy" in retrained.output


@pytest.mark.parametrize(
    ("job", "words", "sentence"),
    [
        (None, ["{tmp}/none"], "there is no directory {tmp}/none"),
        (None, ["{tmp}/job"], "job has no job.json"),
        ("{", ["{tmp}/job"], "job.json: the file: Invalid JSON"),
        ("{}", ["{tmp}/job"], "job.json: kind: Field required"),
        ("\x00", ["{tmp}/job"], "job.json: the file: Invalid JSON"),
        ("check", ["{tmp}/job"], "holds a job of kind 'check'; give the directory of a `dare train`"),
        ("train", ["{tmp}/job"], "let `dare train --out {tmp}/job ...` finish first"),
        ("train", ["{tmp}/job", "--task", "chess"], "unknown task 'chess'"),
        ("train", ["{tmp}/job", "--limit", "0"], "--limit is 0; it must be at least 1"),
        ("train", ["{tmp}/job", "--limit", "-3"], "--limit is -3; it must be at least 1"),
        ("train", ["{tmp}/job", "--samples", "-1"], "--samples is -1; it must be at least 0"),
        ("train", ["{tmp}/job", "--data", "{tmp}/none"], "there is no folder of data {tmp}/none"),
    ],
)
def test_an_evaluation_that_cannot_start_says_why_and_writes_nothing(
    job: str | None, words: list[str], sentence: str, tmp_path: Path
) -> None:
    directory = tmp_path / "job"
    directory.mkdir()
    train = train_job("sdar")
    jobs = {
        "train": train.model_dump_json(),
        "check": train.model_copy(
            update={"kind": "check", "train": None, "check": CheckSpec(algorithm=AlgorithmSpec(name="d1"))}
        ).model_dump_json(),
    }
    if job is not None:
        (directory / "job.json").write_text(jobs.get(job, job))
    before = sorted(tmp_path.rglob("*"))
    done = CliRunner().invoke(app, ["evaluate", *[word.format(tmp=tmp_path) for word in words]])
    assert done.exit_code == 2, done.output
    assert sentence.format(tmp=tmp_path) in done.output.replace("\n", " ")
    assert "Traceback" not in done.output
    assert sorted(tmp_path.rglob("*")) == before


def test_checking_the_example_passes_every_rule_on_a_backbone_of_each_kind() -> None:
    both = ["--backbone", "llada-tiny", "--backbone", "sdar-tiny"]
    done = CliRunner().invoke(app, ["check", str(EXAMPLE), *both, "--json"])
    assert done.exit_code == 0, done.output
    assert done.output.count('"passed": true') == 20


def test_generated_answers_are_printed_one_a_line() -> None:
    done = CliRunner().invoke(app, ["generate", "S0321003004002100", "C1 2 3=6", "--backbone", "sdar-tiny"])
    assert done.exit_code == 0, done.output
    assert len(done.output.splitlines()) == 2
