"""Prices: what was not measured has a reason and no number, devices are never mixed, and a front is a front."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from board_cases import REFERENCE, board, entry
from played import built_in, register, work_off
from sqlalchemy import update
from sqlalchemy.orm import Session

from dare_platform import entries, rankings
from dare_platform.database import Database
from dare_platform.models import Usage
from dare_platform.viewer import LOCAL
from dare_platform.views.cost import CostView, Measure, Spent, cost_view, price, spending

SCORES = {"cheap": [0.30, 0.31, 0.32], "best": [0.60, 0.61, 0.62], "dear": [0.40, 0.41, 0.42], "noisy": [0.3, 0.6, 0.9]}
HOURS = {"cheap": 1.0, "best": 2.0, "dear": 3.0, "noisy": 4.0}
BOARD = board(REFERENCE, *(entry(name, scores) for name, scores in SCORES.items()))


def spent(hours: float, device: str = "H200", seeds: int = 3, tokens: float = 1e6, trains_on: str = "prompts") -> Spent:
    return Spent(device, seeds, 3600 * hours, 3600 * hours, 2e6 * hours, tokens, trains_on)


def of(measure: Measure, **parts: tuple[Spent, ...]) -> CostView:
    return cost_view(BOARD, {f"id-{name}": found for name, found in parts.items()}, measure)


ALL = of("gpu_h", **{name: (spent(hours),) for name, hours in HOURS.items()})
STANDS = {point.name: point for point in ALL.points}


def test_the_cheapest_and_what_gains_more_for_more_form_the_frontier() -> None:
    assert [point.name for point in ALL.frontier] == ["cheap", "best"]


def test_nobody_on_the_frontier_is_beaten_and_everybody_else_is() -> None:
    """Brute force over all pairs."""
    for point in ALL.points:
        beaten = any(
            other.cost <= point.cost and other.gain.value >= point.gain.value and other is not point
            for other in ALL.points
        )
        assert beaten == (point.standing != "frontier")
    assert all(
        a.cost < b.cost and a.gain.value < b.gain.value for a, b in zip(ALL.frontier, ALL.frontier[1:], strict=False)
    )


def test_a_dearer_method_is_dominated_only_when_the_board_tells_them_apart() -> None:
    assert STANDS["dear"].standing == "dominated"
    assert STANDS["noisy"].standing == "within noise"
    assert STANDS["noisy"].beaten_by == ("best",)


def test_of_throughput_more_is_better() -> None:
    view = of("tok_s", cheap=(spent(1.0, tokens=9e6),), best=(spent(1.0, tokens=1e6),), dear=(spent(1.0, tokens=2e6),))
    assert [point.name for point in view.frontier] == ["cheap", "dear", "best"]


def test_points_of_two_devices_are_never_in_one_picture() -> None:
    parts = {"id-cheap": (spent(1.0, "A100"),), "id-best": (spent(2.0, "H200"),)}
    for device, name in (("A100", "cheap"), ("H200", "best"), ("T4", "cheap")):
        view = cost_view(BOARD, parts, "gpu_h", device=device)
        assert view.devices == ("A100", "H200")
        assert [point.name for point in view.points] == [name]
    assert len(cost_view(BOARD, parts, "tokens").points) == 2  # a token is a token on any device


def test_seeds_on_two_devices_have_no_common_time() -> None:
    found = price((spent(1.0, "A100", seeds=1), spent(3.0, "H200", seeds=2)), "gpu_h")
    assert (found.value, found.why_not) == (None, "its seeds ran on A100 and H200, which is never summed")
    assert price((spent(1.0, "A100", seeds=1), spent(4.0, "H200", seeds=2)), "nfe").value == pytest.approx(6e6)


@pytest.mark.parametrize("measure", ["nfe", "tokens", "tok_s"])
def test_a_method_that_samples_and_has_no_count_was_not_measured(measure: Measure) -> None:
    bare = Spent("H200", 3, 10.0, 10.0, 0.0, 0.0, "prompts")
    assert price((bare,), measure).value is None
    assert "nobody counted" in price((bare,), measure).why_not


def test_a_method_that_never_samples_really_decodes_nothing() -> None:
    offline = Spent("H200", 3, 10.0, 10.0, 0.0, 0.0, "demonstrations")
    assert (price((offline,), "tokens").value, price((offline,), "nfe").value) == (0.0, 0.0)
    assert price((offline,), "tok_s").value is None


def test_an_entry_without_a_price_is_named_with_its_reason_and_stands_nowhere() -> None:
    view = of("gpu_h", cheap=(spent(1.0),))
    assert [point.name for point in view.points] == ["cheap"]
    assert {one.why for one in view.unpriced} == {"not measured: no training run has finished"}
    assert {one.name for one in view.unpriced} == {"best", "dear", "noisy"}


def test_one_task_may_be_asked_for_instead_of_the_mean() -> None:
    view = cost_view(BOARD, {"id-best": (spent(2.0),)}, "gpu_h", "sudoku")
    assert view.points[0].gain.value == pytest.approx(0.41)


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with database.write() as opened:
        register(opened)
        yield opened


def test_spending_is_the_mean_over_seeds_of_what_succeeded(session: Session) -> None:
    entries.submit(session, LOCAL, built_in("untouched"), "key-untouched")
    entry_id = entries.submit(session, LOCAL, built_in("bgpo"), "key-bgpo").entry_id
    work_off(session)
    session.execute(update(Usage).values(tokens_decoded=1200, forwards=40.0))
    shown = rankings.board(session, "tiny 1.0", "llada-tiny")
    found = spending(session, shown)
    assert set(found) == {entry_id}
    (part,) = found[entry_id]
    assert (part.device, part.seeds, part.trains_on) == ("a processor", 3, "prompts")
    assert (part.device_seconds, part.forwards, part.tokens) == (8.0, 40.0, 1200.0)


def test_a_private_entry_is_priced_on_no_board(session: Session) -> None:
    entries.submit(session, LOCAL, built_in("bgpo"), "key-bgpo", "private")
    work_off(session)
    assert spending(session, rankings.board(session, "tiny 1.0", "llada-tiny")) == {}
