"""MDPO against a second derivation of its toy answers, and the judging of predictions that it rests on."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from plain_t1 import MASK, Slope, clipped, logp
from test_executor import executor
from torch import Tensor
from toys import ToyBackbone, rollout_of, t1

from dare.algorithm import Algorithm, load_algorithm
from dare.algorithms.mdpo import MDPO, stepwise
from dare.executor import AlgorithmFaultError, check_views
from dare.gradients import backward
from dare.seeds import generator_for
from dare.spec import AlgorithmSpec
from dare.types import Rollout, RolloutSpec, Trace

GOLDENS = Path(__file__).parent / "goldens" / "algorithms"

# Two completions of three steps: what each step predicted, how sure it was, and which position it committed.
TARGETS = {0: [(1, 0, 1), (1, 0, 1), (2, 0, 1)], 1: [(0, 2, 2), (1, 1, 2), (1, 1, 2)]}
CONFIDENCE = {
    0: [(0.3, 0.9, 0.4), (0.5, 0.9, 0.8), (0.7, 0.9, 0.8)],
    1: [(0.2, 0.3, 0.6), (0.4, 0.5, 0.6), (0.4, 0.9, 0.6)],
}
STEP_MAP = {0: (3, 1, 2), 1: (2, 3, 1)}
REWARDS = {0: (0.2, 0.5, 1.0), 1: (0.1, 0.1, 0.0)}
LOSS, NORM = -0.0918451529, 0.4054817335


def toy_rollout(x0: Tensor | None = None) -> Rollout:
    rollout = rollout_of([TARGETS[0][2], TARGETS[1][2]], [REWARDS[0][2], REWARDS[1][2]])
    return replace(
        rollout,
        trace=Trace(
            step_map=torch.tensor([STEP_MAP[0], STEP_MAP[1]]),
            x0=torch.tensor([TARGETS[0], TARGETS[1]]) if x0 is None else x0,
            confidence=torch.tensor([CONFIDENCE[0], CONFIDENCE[1]], dtype=torch.float64),
            x0_reward=torch.tensor([REWARDS[0], REWARDS[1]], dtype=torch.float64),
        ),
    )


def derived(beta: float, clip: float, floor: float = 1e-4) -> tuple[float, Slope]:
    """Loss and gradient from the formula, a sum over completions, steps and masked positions."""
    raw = {n: (r[0] + 1 + (r[1] + r[2]) / 2, r[1] - r[0] + 1 + r[2], r[2]) for n, r in REWARDS.items()}
    loss, slope = 0.0, Slope()
    for t in range(3):
        mean = (raw[0][t] + raw[1][t]) / 2
        deviation = math.sqrt((raw[0][t] - mean) ** 2 + (raw[1][t] - mean) ** 2)  # two members: divided by one
        for n in (0, 1):
            advantage = (raw[n][t] - mean) / (deviation + floor)
            state = [TARGETS[n][2][i] if STEP_MAP[n][i] <= t else MASK for i in range(3)]
            masked = [i for i in range(3) if state[i] == MASK]
            for i in masked:
                v, share = TARGETS[n][t][i], CONFIDENCE[n][t][i] * 3 / len(masked) / len(masked) / 2
                new, old, ref = (logp(which, state, i, v) for which in ("new", "old", "ref"))
                term, by_logp = clipped(math.exp(new - old), advantage, clip, clip)
                loss += share * (term + beta * (new - ref) ** 2 / 2)
                slope.add(share * (by_logp + beta * (new - ref)), state, i, v)
    return loss, slope


def computed(algorithm: Algorithm, micro_batch: int = 100) -> tuple[float, Tensor]:
    rollout = toy_rollout()
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [])
    check_views(views, rollout, credit, MASK)
    policy = t1("new")
    old, ref = (ToyBackbone(t1(w)).logprobs(t1(w), views).detach() for w in ("old", "ref"))
    done = backward(
        lambda part: ToyBackbone(policy).logprobs(policy, part),
        lambda logp, _: algorithm.loss(logp, old, ref, credit, views),
        views,
        old,
        micro_batch,
    )
    assert policy.logits.grad is not None
    return done.loss, policy.logits.grad


@pytest.mark.parametrize("micro_batch", [1, 100])
@pytest.mark.parametrize(("beta", "clip"), [(0.02, 0.2), (0.0, 0.2), (0.5, 0.999)])
def test_loss_and_every_entry_of_the_gradient_are_those_of_the_formula(
    beta: float, clip: float, micro_batch: int
) -> None:
    loss, slope = derived(beta, clip)
    value, gradient = computed(MDPO(kl_coef=beta, clip_low=clip, clip_high=clip), micro_batch)
    assert value == pytest.approx(loss, abs=1e-12)
    assert float(gradient.norm()) == pytest.approx(slope.norm, abs=1e-12)
    for (state, position, token), entry in slope.entries.items():
        assert float(gradient[state, position, token]) == pytest.approx(entry, abs=1e-12)
    assert int((gradient != 0).sum()) <= len(slope.entries)


def test_the_derived_numbers_are_those_that_are_written_down() -> None:
    loss, slope = derived(0.02, 0.2)
    assert (loss, slope.norm) == (pytest.approx(LOSS, abs=1e-9), pytest.approx(NORM, abs=1e-9))


def test_raw_advantages_are_the_enumerated_ones() -> None:
    golden = json.loads((GOLDENS / "advantages.json").read_text())["stepwise_mdpo_raw"]
    raw = stepwise(torch.tensor([golden["rewards_by_step"]], dtype=torch.float64))
    torch.testing.assert_close(raw, torch.tensor([golden["raw"]], dtype=torch.float64))
    assert stepwise(torch.tensor([[0.7]])).tolist() == [[pytest.approx(0.7)]]


def test_identical_trajectories_have_no_advantage() -> None:
    rollout = toy_rollout()
    assert rollout.trace.x0_reward is not None
    same = replace(rollout.trace, x0_reward=rollout.trace.x0_reward[:1].expand(2, 3))
    credit = MDPO().credit(replace(rollout, trace=same), torch.Generator())
    assert not bool(credit.advantage.any())


def test_the_steps_that_are_kept_have_the_largest_advantages() -> None:
    rollout = toy_rollout()
    every = MDPO(std_floor=1.0).credit(rollout, torch.Generator())  # the floor keeps magnitudes apart
    size = {t: float(every.advantage[every.part == t].abs().sum()) for t in (1, 2, 3)}
    two = sorted(sorted(size, key=lambda t: -size[t])[:2])
    kept = MDPO(std_floor=1.0, train_steps=2).credit(rollout, torch.Generator())
    assert sorted(set(kept.part.tolist())) == two
    assert len(kept.part) == 4


def test_a_completion_that_ends_earlier_keeps_its_last_reward_and_is_not_trained_behind_it() -> None:
    rollout = toy_rollout()
    step_map = torch.tensor([[1, 1, 2], [2, 3, 1]])
    reward = torch.tensor([[0.2, 1.0, 1.0], [0.1, 0.1, 0.0]], dtype=torch.float64)
    ended = replace(rollout, trace=replace(rollout.trace, step_map=step_map, x0_reward=reward))
    credit = MDPO().credit(ended, torch.Generator())
    assert list(zip(credit.row.tolist(), credit.part.tolist(), strict=True)) == [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)]
    third = 1 / (math.sqrt(2) + 1e-4 * 2)  # half the distance of 1 over its standard deviation and the floor
    assert credit.advantage.tolist()[4] == pytest.approx(-third, abs=1e-9)


def test_only_a_recorded_prediction_may_be_scored_outside_the_completion() -> None:
    rollout = toy_rollout()
    short = replace(rollout, completion=torch.tensor([[True, True, False]] * 2))
    algorithm = MDPO()
    credit = algorithm.credit(short, torch.Generator())
    views = algorithm.forward_process(short, credit, MASK, [])
    check_views(views, short, credit, MASK)
    wrong = replace(views, target=(views.target + 1) % 3)
    with pytest.raises(AlgorithmFaultError, match="outside the completion"):
        check_views(wrong, short, credit, MASK)
    with pytest.raises(AlgorithmFaultError, match="outside the completion"):
        check_views(views, replace(short, trace=replace(short.trace, x0=None)), credit, MASK)


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_every_prediction_has_the_reward_of_its_text_and_equal_texts_are_judged_once(family: str) -> None:
    run = executor(family, load_algorithm(AlgorithmSpec(name="mdpo")))
    rollout, metrics, _ = run._rollout(0, [0, 1])
    trace, decode = rollout.trace, run.backbone.tokenizer.decode
    assert trace.x0 is not None
    assert trace.x0_reward is not None
    assert trace.step_map is not None
    texts = set()
    for row, steps in enumerate(trace.step_map.amax(1).tolist()):
        for step in range(trace.x0.shape[1]):
            shown = trace.x0[row, step][rollout.window[row]]
            text = decode(shown[shown != run.backbone.mask_id].tolist())
            assert float(trace.x0_reward[row, step]) == pytest.approx(text.count("3") / max(len(text), 1))
            texts |= {(int(rollout.group[row]), text)} if step < steps - 1 else set()
        assert trace.x0_reward[row, steps - 1] == rollout.reward[row]
    assert metrics["verifications_per_completion"] == 1 + len(texts) / len(rollout.ids)


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_a_view_is_the_state_of_its_step_with_all_that_the_step_predicted(family: str) -> None:
    run = executor(family, load_algorithm(AlgorithmSpec(name="mdpo")))
    rollout, _, _ = run._rollout(0, [0, 1])
    credit = run.algorithm.credit(rollout, generator_for(0))
    views = run.algorithm.forward_process(rollout, credit, run.backbone.mask_id, [])
    assert rollout.trace.step_map is not None
    assert rollout.trace.confidence is not None
    for view in range(0, len(views), 5):
        row, step = int(credit.row[view]), int(credit.part[view])
        undecided = rollout.window[row] & ((rollout.trace.step_map[row] >= step) | (rollout.trace.step_map[row] == 0))
        assert torch.equal(views.ids[view] == run.backbone.mask_id, undecided)
        scored = views.score[view]
        if family == "llada":  # all masked positions are predicted at every step
            assert torch.equal(scored, undecided)
        else:
            assert 0 < int(scored.sum()) <= 4
        logp = run.backbone.logprobs(run.backbone.model, views.rows(slice(view, view + 1)))[0].detach()
        recorded = rollout.trace.confidence[row, step - 1]
        torch.testing.assert_close(logp[scored].exp(), recorded[scored], rtol=1e-4, atol=1e-6)


def test_predictions_that_are_judged_must_be_recorded() -> None:
    class Forgetful(MDPO):
        def rollout(self) -> RolloutSpec:
            return RolloutSpec(judge_predictions=True)

    with pytest.raises(AlgorithmFaultError, match="'x0' in record"):
        executor("llada", Forgetful())
