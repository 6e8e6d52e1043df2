"""`dare new` writes a method that is right before it is changed, whatever it starts from, and overwrites nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import tiny
from typer.testing import CliRunner

from dare.__main__ import app
from dare.algorithm import algorithm_names, load_algorithm
from dare.check import contract
from dare.commands.new import HOOKS
from dare.source import check_hyperparameters, read_source
from dare.source.hyperparameters import parse_settings
from dare.spec import AlgorithmSpec


def new(tmp_path: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["new", *words, "--in", str(tmp_path)])
    assert "Traceback" not in done.output
    return done.exit_code, done.output.replace("\n", " ")


@pytest.mark.parametrize("base", [*HOOKS, *algorithm_names()])
def test_a_new_method_reads_without_a_problem_and_has_its_hyperparameter(base: str, tmp_path: Path) -> None:
    code, said = new(tmp_path, "my_method", "--from", base)
    assert code == 0, said
    file = tmp_path / "my_method" / "my_method.py"
    reading = read_source(file.read_bytes(), "my_method", file.name)
    assert reading.problems == ()
    assert reading.algorithm is not None
    assert reading.algorithm.class_name == "MyMethod"
    settings = parse_settings((file.parent / "hyperparameters.yaml").read_text())
    assert list(settings.values) == ["strength"]
    assert not check_hyperparameters(reading.algorithm, settings.values, settings.lines)
    assert f"dare check {file}" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my_method"]
    assert all(len(line) <= 120 for line in file.read_text().splitlines())


@pytest.mark.parametrize("base", ["d1", "dpo", "sft", "grpo", "paired_preference"])
def test_a_new_method_keeps_the_whole_contract_as_it_is(base: str, tmp_path: Path) -> None:
    assert new(tmp_path, "mine", "--from", base)[0] == 0
    algorithm = load_algorithm(AlgorithmSpec(name="mine", source="entry"), tmp_path / "mine" / "mine.py")
    assert [outcome for outcome in contract(algorithm, tiny("sdar")) if not outcome.passed] == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["My-Method"], "the name 'My-Method' is not possible"),
        (["1st"], "the name '1st' is not possible"),
        (["../up"], "the name '../up' is not possible"),
        (["class"], "the name 'class' is not possible"),
        (["x" * 41], "is not possible"),
        (["bgpo"], "'bgpo' is built in; choose another name, and --from bgpo to begin with it"),
        (["d_1"], "'d_1' would be class D1, which the file imports already"),
        (["rollout"], "'rollout' would be class Rollout, which the file imports already"),
        (["mine", "--from", "bgop"], "--from bgop: there is no such method. Did you mean `bgpo`?"),
        (["there"], "there exists already"),
    ],
)
def test_a_name_that_will_not_do_is_refused_in_a_sentence(words: list[str], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    code, said = new(tmp_path, *words)
    assert code == 2, said
    assert sentence in said
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert not list((tmp_path / "there").iterdir())
