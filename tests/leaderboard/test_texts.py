from __future__ import annotations

import ast
import inspect
import re
from dataclasses import replace
from datetime import UTC
from html import unescape
from importlib import import_module

import pytest
from board_samples import ENDING, EVENT, SAMPLE, run_summary, run_view
from hypothesis import given
from hypothesis import strategies as st

from dare_platform.entry_settings import SettingView
from dare_platform.tracks import load_track
from dare_platform.verdict import escaped, unescaped
from dare_platform.views import MovedAnswer, NotScored, ScorerDifference, ScoreView, Word
from leaderboard import forms, links, lists, rollouts, rulebook, texts
from leaderboard.links import BoardChoices, BoardView
from leaderboard.pages import run

CHOICES = BoardChoices(("llada-tiny", "sdar-tiny"), ("tiny", "matched"), ("gain", "sudoku", "cost", "entry"))


def test_a_value_that_a_board_does_not_have_is_named_with_what_is_shown_instead() -> None:
    assert texts.bad_parameter("sort", "bogus", "board", "gain") == (
        "The link asks for `sort=bogus`, which this board does not have. Showing `gain`."
    )


def test_unknown_and_private_ids_read_the_same() -> None:
    assert texts.unknown_id("entry", "e_93ab") == (
        "**There is no entry `e_93ab`.** It may be private or the link may be cut."
    )


@given(st.text(max_size=200))
def test_a_value_from_a_link_cannot_leave_its_backquotes(value: str) -> None:
    sentence = texts.bad_parameter("sort", value, "board", "gain")
    assert sentence.count("`") == 4
    assert "\n" not in sentence
    assert len(sentence) < 160


def test_what_emptied_a_result_is_named() -> None:
    assert texts.no_match("spg") == "No entry matches “spg”."
    assert texts.hidden_by(7, 2) == "7 entries are hidden by the search, 2 entries are not ranked and hidden."
    assert texts.hidden_by(1, 0) == "1 entry is hidden by the search."


def test_counts_agree_with_their_verbs() -> None:
    assert texts.incomplete(2, 9) == "2 of 9 entries are incomplete and not ranked."
    assert texts.incomplete(1, 9) == "1 of 9 entries is incomplete and not ranked."
    assert texts.hide(1) == "Hide it"
    assert texts.hide(2) == "Hide them"
    assert texts.newer_results(1) == "1 newer result."
    assert texts.newer_results(2) == "2 newer results."
    assert texts.queue_button(6) == "Queue 6 runs"
    assert texts.blocked(1) == "1 evaluation waits for training to finish and is not in the queue yet."
    assert texts.blocked(3) == "3 evaluations wait for training to finish and are not in the queue yet."


def test_a_database_that_is_away_names_its_last_answer() -> None:
    assert texts.database_away("14:02").replace("\u202f", " ") == (
        "**The database does not answer.** Running jobs continue and lose nothing. This page tries again every 10 s; "
        "last answer 14:02."
    )


def test_a_withdrawal_has_a_date_and_a_reason() -> None:
    assert texts.withdrawn("3 Nov 2026", "wrong reward weights") == (
        "**Withdrawn by its owner on 3 Nov 2026:** “wrong reward weights”. Results stay readable; they are not ranked."
    )
    assert texts.withdrawn("3 Nov 2026", None).startswith("**Withdrawn by its owner on 3 Nov 2026.** Results")


def test_the_voice_has_no_exclamation_no_apology_and_no_medals() -> None:
    trees = [ast.parse(inspect.getsource(module)) for module in (texts, rulebook, forms, lists)]
    said = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    words = " ".join(text.lower() for text in said if isinstance(text, str) and "\\" not in text)
    for unwanted in ("please", "sorry", "oops", "state of the art", "trophy", "congratulations", "statistically", "!"):
        assert unwanted not in words


@given(st.text(max_size=80))
def test_text_of_a_person_stays_one_line_in_markdown(text: str) -> None:
    inert = escaped(text)
    assert "\n" not in inert
    assert "](" not in inert.replace("\\]\\(", "")
    assert unescaped(inert) == " ".join(text.split()).replace("\u2060", "")


# --- links ----------------------------------------------------------------------------------------------------------

views = st.builds(
    BoardView,
    backbone=st.sampled_from(CHOICES.backbones),
    track=st.sampled_from(CHOICES.tracks),
    sort=st.sampled_from(CHOICES.sorts),
    direction=st.sampled_from(links.DIRECTIONS),
    search=st.text(max_size=30),
    show=st.sampled_from([(), ("unranked",)]),
)


@given(views)
def test_a_view_survives_its_url(view: BoardView) -> None:
    from urllib.parse import parse_qs

    query = parse_qs(links.board_query(view, CHOICES)[1:], keep_blank_values=True)
    again, notices = links.read_board_view(query, CHOICES)
    assert again == view
    assert notices == ()


def test_the_plain_page_has_an_empty_query() -> None:
    assert links.board_query(BoardView("llada-tiny", "tiny"), CHOICES) == "?"


def test_unknown_values_are_reported_and_unknown_parameters_ignored() -> None:
    view, notices = links.read_board_view({"sort": ["bogus"], "dir": ["up"], "utm": ["x"]}, CHOICES)
    assert view == BoardView("llada-tiny", "tiny")
    assert len(notices) == 2


@pytest.mark.parametrize("text", ["", "a/b", "x" * 65, "a b", "é", "<b>"])
def test_what_cannot_be_an_id_is_not_asked_of_the_database(text: str) -> None:
    assert not links.is_id(text)
    assert links.is_id("01m8pp1xz67b1pwvzhv06jrx6y")


def test_links_are_relative() -> None:
    assert links.entry_link("e_1", "runs") == "entry?id=e_1&view=runs"
    assert links.run_link("r 1") == "run?id=r+1"
    assert links.rules_link("tiny") == "rules?track=tiny"
    assert links.submit_link("e_1") == "submit?from=e_1"


# --- forms, lists, rollouts, rules ----------------------------------------------------------------------------------


def test_problems_are_a_list_with_code_and_nothing_else_unescaped() -> None:
    html = forms.form_messages(["`a.py` line 2: <script>", "and 4 more"], first_is_new=True)
    assert '<li role="alert"><code>a.py</code> line 2: &lt;script&gt;</li>' in html
    assert html.count("role=") == 1
    assert "<li>and 4 more</li>" in html


def test_an_ending_says_what_who_pays_and_what_to_do() -> None:
    html = forms.ending(ENDING)
    assert "<b>diverged:</b> Training diverged at step 212. The time it used counts." in html
    assert "Look at the curves before the alarm." in html


def test_a_history_names_the_run_and_leads_to_it() -> None:
    html = lists.history((EVENT,), UTC)
    assert '<a href="run?id=r_88c1"><bdi>train · llada-tiny · seed 1</bdi></a>' in html
    assert "worker laptop-1" in html
    assert "run?id=" not in lists.history((EVENT,), UTC, of_one_run=True)


def test_a_page_has_one_timed_fragment_at_most() -> None:
    for page in ("entry", "leaderboard", "queue", "rules", "run", "submit"):
        source = inspect.getsource(import_module(f"leaderboard.pages.{page}"))
        assert source.count("run_every=") <= 1, page


def test_changed_settings_are_marked_in_words() -> None:
    html = forms.settings_table((SettingView("mc_samples", "int", 4, 8, True, "Views."),))
    assert "8 · changed" in html
    assert texts.WITHOUT_SETTINGS in forms.settings_table(())


def test_a_log_is_text_without_terminal_codes() -> None:
    html = lists.log(("\x1b[31mred\x1b[0m <b>", "x" * 3000))
    assert ">red &lt;b&gt;\n" in html
    assert html.count("x") < 2100
    assert " … cut" in html


def test_stages_are_read_in_words() -> None:
    html = lists.stages(run_view().stages)
    assert '<span class="sr"> done</span>' in html
    assert "aria-current=step" in html


def test_a_rollout_shows_masks_and_hides_the_frames_from_screen_readers() -> None:
    html = rollouts.rollout(SAMPLE)
    assert '<span class="sr">1423314242132341</span>' in html
    assert html.count('aria-hidden="true"') == 4
    frames = html.split('aria-hidden="true"')[1:]
    assert [frame.count("token mask") for frame in frames] == [12, 8, 4, 0]


ENDED = replace(
    SAMPLE, tokens=("1", "0", "4", "<|im_end|>", "<|endoftext|>", "<|endoftext|>"), step_map=(1, 2, 0, 2, 3, 0)
)


def test_a_position_that_was_never_decoded_is_a_tile_to_the_last_and_no_step() -> None:
    html = rollouts.rollout(ENDED)
    assert "decoded in 3 steps" in html
    assert "1 position was never decoded" in html
    assert texts.sample(ENDED) == "Reward 0.75, 4 tokens, from step 180."
    frames = html.split('aria-hidden="true"')[1:]
    assert [frame.count("token mask") for frame in frames] == [4, 2, 1]
    assert "step 3 of 3" in frames[-1]


def test_positions_that_were_never_decoded_behind_the_end_are_left_out() -> None:
    frames = rollouts.rollout(ENDED).split('aria-hidden="true"')[1:]
    assert [frame.count('class="token') for frame in frames] == [5, 5, 5]
    assert "never decoded" not in rollouts.rollout(replace(ENDED, step_map=(1, 2, 2, 2, 3, 0)))


def test_special_tokens_are_a_quiet_mark_and_no_text() -> None:
    html = rollouts.rollout(ENDED)
    assert '<span class="sr">10</span>' in html
    last = html.split('aria-hidden="true"')[-1]
    assert last.count('class="token special"') == 2
    assert 'title="&lt;|im_end|&gt;"' in last
    assert ">&lt;|" not in html


@pytest.mark.parametrize(
    "token", ["<|endoftext|>", "<|im_end|>", "<|mdm_mask|>", "</s>", "<s>", "<pad>", "[PAD]", "[MASK]"]
)
def test_tokens_with_a_function_are_told_from_text(token: str) -> None:
    assert rollouts.is_special(token)


@pytest.mark.parametrize("token", ["", "1", "<", "<|", "<b>", "[1]", "|>", "<answer>", "</think>"])
def test_text_in_brackets_stays_text(token: str) -> None:
    assert not rollouts.is_special(token)


def test_a_rollout_of_which_nothing_was_decoded_says_so() -> None:
    html = rollouts.rollout(replace(SAMPLE, step_map=(0,) * 16))
    assert "Nothing was decoded." in html
    assert html.count("token mask") == 16


@given(st.integers(1, 200))
def test_the_last_denoising_step_is_always_drawn(steps: int) -> None:
    shown = rollouts.shown_steps(steps)
    assert shown[-1] == steps
    assert len(shown) <= rollouts.MOST_FRAMES
    assert list(shown) == sorted(set(shown))


def test_the_rules_say_by_whom_tasks_are_asked_and_whose_word_the_board_shows() -> None:
    track = load_track("tiny")
    said = "Tasks are asked in each task's own words. The board shows the word of scorer dare-1."
    assert rulebook.asked_and_scored(track) == said
    assert said in unescape(rulebook.tasks(track))
    other = track.model_copy(update={"protocol": "llada", "further_scorers": ("opencompass-0.5.4",)})
    assert rulebook.asked_and_scored(other) == (
        "Tasks are asked by protocol llada through OpenCompass. The board shows the word of scorer dare-1; the same "
        "stored answers are also scored by opencompass-0.5.4."
    )


def test_the_rules_name_every_setting_that_the_track_fixes() -> None:
    track = load_track("tiny")
    html = rulebook.fixed_settings(track)
    for name in type(track.backbones["llada-tiny"].prompts.settings).model_fields:
        assert name.replace("_", " ") in html
    for reason in track.fixed_because.values():
        shown_elsewhere = reason == track.fixed_because.get("gradient_forwards")
        assert shown_elsewhere or reason.split(",")[0] in html
    assert "0.0003" in html


def test_scores_name_items_and_completions_apart() -> None:
    score = ScoreView("sudoku", "solved", "sampled", 0.25, 0.01, 256, 512, 300, 0, "dare-1", "p")
    html = lists.scores((score,))
    assert "Outputs" not in html
    assert '<td data-name="Items" class="number"><bdi>256</bdi></td>' in html
    assert '<td data-name="Completions" class="number"><bdi>512</bdi></td>' in html


def test_a_task_without_a_score_is_never_a_zero() -> None:
    html = lists.not_scored((NotScored("humaneval", "Its score run: waiting.", "r_1"), NotScored("mbpp", "No.", None)))
    assert html.count("not scored") == 2
    assert '<a href="run?id=r_1"><bdi>score run</bdi></a>' in html
    assert "0" not in re.sub(r"<[^>]*>", "", html)


def test_scorers_that_agree_are_said_to_agree() -> None:
    agree = ScorerDifference("gsm8k", "dare-1", "other-1", 5, 5, 0, 0, 0, ())
    assert (
        texts.disagreement(agree) == "**No disagreement.** `dare-1` and `other-1` judge 5 of 5 answers to gsm8k alike."
    )
    one = MovedAnswer("x", 2, Word(True, "ok", "a" * 200), Word(False, "no_answer", None), "text")
    apart = replace(agree, equal=4, only_a=1, moved=(one,))
    assert texts.moved(apart) == "The answer"
    html = lists.moved(apart)
    assert "sample 2" in html
    assert f'title="{"a" * 200}"' in html
    assert "not solved, no answer" in html


def test_a_waiting_entry_says_so_once() -> None:
    sentence = "**Waiting: position 1 of 3 in family_llada.** 1 worker alive, last seen 0 s ago."
    assert texts.standing("**Waiting.** 0 of 6 runs done.", sentence) == f"{sentence} 0 of 6 runs done."
    assert (
        texts.standing("**Running.** 1 of 6 runs at work, 0 done.", None) == "**Running.** 1 of 6 runs at work, 0 done."
    )


def test_what_stands_still_is_drawn_again_when_it_has_something_new() -> None:
    drawn = run.beside_the_curve(run_view(sample=None))
    assert run.beside_the_curve(run_view(sample=None, progress=0.9, summary=run_summary(step=300))) == drawn
    assert run.beside_the_curve(run_view(sample=None, log_tail=())) == drawn  # it grows by itself
    assert run.beside_the_curve(run_view()) != drawn
    assert run.beside_the_curve(run_view(sample=None, worker=None)) != drawn


def test_a_run_is_named_by_what_it_is() -> None:
    assert lists.run_name(run_summary()) == "BGPO · llada-tiny · seed 1"
    assert lists.run_name(run_summary(kind="evaluate")).endswith("· evaluate")
