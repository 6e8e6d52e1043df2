"""The pretraining mixes: deterministic, in their shares, spelt in the alphabet, disjoint from every test."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from dare.data import corpus
from dare.tasks import load_task


@pytest.mark.parametrize("name", corpus.MIXES)
def test_a_mix_is_the_same_every_time_and_its_hash_says_so(name: str) -> None:
    first = corpus.demonstrations(name, 500)
    assert first == corpus.demonstrations(name, 500)
    assert corpus.sha256(first) == corpus.sha256(corpus.demonstrations(name, 500))
    assert corpus.sha256(first) != corpus.sha256(first[::-1])


def test_the_lazy_mix_of_version_1_tasks_never_changes() -> None:
    """Recorded from the generator: committed tiny weights name the hash of the text that they were trained on."""
    mix = corpus.demonstrations("lazy-sudoku+countdown", 1000)
    assert corpus.sha256(mix) == "f8e7592e4a7e5770b7b9e6508c613c784f1bfe45ed5db47aefa6479791bbdfa9"


@pytest.mark.parametrize("count", [0, 1, 7, 1000])
@pytest.mark.parametrize("name", corpus.MIXES)
def test_a_mix_has_the_count_and_the_shares_it_promises(name: str, count: int) -> None:
    assert sum(part.share for part in corpus.MIXES[name]) == 1
    mix = corpus.demonstrations(name, count)
    sudokus = sum(demonstration.prompt.startswith("S") for demonstration in mix)
    countdowns = sum(demonstration.prompt.startswith("C") for demonstration in mix)
    assert sudokus + countdowns == count
    assert abs(sudokus - countdowns) <= 1


def test_the_parts_are_interleaved() -> None:
    kinds = "".join(demonstration.prompt[0] for demonstration in corpus.demonstrations("lazy-sudoku+countdown", 1000))
    assert 400 < sum(a != b for a, b in pairwise(kinds)) < 600


def test_an_unknown_mix_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown corpus 'lazy'; known: lazy-sudoku"):
        corpus.demonstrations("lazy", 1)


def test_the_alphabet_is_sorted_single_characters_and_spells_every_mix_and_every_task_of_one() -> None:
    alphabet = corpus.alphabet()
    assert alphabet == sorted(set(alphabet))
    assert all(len(character) == 1 and character.isascii() for character in alphabet)
    used = {c for name in corpus.MIXES for d in corpus.demonstrations(name, 5000) for c in d.prompt + d.answer}
    for task in map(load_task, ("countdown", "sudoku")):
        used |= {c for split in ("train", "test") for item in task.items(split, None) for c in item.prompt}
    assert used == set(alphabet)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["countdown_published", "sudoku_published"])
def test_the_alphabet_spells_the_published_prompts_and_their_answers(name: str, shared: Path) -> None:
    task = load_task(name)
    used = {character for item in task.items("test", shared / "data") for character in item.prompt}
    assert used | set(task.example[1]) <= set(corpus.alphabet())
