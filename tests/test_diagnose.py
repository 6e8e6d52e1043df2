"""`dare diagnose`: exact laws of the toy's decoders, true gradients, and methods through their own hooks."""

from __future__ import annotations

import csv
import itertools
import json
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from toys import MASK, SEQUENCES, L, V, X, code, t1, t2, uniform
from typer.testing import CliRunner

from dare.__main__ import app
from dare.algorithm import GRPO, Algorithm, algorithm_names, load_algorithm
from dare.diagnosis.decoders import (
    DECODERS,
    PATH_OF_HISTORY,
    PATH_ORDER,
    SCORES,
    SEQUENCE_OF_PATH,
    STEP_MAP,
    X0,
    confidences,
    history_law,
    law,
)
from dare.diagnosis.directions import (
    Alignment,
    Worlds,
    alignments,
    cosine,
    denoised_cosine,
    expected_gradient,
    random_worlds,
    score_alignments,
    score_gradient,
    shares,
    true_gradient,
    unsuitable,
)
from dare.diagnosis.plot import figure, finding
from dare.seeds import generator_for
from dare.spec import AlgorithmSpec
from dare.types import Credit, Rollout

FACTS = json.loads((Path(__file__).parent / "goldens" / "algorithms" / "facts.json").read_text())
ENTRY = Path(__file__).parent.parent / "examples" / "submission" / "algorithm.py"


def built_in(name: str, **settings: float | int | str) -> Algorithm:
    return load_algorithm(AlgorithmSpec(name=name, hyperparameters=settings))


def of_sequences(p: Tensor) -> Tensor:
    """Probability of every sequence from that of every path."""
    return torch.zeros(len(SEQUENCES), dtype=p.dtype).index_add(0, SEQUENCE_OF_PATH, p)


def logits_of(which: str) -> Tensor:
    return {"T1": t1, "T2": t2, "U": uniform}[which]().logits.detach()


@pytest.mark.parametrize("which", ["T1", "T2", "U"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_the_law_of_every_decoder_sums_to_one(which: str, decoder: str) -> None:
    assert float(law(logits_of(which), decoder).sum()) == pytest.approx(1, abs=1e-12)


def test_the_law_of_low_confidence_decoding_equals_the_enumerated_one() -> None:
    golden = FACTS["low_confidence_decoder"]
    p = law(logits_of("T1"), "low-confidence")
    assert int((p > 0).sum()) == golden["paths"] == 99
    assert math.log(of_sequences(p)[SEQUENCES.index(X)]) == pytest.approx(-4.920585397710413, abs=1e-10)
    expected = torch.tensor([share for _, share in golden["law"]], dtype=torch.float64)
    torch.testing.assert_close(of_sequences(p), expected, rtol=0, atol=1e-12)


def test_low_confidence_decoding_has_the_law_of_all_its_candidates() -> None:
    """Second derivation: every vector of candidates of every step, the most probable of them kept."""
    logits = random_worlds(1, 1.5, 7).logits[0]
    paths: dict[tuple[int, ...], float] = {}
    histories: dict[tuple[int, ...], float] = {}

    def decode(state: tuple[int, ...], order: tuple[int, ...], seen: tuple[int, ...], p: float) -> None:
        hidden = [i for i in range(L) if state[i] == MASK]
        if not hidden:
            paths[(*order, *state)] = paths.get((*order, *state), 0.0) + p
            histories[(*order, *seen)] = p
            return
        at = logits[int(code(torch.tensor(state)))].softmax(-1).tolist()
        for drawn in itertools.product(range(V), repeat=len(hidden)):
            x0 = dict(zip(hidden, drawn, strict=True))
            best = max(hidden, key=lambda i: at[i][x0[i]])
            kept = tuple(x0[i] if i == best else state[i] for i in range(L))
            predicted = tuple(x0.get(i, state[i]) for i in range(L))
            decode(kept, (*order, best), seen + predicted, p * math.prod(at[i][v] for i, v in x0.items()))

    decode((MASK,) * L, (), (), 1.0)
    assert len(histories) == 27 * 9 * 3
    keys = torch.cat([PATH_ORDER, torch.tensor(SEQUENCES)[SEQUENCE_OF_PATH]], dim=1)
    expected = torch.tensor([paths.get(tuple(key), 0.0) for key in keys.tolist()], dtype=torch.float64)
    torch.testing.assert_close(law(logits, "low-confidence"), expected, rtol=0, atol=1e-14)
    keys = torch.cat([PATH_ORDER[PATH_OF_HISTORY], X0.flatten(1)], dim=1)
    expected = torch.tensor([histories.get(tuple(key), 0.0) for key in keys.tolist()], dtype=torch.float64)
    torch.testing.assert_close(history_law(logits, "low-confidence"), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("decoder", DECODERS)
def test_what_is_predicted_besides_leaves_the_law_of_the_paths_as_it_is(decoder: str) -> None:
    logits = random_worlds(1, 1.0, 8).logits[0]
    total = torch.zeros(len(STEP_MAP), dtype=torch.float64)
    total = total.index_add(0, PATH_OF_HISTORY, history_law(logits, decoder))
    torch.testing.assert_close(total, law(logits, decoder), rtol=0, atol=1e-14)


def test_a_confidence_is_that_of_the_step_which_predicted_the_token_or_committed_it() -> None:
    logits = logits_of("T1")
    history = next(h for h in range(len(X0)) if PATH_ORDER[PATH_OF_HISTORY[h]].tolist() == [1, 2, 0])
    x0 = X0[history].tolist()
    states = [(MASK, MASK, MASK), (MASK, x0[0][1], MASK), (MASK, x0[0][1], x0[1][2])]
    at = [logits[int(code(torch.tensor(state)))].softmax(-1).tolist() for state in states]
    decided = {1: 0, 2: 1, 0: 2}  # step that commits each position
    expected = [[at[min(step, decided[i])][i][x0[step][i]] for i in range(L)] for step in range(L)]
    torch.testing.assert_close(confidences(logits)[history], torch.tensor(expected, dtype=torch.float64))


def test_a_step_map_says_when_each_position_was_committed() -> None:
    steps = torch.arange(1, L + 1).expand_as(STEP_MAP)
    assert torch.equal(STEP_MAP.gather(1, PATH_ORDER), steps)


def test_on_the_order_consistent_model_random_order_and_left_to_right_have_one_law() -> None:
    laws = [of_sequences(law(logits_of("T2"), decoder)) for decoder in ("random-order", "left-to-right")]
    torch.testing.assert_close(*laws, rtol=0, atol=1e-12)


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_true_gradient_equals_differences_of_the_expected_reward(decoder: str) -> None:
    world = random_worlds(1, 1.0, 3)
    gradient = true_gradient(world, decoder)[0]
    generator = generator_for(0, "directions")
    for _ in range(5):
        direction = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
        up, down = (
            float((law(world.logits[0] + step * direction, decoder) * world.reward[0, SEQUENCE_OF_PATH]).sum())
            for step in (1e-5, -1e-5)
        )
        assert (up - down) / 2e-5 == pytest.approx(float((gradient * direction).sum()), abs=1e-8)


def test_the_scores_at_x_are_the_enumerated_ones() -> None:
    path = int((SEQUENCES.index(X) == SEQUENCE_OF_PATH).nonzero()[0])  # its order is left to right
    at = {name: float(score(logits_of("T1"))[path]) for name, score in SCORES.items()}
    assert at["elbo"] == pytest.approx(FACTS["elbo_old_at_X"], abs=1e-10)
    assert at["autoregressive"] == pytest.approx(FACTS["left_to_right_log_likelihood_old_at_X"], abs=1e-10)
    assert at["trajectory"] == pytest.approx(at["autoregressive"], abs=1e-12)
    assert at["mean-field"] == pytest.approx(-3.694460648649413, abs=1e-10)


@pytest.mark.parametrize(
    ("score", "decoder"),
    [("trajectory", "random-order"), ("trajectory", "left-to-right"), ("autoregressive", "left-to-right")],
)
def test_a_score_that_is_the_log_probability_of_its_decoder_gives_the_true_gradient(score: str, decoder: str) -> None:
    worlds = random_worlds(20, 2.0, 1)
    torch.testing.assert_close(
        score_gradient(worlds, decoder, score), true_gradient(worlds, decoder), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(
    ("name", "decoder"),
    [("cj_grpo", "random-order"), ("cj_grpo", "left-to-right"), ("just_grpo", "left-to-right")],
)
def test_a_method_with_that_score_gives_its_direction_through_its_hook(name: str, decoder: str) -> None:
    worlds = random_worlds(3, 1.0, 5)
    for table, true in enumerate(true_gradient(worlds, decoder)):
        gradient = expected_gradient(built_in(name), worlds.logits[table], worlds.reward[table], decoder, 256, 0)
        assert cosine(gradient, true) == pytest.approx(1, abs=1e-9)


def test_cosines_of_the_scores_lie_where_the_reference_found_them() -> None:
    """Reference means over 30 tables; 100 here, so that three standard errors of theirs decide."""
    reference = {
        ("low-confidence", 0.5): (0.94, 0.61, 0.27, 0.36),
        ("low-confidence", 1.0): (0.90, 0.49, 0.21, 0.33),
        ("low-confidence", 2.0): (0.81, 0.37, 0.14, 0.29),
        ("random-order", 1.0): (1.00, 0.75, 0.46, 0.38),
        ("left-to-right", 1.0): (1.00, 0.44, 0.24, 1.00),
    }
    for (decoder, scale), means in reference.items():
        for row, mean in zip(score_alignments([decoder], random_worlds(100, scale, 0)), means, strict=True):
            assert row.mean == pytest.approx(mean, abs=0.005 + 3.3 * row.deviation / math.sqrt(30)), (decoder, scale)


def test_shares_are_exact_and_so_is_the_mean_reward_of_the_batch() -> None:
    for table in range(5):
        world = random_worlds(table + 1, 1.5, 2)
        reward = world.reward[table, SEQUENCE_OF_PATH]
        p = law(world.logits[table], "low-confidence")
        path, weight = shares(p, reward[:, None], 512)
        torch.testing.assert_close(torch.zeros_like(p).index_add(0, path, weight), p, rtol=0, atol=1e-14)
        assert float(reward[path].mean()) == pytest.approx(float((p * reward).sum()), abs=1 / len(path))


def test_a_reward_too_rare_for_the_longest_batch_keeps_its_share_on_its_likeliest_paths() -> None:
    p = torch.tensor([0.9999, 5e-5, 3e-5, 2e-5], dtype=torch.float64)
    path, weight = shares(p, torch.tensor([[0.0], [1.0], [1.0], [1.0]]), 100)
    assert path.unique().tolist() == [0, 1]
    assert float(weight[path == 1].sum()) == pytest.approx(1e-4)


def test_noise_of_the_batches_does_not_lower_the_cosine() -> None:
    generator = generator_for(0, "noise")
    true = torch.randn(64, 3, 3, generator=generator, dtype=torch.float64)
    aside = torch.randn(64, 3, 3, generator=generator, dtype=torch.float64)
    expectation = true + aside
    found, plain = [], []
    for _ in range(200):
        batches = expectation + torch.randn(2, 64, 3, 3, generator=generator, dtype=torch.float64)
        found.append(denoised_cosine(batches, true))
        plain.append(cosine(batches.mean(0), true))
    exact = cosine(expectation, true)
    assert sum(found) / 200 == pytest.approx(exact, abs=0.005)
    assert sum(plain) / 200 < exact - 0.05


def test_batches_that_do_not_agree_are_not_blown_up() -> None:
    one = torch.randn(64, 3, 3, generator=generator_for(0, "alone"), dtype=torch.float64)
    batches = torch.stack([one, -0.9 * one])
    assert abs(denoised_cosine(batches, one)) <= 1 + 1e-12


@pytest.mark.parametrize("name", algorithm_names())
def test_every_built_in_has_a_row_or_a_reason(name: str) -> None:
    algorithm = built_in(name)
    if reason := unsuitable(algorithm):
        assert reason.startswith(("learns from", "needs"))
        return
    worlds = random_worlds(1, 1.0, 0)
    found = [row for _, row in alignments([(name, algorithm)], ["random-order"], worlds, 96, 0) if row]
    assert [row.method for row in found] == [name]
    assert found[0].mean > 0.2, "no built-in method pushes against, or across, the reward under random order"


def test_a_row_does_not_depend_on_which_other_methods_and_tables_run() -> None:
    one, two = ("espo", built_in("espo")), ("d1", built_in("d1"))
    alone = [row for _, row in alignments([one], ["random-order"], random_worlds(1, 1.0, 0), 64, 0) if row]
    beside = [row for _, row in alignments([two, one], ["random-order"], random_worlds(2, 1.0, 0), 64, 0) if row]
    assert alone[0].cosines[0] == beside[1].cosines[0]


@dataclass(frozen=True, kw_only=True)
class Deaf(GRPO):
    """Pays nobody."""

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        credit = super().credit(rollout, generator)
        return Credit(credit.row, torch.zeros_like(credit.advantage), credit.length, credit.weight, credit.part)


@dataclass(frozen=True, kw_only=True)
class Contrary(GRPO):
    """Pays failure."""

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        credit = super().credit(rollout, generator)
        return Credit(credit.row, -credit.advantage, credit.length, credit.weight, credit.part)


@dataclass(frozen=True, kw_only=True)
class Curious(GRPO):
    """Wants what the toy does not have."""

    record: ClassVar[frozenset[str]] = frozenset({"step_map", "attention"})


def only(algorithm: Algorithm, worlds: Worlds) -> Alignment:
    return next(row for _, row in alignments([("it", algorithm)], ["random-order"], worlds, 64, 0) if row)


def test_a_method_without_gradient_has_no_cosine_and_one_that_pays_failure_a_negative_one() -> None:
    worlds = random_worlds(2, 1.0, 0)
    assert math.isnan(only(Deaf(), worlds).mean)
    assert only(Contrary(), worlds).mean == pytest.approx(-only(GRPO(), worlds).mean, abs=1e-12)


def test_what_the_toy_cannot_record_is_named() -> None:
    assert unsuitable(Curious()) == "needs attention of every rollout, which the toy does not record"


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["diagnose", *map(str, words)])
    return done.exit_code, " ".join(done.output.split())


def test_the_command_takes_an_own_file_and_writes_table_numbers_and_picture(tmp_path: Path) -> None:
    small = ("--tables", 2, "--rows", 64, "--decoder", "left-to-right", "--decoder", "random-order")
    targets = ("--out", tmp_path / "found.json", "--plot", tmp_path / "found.svg")
    status, words = run(ENTRY, "just_grpo", "dpo", *small, *targets)
    assert status == 0, words
    assert "dpo learns from preferences" in words
    assert "just_grpo decodes left to right when it trains" in words
    found = json.loads((tmp_path / "found.json").read_text())
    assert {row["method"] for row in found["rows"]} == {"algorithm", "just_grpo", *SCORES}
    just = next(row for row in found["rows"] if row["method"] == "just_grpo" and row["decoder"] == "left-to-right")
    assert just["cosines"] == pytest.approx([1, 1], abs=1e-9)
    picture = ElementTree.parse(tmp_path / "found.svg")
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"just_grpo", "algorithm", "left-to-right decoding", "random-order decoding"} <= set(texts)


def test_the_table_of_numbers_has_a_line_per_method_and_decoder(tmp_path: Path) -> None:
    assert run("d1", "--tables", 1, "--rows", 64, "--out", tmp_path / "found.csv")[0] == 0
    rows = list(csv.DictReader((tmp_path / "found.csv").read_text().splitlines()))
    assert [row["decoder"] for row in rows if row["method"] == "d1"] == list(DECODERS)
    mean_field = [float(row["mean"]) for row in rows if row["method"] == "mean-field"]
    assert [float(row["mean"]) for row in rows if row["method"] == "d1"] == pytest.approx(mean_field, abs=0.02)


DEAF = """from dataclasses import dataclass
from dare.algorithm import GRPO

@dataclass(frozen=True, kw_only=True)
class Deaf(GRPO):
    def credit(self, rollout, generator):
        credit = super().credit(rollout, generator)
        return type(credit)(credit.row, 0 * credit.advantage, credit.length, credit.weight, credit.part)
"""


def test_a_file_whose_method_has_no_gradient_is_shown_as_such(tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text(DEAF)
    words = (tmp_path / "deaf.py", "--tables", 2, "--rows", 64, "--decoder", "left-to-right")
    status, output = run(*words, "--out", tmp_path / "found.json", "--plot", tmp_path / "found.svg")
    assert status == 0, output
    assert "no gradient" in output
    assert "no gradient" in (tmp_path / "found.svg").read_text()
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [row["cosines"] for row in rows if row["method"] == "deaf"] == [[None, None]]
    assert run(*words, "--out", tmp_path / "found.csv")[0] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["d2"], "unknown algorithm 'd2'"),
        (["absent.py"], "there is no file absent.py"),
        (["dpo"], "dpo learns from preferences"),
        (["d1", "--decoder", "greedy"], "unknown decoder 'greedy'; known: low-confidence, random-order"),
        (["d1", "--tables", "0"], "--tables is 0; it must be at least 1"),
        (["d1", "--scale", "0"], "--scale is 0; it must be above 0"),
        (["d1", "--out", "found.txt"], "--out is found.txt; the name must end in .json or .csv"),
        (["d1", "--plot", "found.png"], "--plot is found.png; the name must end in .svg"),
        (["d1", "--plot", "absent/found.svg"], "there is no folder absent"),
    ],
)
def test_a_request_that_makes_no_sense_gets_one_sentence(words: list[str], sentence: str) -> None:
    status, output = run(*words)
    assert status == 2
    assert sentence in output


def test_the_title_of_the_picture_states_the_finding_and_names_are_only_text() -> None:
    rows = [Alignment("<b>", "low-confidence", (0.9, 0.94), 0.0), Alignment("weak", "low-confidence", (-0.1,), 0.0)]
    title = finding(rows).replace("\N{NO-BREAK SPACE}", " ")
    assert title == "Under low-confidence decoding <b> follows the reward best (cosine 0.92), weak least (−0.10)"
    assert "<b>" not in figure(rows, ["two tables"])
    nothing = [Alignment("deaf", "low-confidence", (math.nan,), math.nan)]
    assert "no gradient" in figure(nothing, ["one table"])
    ElementTree.fromstring(figure(nothing, ["one table"]))
