"""Training data by reference: what can be read, and one sentence for what cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny import FAMILIES, tiny

from dare.data import DataError, DemonstrationData, PromptData, load_data
from dare.data.batches import demonstration_rollout
from dare.data.corpus import MIXES
from dare.tasks import Demonstration, UnknownTaskError, load_task


def test_a_tasks_training_split_becomes_prompts_with_their_judge(tmp_path: Path) -> None:
    data = load_data("prompts:countdown", tmp_path)
    assert isinstance(data, PromptData)
    assert data.tasks[0] is load_task("countdown")
    assert len(data.items) == len(data.tasks)


@pytest.mark.parametrize("mix", MIXES)
def test_a_mix_is_demonstrations(mix: str, tmp_path: Path) -> None:
    data = load_data(f"mix:{mix}", tmp_path)
    assert isinstance(data, DemonstrationData)
    assert len(data.rows) == 40_000


def test_a_file_of_demonstrations_and_a_file_of_prompts_are_told_apart(tmp_path: Path) -> None:
    item, answer = load_task("countdown").example
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": item.prompt, "answer": answer}) + "\n\n")
    gold = {"prompt": item.prompt, "task": "countdown", "gold": dict(item.gold)}
    (tmp_path / "b.jsonl").write_text(json.dumps(gold))
    demonstrations, prompts = load_data("file:a.jsonl", tmp_path), load_data("file:b.jsonl", tmp_path)
    assert isinstance(demonstrations, DemonstrationData)
    assert demonstrations.rows == [Demonstration(item.prompt, answer)]
    assert isinstance(prompts, PromptData)
    assert prompts.tasks[0].judge(prompts.items[0], answer).solved


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no rows"),
        ("{", "line 1 is no JSON"),
        ('{"prompt": "x", "answer": "y"}\n{"answer": "y"}', "line 2: 'prompt' is missing"),
        ('{"prompt": "x"}', "has the columns prompt; what is understood: "),
        ("[1]", "line 1"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_line(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(DataError, match=words):
        load_data("file:x.jsonl", tmp_path)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("file:absent.jsonl", "no data file"),
        ("corpus:sudoku/dirty", "no corpus 'dirty'; it has: clean, lazy"),
        ("mix:salad", "unknown mix 'salad'"),
        ("sudoku", "none of prompts"),
        ("preferences:sudoku_published", "no demonstrations to make preferences from; pass a file"),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused(reference: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        load_data(reference, tmp_path)


def test_an_unknown_task_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownTaskError, match=r"'sudko'.*sudoku"):
        load_data("prompts:sudko", tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_demonstration_fills_what_its_decoder_fills_with_ends_of_sequence(family: str) -> None:
    backbone = tiny(family)
    rollout = demonstration_rollout(
        backbone, [Demonstration("C1 2 3=6", "1+2+3"), Demonstration("S" + "0" * 16, "1")], 20
    )
    for row in range(2):
        window = rollout.ids[row][rollout.window[row]]
        if backbone.block_size is None:
            assert len(window) == 20
        else:
            assert int(rollout.valid[row].sum()) % backbone.block_size == 0
            assert len(window) <= 20
        end = int((window == backbone.tokenizer.answer_ids("")[0]).nonzero()[0])
        assert set(window[end + 1 :].tolist()) <= {backbone.eos_ids[0]}
    assert torch.equal(rollout.window, rollout.completion)
    with pytest.raises(DataError, match="the window holds 3"):
        demonstration_rollout(backbone, [Demonstration("C1 2 3=6", "1+2+3")], 3)
