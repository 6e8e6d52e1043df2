"""Alarms on synthetic logs: a diverged run is stopped with its cause, a healthy one is not."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path

import pytest
from tiny import train_job, write_job

from dare.diary.alarms import Watch
from dare.diary.events import read_events
from dare.run import run
from dare.spec import STOP_ON, AlarmName, Event, JobSpec


def look(watch: Watch, rewards: list[float], **others: float) -> list[tuple[int, str, bool]]:
    return [
        (step, alarm.name, alarm.fatal)
        for step, reward in enumerate(rewards)
        for alarm in watch.look(step, {"reward": reward, **others})
    ]


def test_a_rising_reward_raises_nothing() -> None:
    assert look(Watch(), [0.4 + 0.01 * step for step in range(60)]) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_fatal_and_named(value: float) -> None:
    (alarm,) = Watch(frozenset()).look(3, {"loss": value, "reward": 0.5})
    assert alarm.fatal
    assert alarm.sentence == f"loss is {value} at step 3"


def test_a_reward_that_collapses_and_stays_down_is_fatal() -> None:
    alarms = look(Watch(), [0.6] * 15 + [0.0] * 40)
    assert ("collapse", True) in {(name, fatal) for _, name, fatal in alarms}
    first = next(step for step, name, _ in alarms if name == "collapse")
    assert 15 + 20 <= first <= 15 + 30


def test_a_short_dip_is_no_collapse() -> None:
    assert look(Watch(), [0.6] * 15 + [0.0] * 5 + [0.6] * 40) == []


def test_a_reward_that_was_always_zero_is_no_collapse() -> None:
    assert look(Watch(), [0.0] * 80) == []


def test_repetition_length_kl_and_entropy_are_told_once_and_end_nothing() -> None:
    alarms = look(Watch(), [0.5] * 40, repetition=0.99, completion_length=1.0, kl=50.0, elbo_per_token=-0.001)
    assert alarms == [(0, name, False) for name in ("repetition", "length", "kl", "entropy")]


CAUSES: dict[AlarmName, tuple[dict[str, float], str]] = {
    "gradient": ({"gradient_norm": 1000.0}, "the gradient norm is 1e+03, 500 times the usual 2"),
    "no_gradient": ({"gradient_norm": 0.0}, "no update has a gradient: all rewards of each group are equal"),
    "repetition": ({"repetition": 0.97}, "97% of all tokens are the same one"),
    "length": ({"completion_length": 1.0}, "completions have one token or none"),
    "kl": ({"kl": 11.0}, "the KL penalty is 11.0 nats a token"),
    "entropy": ({"elbo_per_token": -0.004}, "the samples have 0.004 nats of entropy a token"),
}


@pytest.mark.parametrize("name", CAUSES)
def test_any_alarm_ends_a_run_that_was_told_to_stop_on_it_and_says_cause_and_step(name: AlarmName) -> None:
    metrics, sentence = CAUSES[name]
    watch = healthy(Watch(frozenset({name})))
    alarms = [(step, alarm) for step in range(20, 45) for alarm in watch.look(step, {"reward": 0.5, **metrics})]
    fatal = [(step, alarm.sentence) for step, alarm in alarms if alarm.fatal]
    assert fatal[0] == (39, f"{sentence}, for 20 steps up to step 39")
    assert {alarm.name for _, alarm in alarms} == {name}


@pytest.mark.parametrize("name", CAUSES)
def test_any_alarm_is_only_told_when_the_run_shall_not_stop_on_it(name: AlarmName) -> None:
    metrics, sentence = CAUSES[name]
    watch = healthy(Watch(frozenset()))
    alarms = [alarm for step in range(20, 80) for alarm in watch.look(step, {"reward": 0.5, **metrics})]
    assert [(alarm.name, alarm.fatal) for alarm in alarms] == [(name, False)]
    assert alarms[0].sentence.startswith(f"{sentence} (step ")


def healthy(watch: Watch) -> Watch:
    """After twenty steps without anything to tell."""
    for step in range(20):
        assert watch.look(step, {"reward": 0.5, "gradient_norm": 1.0 + step % 3, "elbo_per_token": -0.5}) == []
    return watch


def test_one_large_gradient_is_told_and_ends_nothing() -> None:
    watch = healthy(Watch())
    norms = [1.0, 500.0, *[2.0] * 60]
    alarms = [alarm for step, norm in enumerate(norms) for alarm in watch.look(20 + step, {"gradient_norm": norm})]
    assert [(alarm.name, alarm.fatal) for alarm in alarms] == [("gradient", False)]


def test_a_gradient_that_grows_slowly_or_begins_large_is_no_alarm() -> None:
    growing = [1.05**step for step in range(200)]
    falling = [1000.0 / (1 + step) for step in range(200)]
    for norms in (growing, falling):
        watch = Watch()
        assert [a for step, norm in enumerate(norms) for a in watch.look(step, {"gradient_norm": norm})] == []


def test_a_collapse_that_shall_not_stop_the_run_is_told() -> None:
    alarms = look(Watch(frozenset()), [0.6] * 15 + [0.0] * 60)
    assert [(name, fatal) for _, name, fatal in alarms] == [("collapse", False)]


# --- in a run -------------------------------------------------------------------------------------------------------

STUCK = """
from dataclasses import dataclass
from dare.algorithm import GRPO

@dataclass(frozen=True, kw_only=True)
class Stuck(GRPO):
    def loss(self, logp, old, ref, credit, views):
        terms = super().loss(logp, old, ref, credit, views)
        terms.metrics["kl"] = 20.0
        return terms
"""


def stuck_job(*stop_on: AlarmName, steps: int) -> JobSpec:
    job = train_job("sdar", steps=steps, prompts_per_step=1, group_size=2, inner_epochs=1)
    assert job.train is not None
    algorithm = job.train.algorithm.model_copy(update={"name": "stuck", "source": "entry"})
    spec = job.train.model_copy(update={"algorithm": algorithm, "stop_on": stop_on})
    return job.model_copy(update={"train": spec})


def test_a_run_that_was_interrupted_still_ends_at_the_twentieth_step_of_its_alarm(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if event.kind == "step" and event.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run(write_job(tmp_path, stuck_job("kl", steps=30), STUCK), stop)
    result = run(tmp_path)
    assert (result.outcome, result.cause) == ("failed", "diverged")
    assert "the KL penalty is 20.0 nats a token, for 20 steps up to step 20" in result.message
    assert [e.step for e in read_events(tmp_path) if e.kind == "alarm"] == [1, 20]


def test_what_a_run_stops_on_by_itself_leaves_old_digests_alone() -> None:
    job = train_job("sdar")
    assert job.train is not None
    assert "stop_on" not in job.train.model_dump()
    assert job.train.stop_on == STOP_ON
    assert stuck_job("kl", steps=3).model_dump()["train"]["stop_on"] == ("kl",)
