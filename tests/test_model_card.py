"""The model card says what job, result and catalog say, and "not stated" where they are silent."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny import train_job, write_job
from typer.testing import CliRunner

from dare.__main__ import app
from dare.catalog import backbones, load_source
from dare.run import read_job, run
from dare.spec import JobSpec, LoraSettings, Result, Score, Usage
from dare.weights.hashes import file_sha256
from dare.weights.model_card import Trained, card, front_matter, licence_of

JOB = train_job("llada", "bgpo", steps=5)
TRAINED = Trained(JOB, Usage(optimiser_steps=7, gradient_forwards=8.5, forwards=99), {"torch": "2.x"}, "full")


def front_of(text: str) -> dict[str, Any]:
    match = re.match(r"---\n(.*?)---\n", text, re.DOTALL)
    assert match is not None
    front = yaml.safe_load(match.group(1))
    assert isinstance(front, dict)
    return front


def rows(text: str, title: str) -> dict[str, str]:
    """The table below a heading."""
    section = re.split(r"^## ", text, flags=re.MULTILINE)
    (body,) = [part for part in section if part.startswith(f"{title}\n")]
    return dict(re.findall(r"^\| ([^|]+) \| (.*) \|$", body, re.MULTILINE))


def test_the_front_matter_is_the_base_and_the_method() -> None:
    front = front_of(card(TRAINED, {}))
    assert front == front_matter(TRAINED)
    assert front["license"] == "apache-2.0" == backbones()["llada-tiny"].licence.lower()
    assert front["base_model"] == "llada-tiny"
    assert set(front["tags"]) >= {"llada", "bgpo", "dare"}
    assert "datasets" not in front, "what is generated or private is no data set of the hub"


def test_a_data_set_of_the_hub_is_named() -> None:
    assert JOB.train is not None
    train = JOB.train.model_copy(update={"data": "hub:openai/gsm8k@" + "a" * 40 + "/train"})
    assert front_matter(replace(TRAINED, job=JOB.model_copy(update={"train": train})))["datasets"] == ["openai/gsm8k"]


@pytest.mark.parametrize(
    ("licence", "front", "said"),
    [
        ("unknown", {}, "not stated"),
        ("MIT", {"license": "mit"}, "MIT"),
        ("My Own Licence", {"license": "other", "license_name": "My Own Licence"}, "My Own Licence"),
    ],
)
def test_the_licence_is_that_of_the_base_and_never_guessed(
    licence: str, front: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = backbones()["llada-tiny"].model_copy(update={"licence": licence})
    monkeypatch.setattr("dare.weights.model_card.backbones", lambda: {record.name: record})
    text = card(TRAINED, {})
    assert {key: value for key, value in front_of(text).items() if key.startswith("license")} == front
    assert rows(text, "Base")["licence"] == said


def test_a_base_that_is_not_the_one_of_the_job_states_nothing() -> None:
    other = JOB.model_copy(update={"backbone": JOB.backbone.model_copy(update={"weights_sha256": "0" * 64})})
    trained = replace(TRAINED, job=other)
    assert trained.base is None
    assert licence_of(trained.base) is None
    assert rows(card(trained, {}), "Base")["licence"] == "not stated"


def test_every_table_is_the_jobs_values() -> None:
    assert JOB.train is not None
    text = card(TRAINED, {"model.safetensors": "ab"})
    base, method = rows(text, "Base"), rows(text, "Method")
    assert (base["revision"], base["weights sha256"]) == (JOB.backbone.revision, JOB.backbone.weights_sha256)
    for name, value in load_source("bgpo").settled(JOB.train.algorithm.hyperparameters).items():
        assert method[name] == str(value)
    assert method["source sha256"] == load_source("bgpo").sha256
    settings = {**JOB.train.settings.model_dump(mode="json"), "seed": JOB.seed}
    assert rows(text, "Training settings") == {name: str(value) for name, value in settings.items()}
    sampling = JOB.train.sampling.model_dump(mode="json")
    assert rows(text, "Decoding of rollouts") == {name: str(value) for name, value in sampling.items()}
    budget = rows(text, "Budget")
    assert budget["optimiser batches, at most"] == "5"
    assert budget["gradient forwards per completion made"] == "8.5"
    assert rows(text, "Files") == {"model.safetensors": "sha256 ab"}
    assert rows(text, "Software") == {"torch": "2.x"}
    assert "Not evaluated" in text


def test_the_job_in_the_card_is_the_job() -> None:
    block = re.search(r"```json\n(.*?)```", card(TRAINED, {}), re.DOTALL)
    assert block is not None
    assert JobSpec.model_validate_json(block.group(1)).digest() == JOB.digest()


def test_scores_carry_their_error_and_a_quick_look_says_so() -> None:
    score = Score(
        task="sudoku", metric="solved", decoding="greedy", value=0.25, standard_error=0.05, n=64, scorer="dare-1",
        protocol="p",
    )  # fmt: skip
    text = card(replace(TRAINED, scores=(score,), limited=True), {})
    assert "| sudoku | solved | greedy | 0.2500 | 0.0500 | 64 | dare-1 |" in text
    assert "a quick look" in text


# --- in a run, and given away ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with adapters."""
    job = train_job("sdar", "d1", steps=1, prompts_per_step=1, group_size=2)
    assert job.train is not None
    settings = job.train.settings.model_copy(update={"lora": LoraSettings(rank=2, alpha=4), "learning_rate": 0.01})
    job = job.model_copy(update={"train": job.train.model_copy(update={"settings": settings})})
    directory = write_job(tmp_path_factory.mktemp("run") / "mine", job)
    assert run(directory).outcome == "succeeded"
    return directory


def package(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["package", *map(str, words)])
    assert "Traceback" not in done.output
    return done.exit_code, done.output.replace("\n", " ")


def test_a_run_leaves_a_card_beside_its_weights_and_its_adapters(trained: Path) -> None:
    result = Result.model_validate_json((trained / "result.json").read_text())
    for folder, relation in (("model", "finetune"), ("adapter", "adapter")):
        text = (trained / folder / "README.md").read_text()
        assert front_of(text)["base_model_relation"] == relation
        assert rows(text, "Software") == result.provenance
        assert rows(text, "Data")["manifest"] == result.provenance["data_manifest"]
        for name, said in rows(text, "Files").items():
            assert said == f"sha256 {file_sha256(trained / folder / name)}"
    assert {"model/README.md", "adapter/README.md"} <= {one.path for one in result.artifacts}


def test_an_export_is_the_weights_and_a_card_with_their_scores(trained: Path, tmp_path: Path) -> None:
    scored = CliRunner().invoke(
        app, ["evaluate", str(trained), "--task", "countdown", "--limit", "2", "--samples", "0"]
    )
    assert scored.exit_code == 0, scored.output
    code, said = package(trained, "--to", tmp_path / "given")
    assert code == 0, said
    text = (tmp_path / "given" / "README.md").read_text()
    assert "| countdown | solved | greedy |" in text
    assert "a quick look" in text
    assert (tmp_path / "given" / "model.safetensors").read_bytes() == (
        trained / "model" / "model.safetensors"
    ).read_bytes()
    assert package(trained, "--to", tmp_path / "alone", "--adapter")[0] == 0
    assert (tmp_path / "alone" / "adapter_model.safetensors").is_file()
    assert not list(tmp_path.glob(".*"))


def test_an_export_overwrites_nothing_and_gives_away_only_what_the_run_left(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    code, said = package(trained, "--to", tmp_path / "there")
    assert (code, "exists already" in said) == (2, True)
    changed = tmp_path / "changed"
    for name in ("job.json", "result.json"):
        changed.mkdir(exist_ok=True)
        (changed / name).write_bytes((trained / name).read_bytes())
    code, said = package(changed, "--to", tmp_path / "new")
    assert (code, "has no folder model" in said) == (2, True)
    (changed / "model").mkdir()
    (changed / "model" / "model.safetensors").write_bytes(b"other")
    code, said = package(changed, "--to", tmp_path / "new")
    assert (code, "is not what the run left there" in said) == (2, True)
    result = json.loads((changed / "result.json").read_text())
    (changed / "result.json").write_text(json.dumps({**result, "outcome": "failed", "cause": "diverged"}))
    code, said = package(changed, "--to", tmp_path / "new")
    assert (code, "no training run that succeeded" in said) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["changed", "there"]
    assert read_job(changed).train is not None
