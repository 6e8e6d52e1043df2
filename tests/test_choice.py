"""The letter that an answer picks: where it stands, what is typography, and when there is none or more than one."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dare.rewards.choice import LETTERS, Choice, read

OPTIONS = ("an apple", "42", "Vitamin C", "the dog")
FOUR = ("", "", "", "")
TEN = tuple(f"option number {n}" for n in range(10))
AMBIGUOUS = Choice(None, ambiguous=True)


def letter(text: str, options: tuple[str, ...] = OPTIONS) -> str | None:
    return read(text, options).letter


@pytest.mark.shared
def test_every_published_case_of_a_choice_gets_its_verdict(shared: Path) -> None:
    rows = json.loads((shared / "goldens/rewards/answer_extraction.json").read_text())
    cases = [row for row in rows if row["task"] == "choice"]
    for row in cases:
        picked = letter(row["input"], FOUR)
        verdict = "no_answer" if picked is None else "correct" if picked == row["gold"] else "wrong"
        assert verdict == row["verdict"], row["id"]
    assert len(cases) == 12


@pytest.mark.parametrize(
    "text",
    [
        "B", "b", "(B)", "[B]", "B.", "B)", "**B**", "__B__", "`B`", r"\text{(B)}", r"\boxed{B}", r"\boxed{\text{(B)}}",
        r"$\boxed{\mathrm{B}}$.", r"\boxed B", r"\fbox{B}", "Ｂ", "（Ｂ）", "B. 42", "(B) 42", "B: 42", "Answer: b",
        "ANSWER: $B$", "answer is (b).", "The correct answer is option B",
        "So the correct choice is (B), since C is not",
        "Option B is right", "I think it is B", "B is right", "x = 3\n\nB", "<answer>\nB\n</answer>",
        "<answer>A</answer> no: <answer>B</answer>", "A or C? <answer>B</answer>", "The answer is:\n\nB", "42", "42.",
        r"\boxed{42}", "The answer is 42", "the answer is A. Wait, the answer is B", r"The answer is \boxed{B}",
        r"\boxed{A}, no, \boxed{B}", "A needs 5 coins, C needs 7 coins, so the answer is B.",
        "<answer>**(B)**</answer>",
    ],
)  # fmt: skip
def test_one_letter_in_any_usual_form_is_that_letter(text: str) -> None:
    assert read(text, OPTIONS) == Choice("B")


@pytest.mark.parametrize(
    "text",
    [
        "A or B", "It is A, or maybe B.", "The answer is A or B", "the answer is (A) and (B)", r"\boxed{A, B}",
        "A. an apple\nB. 42\nC. Vitamin C\nD. the dog", "A\nB\nC", "The answer is not B. It is C", "Neither A nor B",
    ],
)  # fmt: skip
def test_two_letters_are_ambiguous_and_so_no_answer(text: str) -> None:
    assert read(text, OPTIONS) == AMBIGUOUS


@pytest.mark.parametrize(
    "text",
    [
        "", " \n", "E", "Because of this", "A dog is here", "I think so", "I'm sure", r"\boxed{B", r"so \boxed{Because",
        "<answer></answer>", "the answer is a cat", "43", "not an apple", "\\", r"\boxed{}", "ABCD", "B2",
        "vitamin B12",
    ],
)  # fmt: skip
def test_a_text_without_a_letter_is_no_answer(text: str) -> None:
    assert read(text, TEN[:4] if text != "43" else OPTIONS) == Choice(None)


def test_an_options_content_counts_only_where_no_other_option_has_it() -> None:
    assert letter("The answer is the dog.") == "D"
    assert letter("VITAMIN C") == "C"
    assert letter("same", ("same", "same", "other", "none")) is None
    assert letter("BB Bb", ("BB BB", "BB Bb", "Bb Bb", "Bb bb")) == "B"


def test_a_label_in_front_of_its_own_content_wins_over_letters_inside_it() -> None:
    assert letter("C. Vitamin C", ("Vitamin A", "Vitamin B", "Vitamin C", "both A and B")) == "C"
    assert letter("D. both A and B", ("Vitamin A", "Vitamin B", "Vitamin C", "both A and B")) == "D"
    assert letter("the answer is both A and B.", ("Vitamin A", "Vitamin B", "Vitamin C", "both A and B")) == "D"


def test_letters_go_as_far_as_the_options_do() -> None:
    assert letter("The answer is J", TEN) == "J"
    assert letter("The answer is (I).", TEN) == "I"
    assert letter("I believe that I is it", TEN) == "I"
    assert letter("The answer is J", OPTIONS) is None
    assert letter(r"\boxed{J}", OPTIONS) is None


@pytest.mark.parametrize("name", LETTERS[:10])
def test_every_form_of_every_letter_is_read(name: str) -> None:
    for form in ("{}", "({})", "**{}**", "{}. option", r"\boxed{{{}}}", "Answer: {}", "<answer>{}</answer>"):
        assert letter(form.format(name), TEN) == name


@given(st.text() | st.text("ABCDabcd()[]{}\\.,:;* \nboxedanswer is<>/"))
def test_any_text_picks_one_of_the_letters_or_none(text: str) -> None:
    choice = read(text, OPTIONS)
    assert choice.letter in (None, "A", "B", "C", "D")
    assert not (choice.letter and choice.ambiguous)


@pytest.mark.parametrize(
    "piece",
    ["\\boxed{", "answer is ", "A ", "{", "\\boxed{{a}", "answer is A or ", "A\n", "B. ", "((", "\\boxed{a{b}",
     "<answer>", "a", " ", "\n", "*", "the "],
)  # fmt: skip
def test_the_time_is_linear_in_the_length_whatever_the_text(piece: str) -> None:
    text = piece * (100_000 // len(piece))
    started = time.process_time()
    read(text, OPTIONS)
    assert time.process_time() - started < 1
