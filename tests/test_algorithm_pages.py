"""The pages of the methods: complete, and their generated parts as the files of the methods say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dare.algorithm import load_algorithm
from dare.algorithm_pages import MEANING, SECTIONS, generated, measure, problems
from dare.catalog import algorithms
from dare.spec import AlgorithmSpec

PAGES = Path(__file__).resolve().parent.parent / "docs" / "algorithms"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PAGES, tmp_path / "algorithms"))


def test_every_method_has_a_whole_page_that_is_not_stale() -> None:
    assert problems(PAGES) == []


def test_no_page_is_left_of_a_method_that_is_gone() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} - {"README", "derivations", "proof"} == set(algorithms())


def test_a_missing_page_is_a_problem(copy: Path) -> None:
    (copy / "bgpo.md").unlink()
    assert problems(copy)[0].startswith("bgpo.md is missing: write it by the sections Idea, Objective")


def test_a_page_without_a_section_is_a_problem(copy: Path) -> None:
    page = copy / "d1.md"
    page.write_text(page.read_text().replace("## Pitfalls\n", ""))
    (found,) = problems(copy)
    assert found.startswith("d1.md has the sections Idea, ")
    assert found.endswith(", ".join(SECTIONS))


def test_a_changed_default_makes_its_page_stale(copy: Path) -> None:
    page = copy / "espo.md"
    page.write_text(page.read_text().replace("| `pairs` | int | 1 |", "| `pairs` | int | 2 |"))
    assert problems(copy) == ["espo.md is stale: `python -m dare.algorithm_pages`"]
    page.write_text(generated(copy)[page])
    assert problems(copy) == []


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_an_idea_is_told_in_a_few_sentences(name: str) -> None:
    idea = (PAGES / f"{name}.md").read_text().partition("## Idea\n")[2].partition("\n## ")[0]
    assert 2 <= idea.replace("\n", " ").count(". ") + 1 <= 4


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_every_objective_is_a_formula(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text().partition("## Objective\n")[2].partition("\n## ")[0]
    assert "```math" in text or name == "coupled_grpo"


def test_costs_are_those_that_the_settings_declare() -> None:
    def cost(name: str, **given: int) -> float:
        return measure(load_algorithm(AlgorithmSpec(name=name, hyperparameters=dict(given)))).masked

    assert cost("bgpo", mc_samples=5) == 5
    assert cost("espo", pairs=3) == pytest.approx(6, abs=0.5)  # a side without a token has no view
    assert cost("gdpo", nodes=4) == 4
    assert cost("cj_grpo") == 10  # steps of the small rollout
    assert cost("just_grpo") == 20  # its tokens
    assert cost("mdpo", train_steps=3) == 3
    assert cost("d_tree_rpo") == (4 + 4 * 4) / (4 * 4)


def test_every_meaning_is_of_a_metric_that_some_method_logs() -> None:
    logged = {m for name in algorithms() for m in measure(load_algorithm(AlgorithmSpec(name=name))).metrics}
    assert logged == set(MEANING)
