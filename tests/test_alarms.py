"""Alarms on synthetic logs: a diverged run is stopped, a healthy one is not."""

from __future__ import annotations

import math

from dare.alarms import Watch


def look(watch: Watch, rewards: list[float], **others: float) -> list[tuple[int, str, bool]]:
    return [
        (step, alarm.name, alarm.fatal)
        for step, reward in enumerate(rewards)
        for alarm in watch.look(step, {"reward": reward, **others})
    ]


def test_a_rising_reward_raises_nothing() -> None:
    assert look(Watch(), [0.4 + 0.01 * step for step in range(60)]) == []


def test_a_number_that_is_not_finite_is_fatal_and_named() -> None:
    (alarm,) = Watch().look(3, {"loss": math.nan, "reward": 0.5})
    assert alarm.fatal
    assert alarm.sentence == "loss is nan at step 3"


def test_a_reward_that_collapses_and_stays_down_is_fatal() -> None:
    alarms = look(Watch(), [0.6] * 15 + [0.0] * 40)
    assert ("collapse", True) in {(name, fatal) for _, name, fatal in alarms}
    first = next(step for step, name, _ in alarms if name == "collapse")
    assert 15 + 20 <= first <= 15 + 30


def test_a_short_dip_is_no_collapse() -> None:
    assert look(Watch(), [0.6] * 15 + [0.0] * 5 + [0.6] * 40) == []


def test_a_reward_that_was_always_zero_is_no_collapse() -> None:
    assert look(Watch(), [0.0] * 80) == []


def test_repetition_length_and_kl_are_told_once_and_end_nothing() -> None:
    alarms = look(Watch(), [0.5] * 10, repetition=0.99, completion_length=1.0, kl=50.0)
    assert alarms == [(0, "repetition", False), (0, "length", False), (0, "kl", False)]
