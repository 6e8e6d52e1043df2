"""What a board says: a golden verdict per case, ranks, gains, states of cells, order and hash."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from board_cases import REFERENCE, board, entry, track, unfinished

from dare_platform.board import Board, Row
from dare_platform.board_facts import EntryFacts, RunFact
from dare_platform.tracks import load_track
from dare_platform.verdict import escaped_prose, unescaped

HIGH = entry("bgpo", [0.60, 0.62, 0.61])
NEAR = entry("cj_grpo", [0.59, 0.63, 0.60])
LOW = entry("d1", [0.40, 0.42, 0.41])
BAD = entry("worse", [0.10, 0.11, 0.10])


def row(made: Board, name: str) -> Row:
    return next(found for found in made.rows if found.name == name)


# --- the verdict: one golden per case -------------------------------------------------------------------------------


def test_a_separated_leader() -> None:
    assert board(REFERENCE, HIGH, LOW).verdict == (
        "**bgpo leads.** On llada-tiny it gains 41.0 ± 2.5 points over the untouched model, 20.0 more than d1 "
        "(95 % interval 17.7 to 22.3)."
    )


def test_a_leader_that_is_not_separated() -> None:
    assert board(REFERENCE, HIGH, NEAR).verdict == (
        "**bgpo leads, but not provably.** On llada-tiny it gains 41.0 ± 2.5 points over the untouched model; "
        "cj\\_grpo (40.7 ± 5.2) cannot be told apart from it with 3 seeds."
    )


def test_nobody_beats_the_reference() -> None:
    assert board(REFERENCE, entry("a", [0.19, 0.25, 0.21]), entry("b", [0.2, 0.18, 0.21])).verdict == (
        "**No method provably beats the untouched model** on llada-tiny. The highest, a, gains 1.7 ± 7.6 points."
    )


def test_one_ranked_entry() -> None:
    assert board(REFERENCE, HIGH).verdict == (
        "**Only bgpo is complete on llada-tiny.** It gains 41.0 ± 2.5 points over the untouched model. "
        "A ranking needs a second one."
    )
    assert "It loses 9.7 ± 1.4 points against the untouched model." in board(REFERENCE, BAD).verdict


def test_none_ranked() -> None:
    waiting = unfinished("bgpo", RunFact("train", 0, "queued"))
    assert board().verdict == "**Nothing is ranked yet on llada-tiny.** No entry is running."
    assert board(REFERENCE, waiting).verdict == "**Nothing is ranked yet on llada-tiny.** 1 entry is running."


def test_too_few_seeds_are_said() -> None:
    assert board(REFERENCE, entry("a", [0.5])).verdict == (
        "**Nothing is ranked yet on llada-tiny.** No entry is running. "
        "1 entry has fewer than the 3 seeds that a rank needs."
    )


HOSTILE = (
    "**bold** _x_",
    "[a](https://evil.example)",
    "www.evil.example",
    "`code` $x$ :red[y] :smile:",
    "<script>alert(1)</script>",
    "# title | cell",
    "a@evil.example",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text_in_every_verdict(name: str) -> None:
    def called(found: EntryFacts, name: str) -> EntryFacts:
        return replace(found, name=name)

    boards = [
        board(REFERENCE, called(HIGH, name)),
        board(REFERENCE, called(HIGH, name), LOW),
        board(REFERENCE, HIGH, called(LOW, name)),
        board(REFERENCE, called(HIGH, name), called(NEAR, name + " 2")),
        board(REFERENCE, called(entry("a", [0.19, 0.25, 0.21]), name), called(entry("b", [0.2, 0.18, 0.21]), "b")),
    ]
    for made in boards:
        assert name in unescaped(made.verdict)
        bare = re.sub(r"\\.", "", made.verdict)
        assert not set("`_[]<>$|#") & set(bare)
        assert bare.count("**") == 2
        assert not re.search(r"www\.|://|@\w", made.verdict)


def test_code_in_a_sentence_stays_code_and_the_rest_is_text() -> None:
    assert escaped_prose("`gives_gradient` failed: [x](y) *z*") == "`gives_gradient` failed\\: \\[x\\]\\(y\\) \\*z\\*"
    assert escaped_prose("one ` only") == "one \\` only"


def test_harm_is_said() -> None:
    made = board(REFERENCE, HIGH, LOW, BAD)
    assert made.verdict.endswith(" One of three ranked methods makes the model worse.")


def test_a_track_that_cannot_rank_has_its_own_sentence() -> None:
    sentence = load_track("tiny").verdict_override
    assert board(REFERENCE, HIGH, LOW, rules=track(verdict_override=sentence)).verdict == (sentence or "").strip()


@pytest.mark.parametrize("entries", [(), (HIGH,), (HIGH, NEAR), (HIGH, LOW, BAD), (BAD,)])
def test_words_that_a_board_never_says(entries: tuple[object, ...]) -> None:
    said = board(REFERENCE, *entries).verdict.lower()  # type: ignore[arg-type]
    assert not {"best", "wins", "state of the art"} & set(said.replace(",", " ").split())


# --- ranks and gains ------------------------------------------------------------------------------------------------


def test_a_tie_shares_its_range() -> None:
    made = board(REFERENCE, HIGH, NEAR, LOW)
    assert [(r.name, r.rank) for r in made.rows] == [
        ("untouched", None),
        ("bgpo", (1, 2)),
        ("cj_grpo", (1, 2)),
        ("d1", (3, 3)),
    ]


def test_gains_are_taken_seed_by_seed_against_the_reference() -> None:
    """Reference and entry move together by 0.1 per seed: the gain is 0.3 in each, without any spread."""
    reference = entry("untouched", [0.1, 0.2, 0.3])
    found = row(board(reference, entry("a", [0.4, 0.5, 0.6])), "a")
    assert found.gain is not None
    assert found.gain.value == pytest.approx(0.3)
    assert found.gain.half_width == pytest.approx(0, abs=1e-12)
    assert found.cells["sudoku"].significant


def test_the_mean_gain_is_over_ranked_tasks() -> None:
    found = row(board(REFERENCE, entry("a", [0.4, 0.4, 0.4], [0.6, 0.6, 0.6])), "a")
    assert found.gain is not None
    assert found.gain.value == pytest.approx(0.3)
    assert found.reward_gain is not None
    assert found.reward_gain.value == pytest.approx(0.3)


def test_negative_and_zero_gains() -> None:
    made = board(REFERENCE, BAD, entry("same", [0.2, 0.2, 0.2]))
    worse, same = row(made, "worse"), row(made, "same")
    assert worse.gain is not None
    assert worse.gain.value < 0
    assert worse.cells["sudoku"].significant
    assert same.gain is not None
    assert same.gain.value == pytest.approx(0)
    assert not same.cells["sudoku"].significant


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_seeds_than_required_are_shown_and_not_ranked(seeds: int) -> None:
    found = row(board(REFERENCE, entry("a", [0.5] * seeds)), "a")
    cell = found.cells["sudoku"]
    assert (found.gain, found.rank, found.seeds) == (None, None, seeds)
    assert cell.greedy is not None
    assert cell.greedy.seeds == cell.seeds_done == seeds
    assert (cell.greedy.half_width is None) == (seeds == 1)
    assert (cell.state, cell.is_preliminary, cell.significant) == ("preliminary", True, False)
    assert cell.detail == f"{seeds} of 3 seeds; no other is queued."
    assert found.preliminary_gain is not None
    assert (found.preliminary_gain.value, found.preliminary_gain.seeds) == (pytest.approx(0.3), seeds)
    assert found.preliminary_reward_gain is not None


def test_a_preliminary_gain_needs_a_seed_of_the_reference() -> None:
    late = replace(REFERENCE, numbers=tuple(number for number in REFERENCE.numbers if number.seed == 2))
    found = row(board(late, entry("a", [0.5, 0.5])), "a")
    assert (found.gain, found.preliminary_gain) == (None, None)


def test_a_reference_with_too_few_seeds_ranks_nobody() -> None:
    found = row(board(entry("untouched", [0.2]), HIGH), "bgpo")
    assert (found.gain, found.rank, found.cells["sudoku"].state) == (None, None, "measured")
    assert found.preliminary_gain is not None
    assert found.preliminary_gain.seeds == 1
    assert not found.cells["sudoku"].significant


def test_a_complete_row_and_the_reference_have_nothing_preliminary() -> None:
    made = board(REFERENCE, HIGH)
    assert [r.preliminary_gain for r in made.rows] == [None, None]
    assert row(board(entry("untouched", [0.2])), "untouched").preliminary_gain is None


def test_chance_is_not_judged_on_too_few_seeds_but_zero_is_seen() -> None:
    cell = row(board(REFERENCE, entry("a", [0.0])), "a").cells["sudoku"]
    assert (cell.exactly_zero, cell.at_or_below_chance) == (True, False)


def test_one_required_seed_is_ranked_without_an_interval() -> None:
    made = board(entry("untouched", [0.2]), entry("a", [0.9]), entry("b", [0.1]), rules=track(seeds_required=1))
    assert [(r.name, r.rank) for r in made.rows if r.rank] == [("a", (1, 2)), ("b", (1, 2))]
    assert row(made, "a").gain is not None
    assert row(made, "a").gain.half_width is None  # type: ignore[union-attr]
    assert made.verdict.startswith("**No method provably beats the untouched model**")


def test_without_a_reference_nothing_is_ranked() -> None:
    made = board(HIGH, LOW)
    assert all(r.rank is None and r.gain is None for r in made.rows)


def test_baselines_and_controls_are_never_ranked() -> None:
    sft = entry("sft", [0.9, 0.9, 0.9], kind="baseline")
    control = entry("shuffled", [0.3, 0.3, 0.3], kind="control")
    made = board(REFERENCE, LOW, control, sft)
    assert [r.name for r in made.rows] == ["untouched", "sft", "shuffled", "d1"]
    assert [r.rank for r in made.rows] == [None, None, None, (1, 1)]


# --- states of a cell -----------------------------------------------------------------------------------------------


def cell_of(*runs: RunFact, done: tuple[float, ...] = ()) -> tuple[str, str | None]:
    cell = row(board(REFERENCE, unfinished("a", *runs, done=done)), "a").cells["sudoku"]
    return cell.state, cell.detail


def test_a_failure_of_the_entry_says_why() -> None:
    failed = RunFact("train", 1, "failed", "diverged", True, "Diverged at step 212: NaN in the loss.")
    blocked = RunFact("evaluate", 1, "failed", "dependency", False, "The training run has failed.")
    assert cell_of(failed, blocked, done=(0.5,)) == ("failed", "Seed 1: Diverged at step 212: NaN in the loss.")


def test_our_own_failure_says_who_pays() -> None:
    failed = RunFact("train", 0, "failed", "lost_worker", False, "The worker stopped answering.")
    assert cell_of(failed) == ("failed", "Seed 0: The worker stopped answering. Nothing is charged.")


def test_a_retried_run() -> None:
    again = RunFact("train", 0, "queued", "lost_worker", False, "The worker stopped answering.", 2, 3)
    assert cell_of(again) == ("retrying", "The worker stopped answering. We retry it, 2 of 3; nothing is charged.")


def test_a_running_seed_says_how_far_it_is() -> None:
    active = RunFact("train", 2, "working", step=184, of=400)
    assert cell_of(active, done=(0.4, 0.5)) == ("running", "Seed 2 is training, 184 of 400.")
    cell = row(board(REFERENCE, unfinished("a", active, done=(0.4, 0.5))), "a").cells["sudoku"]
    assert cell.greedy is not None
    assert (cell.is_preliminary, cell.greedy.value, cell.significant) == (True, pytest.approx(0.45), False)


def test_waiting_seeds() -> None:
    waiting = [RunFact("train", seed, "queued") for seed in (0, 1)]
    assert cell_of(*waiting) == ("queued", "2 seeds wait for a worker.")
    assert cell_of(RunFact("train", 2, "queued"), done=(0.4, 0.5))[0] == "running"


def test_nothing_run_and_cancelled() -> None:
    assert cell_of() == ("not_run", "Required by the track, not run yet.")
    assert cell_of(RunFact("train", 2, "cancelled"), done=(0.4, 0.5)) == (
        "preliminary",
        "2 of 3 seeds; the others were cancelled.",
    )
    assert cell_of(RunFact("train", 0, "cancelled")) == ("not_run", "Cancelled before it was finished.")


def test_a_task_that_an_entry_was_not_asked_for() -> None:
    asked = replace(HIGH, asked=frozenset({"sudoku"}), numbers=tuple(n for n in HIGH.numbers if n.task == "sudoku"))
    assert row(board(REFERENCE, asked), "bgpo").cells["countdown"].state == "not_asked"


def test_exactly_zero_and_below_chance_are_different_things() -> None:
    zero = row(board(REFERENCE, entry("a", [0.0, 0.0, 0.0])), "a").cells["sudoku"]
    chance = row(board(REFERENCE, entry("a", [0.1, 0.12, 0.11])), "a").cells["sudoku"]
    above = row(board(REFERENCE, entry("a", [0.2, 0.2, 0.2])), "a").cells["sudoku"]
    assert (zero.exactly_zero, zero.at_or_below_chance) == (True, True)
    assert (chance.exactly_zero, chance.at_or_below_chance) == (False, True)
    assert (above.exactly_zero, above.at_or_below_chance) == (False, False)
    assert not row(board(REFERENCE, entry("a", [0.0] * 3), floor=0.0), "a").cells["sudoku"].at_or_below_chance


def test_numbers_of_another_scorer_do_not_count() -> None:
    other = replace(HIGH, numbers=tuple(replace(n, scorer="dare-0") for n in HIGH.numbers))
    assert row(board(REFERENCE, other), "bgpo").gain is None


# --- rows -----------------------------------------------------------------------------------------------------------


def test_one_row_per_name_the_latest_that_counts() -> None:
    old, new = replace(HIGH, id="old"), replace(HIGH, id="new")
    withdrawn = replace(HIGH, id="gone", gate="withdrawn", status="withdrawn")
    rejected = replace(HIGH, id="no", gate="rejected", status="rejected")
    made = board(REFERENCE, old, new, withdrawn, rejected)
    assert [r.entry_id for r in made.rows] == ["id-untouched", "new"]
    assert row(made, "bgpo").tries == 3  # rejected before it ran: no try
    assert (made.entries, made.tries, made.withdrawn) == (1, 3, 1)


def test_two_names_of_one_algorithm_are_two_rows() -> None:
    made = board(REFERENCE, HIGH, replace(LOW, name="bgpo-4", algorithm="bgpo"))
    assert {r.name for r in made.rows} == {"untouched", "bgpo", "bgpo-4"}
    assert row(made, "bgpo").tries == 2


def test_incomplete_rows_stand_last_by_how_much_they_have() -> None:
    nothing = unfinished("a", RunFact("train", 0, "queued"))
    half = replace(
        entry("half", [0.5, 0.5, 0.5]),
        numbers=tuple(n for n in entry("half", [0.5] * 3).numbers if n.task == "sudoku"),
        status="partial",
    )
    made = board(REFERENCE, nothing, half, BAD)
    assert [r.name for r in made.rows] == ["untouched", "worse", "half", "a"]
    assert row(made, "half").rank is None


def test_cost_is_the_mean_over_seeds() -> None:
    cost = row(board(REFERENCE, HIGH), "bgpo").cost
    assert cost is not None
    assert (cost.train_device_seconds, cost.gradient_forwards, cost.optimiser_steps) == (61.0, 64.0, 32.0)
    assert row(board(REFERENCE, HIGH), "untouched").cost is None


def test_a_method_outside_its_paper_is_marked() -> None:
    assert row(board(REFERENCE, LOW, family="sdar"), "d1").extension
    assert not row(board(REFERENCE, LOW, family="llada"), "d1").extension
    assert not row(board(REFERENCE, HIGH, family="sdar"), "bgpo").extension


# --- the hash -------------------------------------------------------------------------------------------------------


def test_the_hash_is_of_what_is_shown() -> None:
    made = board(REFERENCE, HIGH)
    assert made.digest == board(REFERENCE, HIGH).digest
    assert len(made.digest) == 64
    assert made.digest != board(REFERENCE, LOW).digest


def test_an_empty_board_has_its_columns() -> None:
    made = board()
    assert [column.task for column in made.columns] == ["sudoku", "countdown"]
    assert made.rows == ()
