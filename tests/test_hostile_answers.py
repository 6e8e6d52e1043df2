"""Whatever an answer is, every judge of the folder has a verdict on it, in time that grows as the text does."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from hostile_texts import FIXED, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from dare.scoring import SECONDS
from dare.tasks import NotScoredError, Task, load_task, task_names
from dare.time_limit import stopwatch
from studies.fuzz import LONG, broken_rule, hostile_text, repeated

TASKS = [load_task(name) for name in task_names()]
JUDGED = list({id(task.judge): task for task in reversed(TASKS) if task.kind != "code"}.values())
"""One task for every judge: several share one."""
PROGRAMS = [task for task in TASKS if task.kind == "code"]
SHORT, GROWTH = 4_000, 4
MEASURABLE = 0.003
"""CPU seconds: below that a clock says little, and the text is made longer."""
LONGEST = 2_000_000
TOO_MUCH = 10.0
"""Times as long for a text four times as long: between linear, 4, and quadratic, 16."""


def named(task: Task) -> str:
    return task.name


@pytest.mark.parametrize("task", JUDGED, ids=named)
@settings(max_examples=30)
@given(data=st.data())
def test_any_answer_gets_one_verdict_that_keeps_the_rules(task: Task, data: st.DataObject) -> None:
    item, right = task.example
    text = data.draw(texts(right))
    chosen = {name: data.draw(st.sampled_from(values)) for name, values in task.policies.items()}
    judge = task.judging(chosen)
    with stopwatch() as bound:
        bound(SECONDS)
        verdict = judge(item, text)
        assert broken_rule(text, verdict) is None
        assert judge(item, text) == verdict


@pytest.mark.parametrize("task", JUDGED, ids=named)
def test_an_answer_that_is_known_to_hurt_is_wrong_and_nothing_more(task: Task) -> None:
    item, _ = task.example
    with stopwatch() as bound:
        for name, text in FIXED.items():
            bound(SECONDS)
            verdict = task.judge(item, text)
            assert broken_rule(text, verdict) is None, name
            assert not verdict.solved, name


@pytest.mark.full
@pytest.mark.parametrize("task", JUDGED, ids=named)
def test_ten_million_characters_are_judged(task: Task) -> None:
    item, right = task.example
    with stopwatch() as bound:
        for text in ("word " * 2_000_000, "<answer>" + "1" * 10_000_000, right + "\n" * 10_000_000):
            bound(4 * SECONDS)
            assert broken_rule(text, task.judge(item, text)) is None


@pytest.mark.full
@pytest.mark.parametrize("task", JUDGED, ids=named)
def test_the_time_of_a_verdict_grows_as_its_text_does(task: Task) -> None:
    item, _ = task.example
    for name in LONG:
        grown = growth(lambda length, name=name: task.judge(item, repeated(name, length)))  # type: ignore[misc]
        assert grown < TOO_MUCH, f"{name}: {grown:.1f} times as long for a text {GROWTH} times as long"


def growth(work: Callable[[int], object]) -> float:
    """How many times as long the work takes for `GROWTH` times as much, from where it can be measured on."""
    length = SHORT
    while seconds(work, length) < MEASURABLE:
        length *= 2
        if length > LONGEST:
            return 1.0
    grown = [seconds(work, GROWTH * length) / seconds(work, length)]
    if grown[0] >= TOO_MUCH:  # something came between
        grown += [seconds(work, GROWTH * length) / seconds(work, length) for _ in range(2)]
    return min(grown)


def seconds(work: Callable[[int], object], length: int) -> float:
    start = time.process_time()
    work(length)
    return time.process_time() - start


def test_quadratic_work_is_told_from_linear_work() -> None:
    assert growth(lambda length: sum(range(length * length // 1000))) > TOO_MUCH
    assert growth(lambda length: sum(range(10 * length))) < TOO_MUCH


@pytest.mark.full
@pytest.mark.parametrize("task", PROGRAMS, ids=named)
def test_any_program_gets_a_verdict(task: Task) -> None:
    item, right = task.example
    generator = random.Random(0)
    answers = [*FIXED.values(), *(hostile_text(generator, right) for _ in range(8)), right]
    try:
        verdicts = task.verdicts([(item, text) for text in answers], {})
    except NotScoredError as reason:
        pytest.skip(str(reason))
    for text, verdict in zip(answers, verdicts, strict=True):
        assert broken_rule(text, verdict) is None, text[:100]
    assert [verdict.solved for verdict in verdicts[: len(FIXED)]] == [False] * len(FIXED)
    assert verdicts[-1].solved
