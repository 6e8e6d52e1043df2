"""Tasks scored by likelihood: the stored record, who wins, and an evaluation on tiny backbones against all orders."""

from __future__ import annotations

import hashlib
import json
from itertools import permutations
from math import fsum
from pathlib import Path
from statistics import fmean, stdev

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import FAMILIES, tiny, write_job

from dare.catalog import backbones
from dare.data_record import NAME, DataRecord, FileRecord
from dare.evaluation.likelihoods import certainty_of, choice_ids, measure
from dare.family import Backbone
from dare.rewards import likeliest
from dare.rewards.likeliest import Record
from dare.run import run
from dare.scoring import EvaluationError, read_predictions
from dare.scoring_run import run_score
from dare.spec import BackboneRef, EvaluateSpec, ItemOutcome, JobSpec, Result, ScoreSpec, TaskProtocol
from dare.tasks import Item, UnknownPolicyError, load_task, task_names
from dare.types import NoisyViews

LIKELIHOOD = [name for name in task_names() if load_task(name).kind == "likelihood"]
SCENES = [("1+2=", ["3", "4"]), ("C1 2 3=", ["6", "1+2", "33"]), ("S21", ["4", "12", "(1)"])]


def protocol(task: str = "hellaswag_ppl", mc_samples: int | None = 63, **more: object) -> TaskProtocol:
    greedy = backbones()["llada-tiny"].sampling.model_copy(update={"temperature": 0.0})
    return TaskProtocol.model_validate(
        {"task": task, "task_version": "1", "sampling": greedy, "mc_samples": mc_samples, "template": "none", **more}
    )


def item(context: str, choices: list[str], id: str = "one", right: int = 0) -> Item:
    return Item(id, context, {"choice": right, "choices": choices}, None, {}, tuple(choices))


def over_all_orders(backbone: Backbone, context: list[int], ids: list[int]) -> float:
    """The mean over all orders of the log-probability of revealing `ids` one by one."""
    target = torch.tensor([[*context, *ids]])
    everywhere = torch.ones_like(target, dtype=torch.bool)
    window = everywhere.clone()
    window[:, : len(context)] = False
    total = 0.0
    orders = list(permutations(range(len(ids))))
    for order in orders:
        for shown, place in enumerate(order):
            canvas, score = target.clone(), torch.zeros_like(everywhere)
            canvas[0, [len(context) + hidden for hidden in order[shown:]]] = backbone.mask_id
            score[0, len(context) + place] = True
            unit = torch.zeros(1, dtype=torch.long)
            views = NoisyViews(canvas, target, score, score.double(), unit, everywhere, window)
            with torch.no_grad():
                total += float(backbone.logprobs(backbone.model, views).sum())
    return total / len(orders)


def measured(asked: TaskProtocol, backbone: Backbone, one: Item, seed: int = 0, batch: int = 16) -> Record:
    assert isinstance(one.prompt, str)
    context = backbone.tokenizer.answer_ids(one.prompt)[:-1]
    record = likeliest.read(measure(asked, backbone, one, one.prompt, context, seed, batch).output, len(one.choices))
    assert record is not None
    return record


# The record


def test_a_record_is_read_as_it_was_written() -> None:
    record = Record((-1.5, -2.0), (0.0, 0.25), (1, 3))
    assert likeliest.read(record.text(), 2) == record


@pytest.mark.parametrize(
    "change",
    [
        {"log_likelihoods": [-1.0]},
        {"log_likelihoods": [-1.0, "x"]},
        {"log_likelihoods": [-1.0, True]},
        {"log_likelihoods": [-1.0, None]},
        {"log_likelihoods": [-1.0, 10**400]},
        {"log_likelihoods": "ab"},
        {"standard_errors": [0.1, -0.1]},
        {"tokens": [1, 0]},
        {"tokens": [1, 1.0]},
        {"tokens": 2},
    ],
)
def test_a_record_that_is_not_whole_is_none(change: dict[str, object]) -> None:
    whole = json.loads(Record((-1.0, -2.0), (0.1, 0.1), (1, 1)).text())
    assert likeliest.read(json.dumps(whole), 2) is not None
    assert likeliest.read(json.dumps(whole | change), 2) is None


@pytest.mark.parametrize(
    "text", ["", "null", "[1]", "{}", '{"log_likelihoods": [NaN, -1]}', "[" * 100_000, "-Infinity"]
)
def test_a_text_that_is_no_record_is_none(text: str) -> None:
    assert likeliest.read(text, 2) is None


@given(st.lists(st.floats(-500, -1e-3), min_size=1, max_size=6, unique=True))
def test_without_errors_the_largest_wins_and_nothing_is_undecided(values: list[float]) -> None:
    n = len(values)
    found = likeliest.pick(Record(tuple(values), (0.0,) * n, (1,) * n), ["x"] * n)
    assert found == (likeliest.Pick(values.index(max(values)), False))


def test_a_tie_has_no_winner() -> None:
    assert likeliest.pick(Record((-1.0, -1.0, -3.0), (0.0,) * 3, (1,) * 3), ["a", "b", "c"]).winner is None


def test_a_winner_within_one_standard_error_of_the_next_is_undecided() -> None:
    """The error of the difference of 0.3 and 0.4 is 0.5; the third choice is far away and does not matter."""
    for gap, undecided in ((0.49, True), (0.51, False)):
        record = Record((-1.0, -1.0 - gap, -9.0), (0.3, 0.4, 7.0), (1, 1, 1))
        assert likeliest.pick(record, ["a", "b", "c"]) == likeliest.Pick(0, undecided)


def test_the_unit_decides_between_choices_of_unlike_length() -> None:
    """In nats -2, -5 and -9; per token -1, -1.25 and -0.9; per byte -1, -0.5 and -0.6."""
    record, choices = Record((-2.0, -5.0, -9.0), (0.0,) * 3, (2, 4, 10)), [" ab", " abcdefghij", " abcdefghijklmno"]
    winners = {unit: likeliest.pick(record, choices, unit).winner for unit in likeliest.UNITS}
    assert winners == {"none": 0, "tokens": 2, "bytes": 1}


# The tasks


@pytest.mark.parametrize("name", LIKELIHOOD)
def test_the_kind_of_measure_is_in_the_name_and_the_choices_are_in_the_hash(name: str) -> None:
    task = load_task(name)
    shown = task.example[0]
    assert name.endswith("_ppl")
    assert task.title.endswith(", likelihood")
    assert shown.gold["choices"] == list(shown.choices)
    assert 0 <= shown.gold["choice"] < len(shown.choices)
    assert all(choice.startswith(" ") and choice.strip() for choice in shown.choices)


@pytest.mark.parametrize("name", LIKELIHOOD)
def test_each_choice_wins_when_it_is_the_likeliest(name: str) -> None:
    task = load_task(name)
    shown = task.example[0]
    n = len(shown.choices)
    for place in range(n):
        logp = tuple(-1.0 if other == place else -2.0 for other in range(n))
        verdict = task.judge(shown, Record(logp, (0.0,) * n, (1,) * n).text())
        assert (verdict.solved, verdict.reward) == (place == shown.gold["choice"],) * 2
        assert (verdict.status, verdict.answer) == ("ok", "ABCD"[place])
    tied = task.judge(shown, Record((-1.0,) * n, (0.0,) * n, (1,) * n).text())
    assert (tied.solved, tied.status, tied.answer) == (False, "no_answer", None)


@pytest.mark.parametrize("name", LIKELIHOOD)
def test_the_policy_of_the_unit_reaches_the_judge(name: str) -> None:
    task = load_task(name)
    shown = item("x", [" ab", " abcdefghij"], right=0)
    text = Record((-2.0, -5.0), (0.0, 0.0), (2, 4)).text()
    solved = {unit: task.judging({"normalise": unit})(shown, text).solved for unit in likeliest.UNITS}
    assert solved == {"none": True, "tokens": True, "bytes": False}
    assert task.judge(shown, text).solved
    with pytest.raises(UnknownPolicyError, match="cannot be 'words'"):
        task.judging({"normalise": "words"})


@pytest.mark.shared
@pytest.mark.full
def test_the_items_of_mmlu_are_asked_by_the_likelihood_of_their_letters(shared: Path) -> None:
    letters = load_task("mmlu").items("test", shared / "data")
    items = load_task("mmlu_ppl").items("test", shared / "data")
    assert len(items) == load_task("mmlu_ppl").count == 14_042
    assert [one.id for one in items] == [one.id for one in letters]
    assert all("ABCD"[one.gold["choice"]] == other.gold["letter"] for one, other in zip(items, letters, strict=True))
    assert all(one.choices == (" A", " B", " C", " D") and str(one.prompt).endswith("\nAnswer:") for one in items)
    few = load_task("mmlu_ppl").asked["hendrycks_5shot"](items[0], shared / "data")
    assert str(few).count("\nAnswer:") == 6


# Measuring


@pytest.mark.parametrize("family", FAMILIES)
def test_short_choices_are_chosen_as_over_all_orders(family: str) -> None:
    backbone = tiny(family)
    block = backbone.block_size or 1
    for context, choices in SCENES:
        if backbone.block_size is not None:  # all tokens of a choice in one block: there an order is any order
            context = context + "0" * (-len(backbone.tokenizer.answer_ids(context)[:-1]) % block)
        choices = [choice[: backbone.block_size] for choice in choices]
        ids = backbone.tokenizer.answer_ids(context)[:-1]
        expected = [over_all_orders(backbone, ids, backbone.tokenizer.answer_ids(one)[:-1]) for one in choices]
        found = measured(protocol(), backbone, item(context, choices))
        assert list(found.log_likelihoods) == pytest.approx(expected, abs=1e-4)
        assert set(found.standard_errors) == {0.0}
        assert likeliest.pick(found, choices).winner == expected.index(max(expected))


@pytest.mark.parametrize("family", FAMILIES)
def test_estimates_of_a_long_choice_average_to_its_bound(family: str) -> None:
    backbone, one = tiny(family), item("C1 2 3=", ["1+2+3"])
    [exact] = measured(protocol(mc_samples=31), backbone, one).log_likelihoods
    drawn = [measured(protocol(mc_samples=6), backbone, one, seed) for seed in range(40)]
    values = [record.log_likelihoods[0] for record in drawn]
    error = stdev(values) / len(values) ** 0.5
    assert 0 < error < 0.5
    assert abs(fmean(values) - exact) < 3 * error
    assert min(record.standard_errors[0] for record in drawn) > 0


def test_draws_are_keyed_by_the_item_and_by_nothing_else() -> None:
    backbone = tiny("llada")
    one, other = (item("C1 2 3=", ["1+2+3", "3+2+1"], id) for id in ("one", "other"))
    asked = protocol(mc_samples=4)
    assert measured(asked, backbone, one) == measured(asked, backbone, one)
    assert measured(asked, backbone, one) != measured(asked, backbone, other)
    assert measured(asked, backbone, one) != measured(asked, backbone, one, seed=1)
    batches = [measured(asked, backbone, one, batch=batch).log_likelihoods for batch in (1, 3)]
    assert batches[0] == pytest.approx(batches[1], abs=1e-5)


def test_behind_a_chat_header_a_choice_does_not_begin_with_a_space() -> None:
    backbone = tiny("llada")
    assert choice_ids(protocol(template="chat"), backbone, " 12") == choice_ids(protocol(), backbone, "12")
    assert len(choice_ids(protocol(), backbone, " 12")) == 3


def test_an_empty_choice_is_an_error_that_names_it() -> None:
    with pytest.raises(EvaluationError, match=r"item 'one' of hellaswag_ppl has the choice '', which has no tokens"):
        measured(protocol(), tiny("llada"), item("1", ["2", ""]))


def test_how_sure_the_estimates_are_is_told() -> None:
    items = [item("1", [" 1", " 2"], id) for id in ("a", "b")]
    texts = [Record((-1.0, -1.1), (0.2, 0.4), (1, 1)).text(), Record((-1.0, -9.0), (0.2, 0.4), (1, 1)).text()]
    backbone = tiny("llada")
    known = {
        (one.id, 0): measure(protocol(), backbone, one, "1", [5], 0, 4).model_copy(update={"output": text})
        for one, text in zip(items, texts, strict=True)
    }
    assert certainty_of(protocol(mc_samples=128), items, known) == {
        "likelihood.hellaswag_ppl": "128 samples, mean standard error 0.3 nats, undecided 50.0% of 2 items"
    }
    assert certainty_of(protocol(), items, {}) == {}


# A whole evaluation


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A declared file made by hand, in characters that a tiny tokenizer knows, and its record."""
    rows = [
        {"query": f"C{a} {b} {a + b}=", "choices": [f"{a}+{b}", f"{b}", f"{a}-{b}*2", "0"], "gold": a % 4}
        for a in range(1, 4)
        for b in range(1, 4)
    ]
    folder = tmp_path / "data"
    (folder / "hellaswag").mkdir(parents=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (folder / "hellaswag" / "hellaswag.jsonl").write_bytes(content)
    record = FileRecord(
        sha256=hashlib.sha256(content).hexdigest(),
        bytes=len(content),
        rows=len(rows),
        address=None,
        revision=None,
        date="2026-12-01T00:00:00Z",
    )
    (folder / NAME).write_text(DataRecord(files={"hellaswag/hellaswag.jsonl": record}).model_dump_json())
    return folder


def evaluate_job(family: str, *asked: TaskProtocol) -> JobSpec:
    ref: BackboneRef = backbones()[f"{family}-tiny"].ref
    return JobSpec(
        kind="evaluate", seed=3, backbone=ref, evaluate=EvaluateSpec(protocols=asked, trained=False, batch_size=8)
    )


def outcomes(directory: Path) -> list[ItemOutcome]:
    lines = (directory / "items" / "hellaswag_ppl.jsonl").read_text().splitlines()
    return [ItemOutcome.model_validate_json(line) for line in lines]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_evaluation_by_likelihood_scores_resumes_and_scores_again(family: str, tmp_path: Path, data: Path) -> None:
    asked = protocol(mc_samples=7)
    first = write_job(tmp_path / "run", evaluate_job(family, asked))
    result = run(first, data=data)
    assert (result.outcome, result.message) == ("succeeded", result.message)
    items = load_task("hellaswag_ppl").items("test", data)
    stored = first / "predictions" / "hellaswag_ppl.jsonl"
    answers = stored.read_text().splitlines()
    assert len(answers) == len(items) == 9
    solved = next(score for score in result.scores if score.metric == "solved")
    assert solved.n == 9
    assert solved.value == fmean(outcome.score for outcome in outcomes(first))
    assert result.provenance["likelihood.hellaswag_ppl"].startswith("7 samples, mean standard error ")
    spent = [json.loads(line)["nfe"] for line in answers]
    assert result.usage.forwards == fsum(spent)
    for outcome, line in zip(outcomes(first), answers, strict=True):
        values = json.loads(json.loads(line)["output"])["log_likelihoods"]
        assert outcome.answer == "ABCD"[values.index(max(values))]

    second = write_job(tmp_path / "again", evaluate_job(family, asked))
    (second / "predictions").mkdir()
    (second / "predictions" / "hellaswag_ppl.jsonl").write_text("\n".join(answers[4:]) + '\n{"torn')
    again: Result = run(second, data=data)
    kept = read_predictions(
        second / "predictions" / "hellaswag_ppl.jsonl",
        {one["item"]: one["prompt_sha256"] for one in map(json.loads, answers)},
    )
    assert {one.item: one.output for one in kept.values()} == {
        one["item"]: one["output"] for one in map(json.loads, answers)
    }
    assert again.scores == result.scores

    other = asked.model_copy(update={"policies": {"normalise": "tokens"}})
    job = JobSpec(kind="score", seed=0, backbone=backbones()[f"{family}-tiny"].ref, score=ScoreSpec(protocols=(other,)))
    third = write_job(tmp_path / "rescored", job)
    (third / "predictions").mkdir()
    (third / "predictions" / "hellaswag_ppl.jsonl").write_text(stored.read_text())
    assert run_score(third, data=data).outcome == "succeeded"
    for outcome, line in zip(outcomes(third), answers, strict=True):
        record = json.loads(json.loads(line)["output"])
        means = [logp / n for logp, n in zip(record["log_likelihoods"], record["tokens"], strict=True)]
        assert outcome.answer == "ABCD"[means.index(max(means))]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"mc_samples": None}, "is scored by likelihood, and the protocol has no mc_samples"),
        ({"samples": 2}, "nothing is sampled, but the protocol has samples=2"),
    ],
)
def test_a_protocol_that_cannot_ask_for_likelihoods_is_refused(
    change: dict[str, object], sentence: str, tmp_path: Path, data: Path
) -> None:
    directory = write_job(tmp_path / "run", evaluate_job("llada", protocol(**change)))  # type: ignore[arg-type]
    result = run(directory, data=data)
    assert (result.outcome, result.cause) == ("failed", "internal")
    assert sentence in (result.message or "")


@settings(deadline=None, max_examples=50)
@given(st.text())
def test_any_text_in_place_of_a_record_is_no_answer(text: str) -> None:
    for name in LIKELIHOOD:
        task = load_task(name)
        assert task.judge(task.example[0], text).status == "no_answer"
