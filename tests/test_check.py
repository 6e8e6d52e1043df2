"""`dare check` finds each mistake by its rule, says what is wrong, and where to look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import pytest
from tiny import tiny
from typer.testing import CliRunner

from dare.__main__ import app
from dare.algorithm import load_algorithm
from dare.check import HINTS, Outcome, contract
from dare.family import Backbone
from dare.spec import AlgorithmSpec

HEAD = """
from dataclasses import dataclass, replace

import torch

from dare.algorithm import GRPO, PairedPreference
from dare.algorithms.bgpo import BGPO
from dare.types import Credit, LossTerms


@dataclass(frozen=True, kw_only=True)
class Mine({base}):
{body}
"""
CREDIT = "def credit(self, rollout, generator):\n    c = super().credit(rollout, generator)\n    "
VIEWS = (
    "def forward_process(self, rollout, credit, mask_id, generators):\n"
    "    v = super().forward_process(rollout, credit, mask_id, generators)\n    "
)
LOSS = (
    "def loss(self, logp, old, ref, credit, views):\n    t = super().loss(logp, old, ref, credit, views)\n    return "
)
MISTAKES = {
    "an advantage that is infinite": (
        CREDIT + "return replace(c, advantage=c.advantage / 0)",
        "credit_is_finite",
        "credit.advantage is not finite",
    ),
    "an advantage that is too short": (
        CREDIT + "return replace(c, advantage=c.advantage[:3])",
        "credit_is_finite",
        "credit.advantage has 3 entries for 16 units",
    ),
    "no unit": (
        CREDIT + "return c.units(torch.zeros(0, dtype=torch.long))",
        "credit_is_finite",
        "credit has no unit",
    ),
    "no return": (
        CREDIT + "pass",
        "credit_is_finite",
        "credit returned NoneType; it must return Credit",
    ),
    "a field that is not there": (
        CREDIT + "return rollout.foo",
        "credit_is_finite",
        "raised AttributeError: 'Rollout' object has no attribute 'foo'",
    ),
    "scores what it shows": (
        VIEWS + "return replace(v, ids=v.target)",
        "hides_what_it_scores",
        "forward_process scores a position that it did not hide (view 0,",
    ),
    "other things than views": (
        VIEWS + "return v.ids",
        "hides_what_it_scores",
        "forward_process returned Tensor; it must return NoisyViews",
    ),
    "a loss of one number": (
        LOSS + "LossTerms(t.num.sum(), t.den.sum())",
        "loss_is_finite",
        "loss returned `num` of shape () for 16 units of credit",
    ),
    "a denominator of zero": (LOSS + "LossTerms(t.num, 0 * t.den)", "loss_is_finite", "before any update"),
    "a loss that is not a number": (
        LOSS + "LossTerms(t.num * float('nan'), t.den)",
        "loss_is_finite",
        "the loss is nan",
    ),
    "no gradient": (
        LOSS + "super().loss(logp.detach(), old, ref, credit, views)",
        "gives_gradient",
        "the loss does not depend on `logp`",
    ),
    "luck that is not ours": (
        CREDIT + "return replace(c, advantage=torch.rand(len(c.row)))",
        "same_seed_same_result",
        "two calls of credit with the same generator differ",
    ),
    "global randomness": (
        CREDIT + "torch.rand(1)\n    return c",
        "leaves_global_randomness_alone",
        "it drew from the global random state",
    ),
    "the first view": (
        LOSS + "LossTerms(t.num * logp.detach()[0].sum(), t.den)",
        "order_of_views_is_nothing",
        "the gradient depends on the order of the views",
    ),
    "the width of the row": (
        LOSS + "LossTerms(t.num / logp.shape[1], t.den)",
        "padding_is_nothing",
        "the gradient depends on padding",
    ),
}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny("sdar")


def outcomes(tmp_path: Path, backbone: Backbone, body: str, base: str = "GRPO") -> Iterator[Outcome]:
    file = tmp_path / "mine.py"
    file.write_text(HEAD.format(base=base, body=indent(body, "    ")))
    return contract(load_algorithm(AlgorithmSpec(name="mine", source="entry"), file), backbone)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_breaks_its_rule_and_the_sentence_says_what_is_wrong(
    mistake: str, tmp_path: Path, backbone: Backbone
) -> None:
    body, rule, sentence = MISTAKES[mistake]
    first = next(outcome for outcome in outcomes(tmp_path, backbone, body) if not outcome.passed)
    assert (first.name, sentence in first.sentence) == (rule, True), first.sentence
    assert first.hint == HINTS[rule]


@pytest.mark.parametrize(
    ("base", "body"),
    [
        (
            "BGPO",
            "mc_samples: int = 2\nblame: float = 0.5\n"
            + CREDIT
            + "return replace(c, advantage=self.blame * c.advantage)",
        ),
        ("PairedPreference", LOSS + "replace(t, num=0.5 * t.num)"),
    ],
    ids=["a subclass of a built-in method", "a method on pairs"],
)
def test_an_entry_may_build_on_what_is_there(base: str, body: str, tmp_path: Path, backbone: Backbone) -> None:
    found = list(outcomes(tmp_path, backbone, body, base))
    assert [outcome for outcome in found if not outcome.passed] == []
    assert {outcome.name for outcome in found} | {"rolls_out"} == set(HINTS)
    assert all(outcome.hint == "" for outcome in found)


def test_a_reason_is_given_once_with_a_hint(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(HEAD.format(base="GRPO", body=indent(MISTAKES["a field that is not there"][0], "    ")))
    done = CliRunner().invoke(app, ["check", str(file), "--backbone", "sdar-tiny"])
    assert done.exit_code == 1
    assert done.output.count("has no attribute 'foo'") == 1 + done.output.count("Traceback")
    assert done.output.count("for the same reason") == 9
    assert HINTS["credit_is_finite"][:40] in done.output
