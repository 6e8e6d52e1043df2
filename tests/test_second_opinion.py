"""lm-evaluation-harness's scorers on stored answers: what is asked of them, what is compared, what happens without."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import dare.second_opinion
from dare.commands.second_opinion import second_opinion
from dare.second_opinion import KINDS, METRICS, Answer, SecondOpinionError, agreement, ask
from dare.spec import ItemOutcome, Prediction
from dare.tasks import task_names

needs_harness = pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-evaluation-harness is not installed")
GSM8K = [
    ("so 9 * 2 = 18\n#### 18", "18", True, True),
    ("so 9 * 2 = 18", "18", False, True),
    ("<answer>\n\\boxed{18}\n</answer>", "18", False, True),
    ("#### 5 and then #### 18", "18", False, True),  # the first marker, and the last number
    ("it is 18 (see step 3)", "18", False, False),
    ("#### $1,234", "1234", False, True),
    ("#### 1,234", "1234", True, True),
    ("", "18", False, False),
    ("#### 19", "18", False, False),
]
"""Output, gold, and what strict-match and flexible-extract say, by hand from their two expressions."""
MATH = [
    (r"thus \boxed{0.5}", r"\frac{1}{2}", True, False, False),
    (r"Final Answer: The final answer is $\frac12$. I hope it is correct.", r"\frac{1}{2}", True, True, True),
    (r"$\frac12$ $\boxed{3}$", r"\frac{1}{2}", False, False, False),
    (r"it is $\frac12 or so $", r"\frac{1}{2}", None, False, False),
    (r"it is $\frac12$", r"\frac{1}{2}", True, False, True),
    ("", r"\frac{1}{2}", False, False, False),
]
"""The same of the three scorers of MATH; None where what it says is not obvious."""


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.booleans()), st.dictionaries(st.sampled_from("abcdef"), st.booleans())
)
def test_an_agreement_counts_every_item_that_both_know_once(ours: dict[str, bool], theirs: dict[str, bool]) -> None:
    found = agreement("o", ours, "t", theirs)
    shared = ours.keys() & theirs.keys()
    assert found.n == len(shared)
    assert found.equal == sum(ours[item] == theirs[item] for item in shared)
    assert set(found.only_ours) == {item for item in shared if ours[item] and not theirs[item]}
    assert set(found.only_theirs) == {item for item in shared if theirs[item] and not ours[item]}


def test_a_task_that_the_harness_is_not_asked_about_is_refused() -> None:
    with pytest.raises(SecondOpinionError, match="there is no second opinion on task 'sudoku'; known: gsm8k, math"):
        ask("sudoku", [])


def test_without_the_harness_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dare.second_opinion, "PACKAGE", "no_such_harness")
    with pytest.raises(SecondOpinionError, match=r"not installed here: pip install 'dare\[second-opinion\]'"):
        ask("gsm8k", [])


def test_every_kind_of_task_has_metrics() -> None:
    assert set(KINDS.values()) == set(METRICS)
    assert "gsm8k" in KINDS.keys() & set(task_names())


def test_the_child_can_open_no_connection() -> None:
    code = (
        "import sys, socket, urllib.request\n"
        "from dare.second_opinion.__main__ import refuse_network\n"
        "sys.addaudithook(refuse_network)\n"
        "for address in ('http://127.0.0.1:9', 'http://example.org'):\n"
        "    try:\n"
        "        urllib.request.urlopen(address, timeout=1)\n"
        "    except OSError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.count("needs no network") == 2


@needs_harness
def test_the_two_scorers_of_gsm8k_say_what_their_expressions_say() -> None:
    opinion = ask("gsm8k", [Answer(str(place), text, gold) for place, (text, gold, *_) in enumerate(GSM8K)])
    strict, flexible = METRICS["gsm8k"]
    said = [verdict and (verdict[strict], verdict[flexible]) for verdict in opinion.verdicts]
    assert said == [(first, second) for *_, first, second in GSM8K]
    assert opinion.versions == {"lm_eval": "0.4.13"}


@needs_harness
@pytest.mark.full
def test_the_three_scorers_of_math_say_what_their_code_says() -> None:
    opinion = ask("math", [Answer(str(place), text, gold) for place, (text, gold, *_) in enumerate(MATH)])
    for verdict, (text, _, *expected) in zip(opinion.verdicts, MATH, strict=True):
        assert verdict is not None
        for metric, right in zip(METRICS["math"], expected, strict=True):
            assert right is None or verdict[metric] == right, (text, metric)
    assert set(opinion.versions) == {"lm_eval", "math-verify", "sympy", "antlr4-python3-runtime"}


@needs_harness
@pytest.mark.full
def test_an_answer_on_which_the_harness_takes_too_long_has_no_verdict_and_the_rest_goes_on() -> None:
    """Their limit is five seconds by an alarm, which no long multiplication hears; ours is two here."""
    slow = Answer("slow", "Final Answer: The final answer is $9^{9^{9}}-1$. I hope it is correct.", "4")
    opinion = ask("math", [Answer("one", r"\boxed{4}", "4"), slow, Answer("two", r"\boxed{4}", "4")], row_seconds=2.0)
    first, second, third = opinion.verdicts
    assert first is not None
    assert first == third
    assert second is None


def write_evaluation(directory: Path, scorers: tuple[str, ...]) -> None:
    outputs = {"test-0000": "<answer>18</answer>", "test-0001": "3 bolts, see step 7", "test-0002": "70000"}
    predictions = [
        Prediction(item=item, sample=sample, prompt_sha256="0", output=text, tokens=3, nfe=3, truncated=False)
        for item, text in outputs.items()
        for sample in (0, 1)
    ]
    outcomes = [
        ItemOutcome(item=item, sample=0, score=score, reward=score, status="ok", answer="x", scorer=scorer)
        for scorer in scorers
        for item, score in zip(outputs, (1.0, 1.0, 0.0), strict=True)
    ]
    for name, lines in (("predictions", predictions), ("items", outcomes)):
        (directory / name).mkdir(parents=True, exist_ok=True)
        text = "".join(line.model_dump_json() + "\n" for line in lines)  # type: ignore[attr-defined]
        (directory / name / "gsm8k.jsonl").write_text(text)


def command(*words: str) -> tuple[int, str, str]:
    app = typer.Typer()
    app.command()(second_opinion)
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout, done.stderr


@needs_harness
@pytest.mark.shared
def test_the_command_compares_with_everybody_who_has_scored_the_greedy_answers(tmp_path: Path, shared: Path) -> None:
    write_evaluation(tmp_path, ("dare-1", "opencompass-0.5.4"))
    code, out, _ = command(str(tmp_path), "--task", "gsm8k", "--data", str(shared / "data"), "--json")
    found = json.loads(out)
    assert code == 0
    assert [(one["ours"], one["theirs"].split()[1]) for one in found["agreement"]] == [
        (ours, theirs) for ours in ("dare-1", "opencompass-0.5.4") for theirs in ("strict-match", "flexible-extract")
    ]
    flexible = found["agreement"][1]
    assert (flexible["n"], flexible["equal"]) == (3, 1)
    assert (flexible["only_ours"], flexible["only_theirs"]) == (["test-0001"], ["test-0002"])
    code, _, shown = command(
        str(tmp_path / "predictions" / "gsm8k.jsonl"), "--task", "gsm8k", "--data", str(shared / "data")
    )
    assert code == 0
    assert "+test-0001" in shown
    assert "-test-0002" in shown
    assert "lm_eval 0.4.13" in shown


@pytest.mark.shared
def test_what_cannot_be_compared_is_refused_in_one_sentence(tmp_path: Path, shared: Path) -> None:
    data = str(shared / "data")
    code, _, err = command(str(tmp_path), "--task", "gsm8k", "--data", data)
    assert (code, "has no stored answers of gsm8k" in err) == (2, True)
    code, _, err = command(str(tmp_path), "--task", "sudoku", "--data", data)
    assert (code, "there is no second opinion on task 'sudoku'" in err) == (2, True)
    write_evaluation(tmp_path, ())
    path = tmp_path / "predictions" / "gsm8k.jsonl"
    path.write_text(path.read_text().replace("test-0001", "test-9999"))
    code, _, err = command(str(tmp_path), "--task", "gsm8k", "--data", data)
    assert (code, "line 3 answers 'test-9999', which is no item of gsm8k" in err) == (2, True)
    path.write_text("{}\n")
    code, _, err = command(str(tmp_path), "--task", "gsm8k", "--data", data)
    assert (code, "line 1 is no stored answer" in err) == (2, True)
