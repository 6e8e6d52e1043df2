r"""Whether two answers in mathematics are one: published cases, proofs against brute force, a scorer that is killed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dare.rewards import algebra, mathverify, notation
from dare.rewards.equivalence import Rules, choices, equal, within
from dare.rewards.mathverify import MathVerify, MathVerifyError

RULES = {
    "percent_sign_ignored": Rules(percent="ignored"),
    "percent_is_a_number": Rules(percent="number"),
    "scientific_notation": Rules(scientific="read"),
    "refused": Rules(scientific="refused"),
}


def never(gold: str, prediction: str) -> mathverify.Answer:
    raise AssertionError(f"math-verify was asked about {gold!r} and {prediction!r}")


@pytest.mark.shared
def test_every_published_pair_gets_its_verdict_in_both_orders_and_under_every_rule(shared: Path) -> None:
    rows = json.loads((shared / "goldens/rewards/math_equivalence.json").read_text())
    judged = 0
    for row in rows:
        wanted = {Rules(): row["verdict"]} if row["verdict"] else {}
        wanted |= {RULES[name]: verdict for name, verdict in row.get("policy", {}).items()}
        orders = [(row["input"], row["gold"]), (row["gold"], row["input"])][: 1 + row["symmetric"]]
        for rules, verdict in wanted.items():
            for prediction, gold in orders:
                start = time.process_time()
                assert equal(prediction, gold, rules, ask=never) == (verdict == "equal"), (row["id"], rules)
                assert time.process_time() - start < 1
                judged += 1
    assert (len(rows), judged) == (49, 37 * 2 + 9 + 3 * 2 * 2)  # both orders, one order, both orders under two rules


@pytest.mark.parametrize("missing", [None, "", " ", "$", "\\boxed{}"])
def test_nothing_equals_a_missing_answer(missing: str | None) -> None:
    assert not equal(missing, missing)
    assert not equal(missing, "5")
    assert not equal("5", missing)


SAME = [
    ("1/2", r"\dfrac12"),
    (r"\frac{3}{24}", r"\frac{1}{8}"),
    ("5", "x=5"),
    ("x = 5", "5"),
    ("2x+3", "y=2x+3"),
    ("2x-y+3=0", "y=2x+3"),
    ("10x-14y+22z+8=0", "5x - 7y + 11z + 4 = 0"),
    ("evelyn", r"\text{Evelyn}"),
    (r"\textbf{Evelyn}.", r"\text{Evelyn}"),
    (r"\text{an ellipse}", r"\text{ellipse}"),
    ("C", r"\text{(C)}"),
    (r"\text{(C) } 12", r"\text{(C)}"),
    (r"864 \text{ square inches}", r"864 \mbox{ inches}^2"),
    ("864", r"864 \mbox{ inches}^2"),
    ("32,348", r"\$32,\!348"),
    (r"5.4 ¢", r"5.4 \text{ cents}"),
    (r"\frac{270}{7}^\circ", r"\frac{270}7\text{ degrees}"),
    ("30°", "30"),
    ("52", "52_8"),
    ("4210_5", "4210_{5}"),
    ("5_{10}", "5"),
    ("(0.6, 8/3]", r"\left(\frac{3}{5},\frac{8}{3}\right]"),
    (r"(9,36)\cup(0,9)", r"(0,9) \cup (9,36)"),
    ("2<x", r"(2,\infty)"),
    (r"7 \geq x \geq -2", r"x \in [-2,7]"),
    (r"-2,1\pm\sqrt{5}", r"\{1\pm\sqrt{5},-2\}"),
    (r"3, 5, \text{ and } 7", "5, 3, 7"),
    (r"x=-2 or x=1", "-2,1"),
    (r"\{3,5,7\}", "3, 5, 7"),
    ("(3,4), (1,2)", "(1,2),(3,4)"),
    ("(x,y)=(1,2)", "(1,2)"),
    ("11 111 111 100", r"11,\! 111,\! 111,\! 100"),
    ("100,200", "200,100"),
    ("9/5", r"1\frac{4}{5}"),
    ("2(3r^2-2r-12)", "6r^2-4r-24"),
    (r"6.72\times10^{-5}", ".0000672"),
    ("288π", "288 \\pi"),
    ("3√13", "3\\sqrt{13}"),
    (r"x²", "x^2"),
    (r"1½", r"\frac32"),
    (r"-\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"\begin{bmatrix} -1 & 0 \\ 0 & -1 \end{bmatrix}"),
    (r"\frac{8}{49} \begin{pmatrix} 2 \\ 6 \end{pmatrix}", r"\begin{pmatrix} 16/49 \\ 48/49 \end{pmatrix}"),
    (r"\mathbf{v} = \begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    (r"(-2,-14,-7)", r"\begin{pmatrix} -2 \\ -14 \\ -7 \end{pmatrix}"),
    (r"\frac{1}{1+\sqrt2}", r"\sqrt{2}-1"),
    (r"\frac{3 \sqrt{27}}{27}", r"\frac{\sqrt{3}}{3}"),
    (r"\sqrt[3]{16}", r"2\sqrt[3]{2}"),
    (r"0.\overline{3}", r"\frac13"),
    (r"\sqrt{-4}", "2i"),
    (r"7! \times 2!", r"10,\!080"),
    (r"\sqrt2 \approx 1.414", r"\sqrt2"),
    (r"\frac12 million", "500000"),
    ("seven", "7"),
    ("zyx", "xyz"),
    ("5,", "5"),
    ("--5", "5"),
    (r"\mathbb{R}", r"x \in \mathbb{R}"),
    (r"2{1\over 4}", r"\frac94"),
    (r"\text{10 cm}", "10"),
    (r"\mathrm{e}^2", "e^2"),
    (r"10\text{m}", r"10\text{ meters}"),
    (r"\{x \mid x > 2\}", r"(2,\infty)"),
    (r"\{x\in\mathbb{R} : -2 \le x \le 7\}", r"x \in [-2,7]"),
]
DIFFERENT = [
    ("0.333", r"\frac13"),
    ("0.3333333333333", r"\frac13"),
    ("6366.197723675814", r"\frac{20000}{\pi}"),
    ("5.00000001", "5"),
    ("y=5", "x=5"),
    ("5x-7y+11z+5=0", "5x - 7y + 11z + 4 = 0"),
    ("Eve", r"\text{Evelyn}"),
    ("Cat", r"\text{(C)}"),
    (r"864\text{ cm}^2", r"864 \mbox{ inches}^2"),
    (r"\$5.4", r"5.4 \text{ cents}"),
    (r"\frac{\pi}{6}", r"30^\circ"),
    ("52_9", "52_8"),
    ("42", "52_8"),
    ("101_2", "5"),
    ("101_2", "101"),
    ("(0.6,8/3)", r"\left(\frac{3}{5},\frac{8}{3}\right]"),
    ("(0,36)", r"(0,9) \cup (9,36)"),
    ("-2<x<7", r"x \in [-2,7]"),
    (r"3+2\sqrt2", r"3 \pm 2 \sqrt{2}"),
    ("(3,5)", "3,5"),
    ("1,000", "1"),
    ("100200", "200,100"),
    ("(1,2),(3,4)", "(1,3),(2,4)"),
    (r"\frac{4}{5}", r"1\frac{4}{5}"),
    (r"\frac{14}{3}1", r"\frac{14}{3}"),
    ("12", "1 2"),
    ("x2", "x^2"),
    ("102", "10^2"),
    ("5 x", "5"),
    ("2 ab", "2"),
    ("CBA", "ABC"),
    ("3:4", r"\frac34"),
    ("even", "odd"),
    ("1/0", "1"),
    ("0/0", "0"),
    ("9**9**9**9", "5"),
    (r"9^{9^{9^{9}}}", r"9^{9^{9}}"),
    ("(" * 200, "5"),
    ("5" * 2000, "5" * 2000),
    (f"({'1,' * 99}1)", f"({'1,' * 99}2)"),
    (f"{'1,' * 99}1", f"{'1,' * 99}2"),
    ("__import__('os')", "5"),
    (r"-\infty", r"\infty"),
]


@pytest.mark.parametrize(("prediction", "gold"), SAME)
def test_one_answer_in_two_notations_is_equal_without_math_verify(prediction: str, gold: str) -> None:
    assert equal(prediction, gold, ask=never)


@pytest.mark.parametrize(("prediction", "gold"), DIFFERENT)
def test_two_answers_are_different_without_math_verify(prediction: str, gold: str) -> None:
    assert not equal(prediction, gold, ask=never)


def test_lists_can_be_ordered_and_the_default_rules_come_first() -> None:
    assert not equal("-2,1", "1,-2", Rules(lists="ordered"))
    assert equal("1, -2", "1,-2", Rules(lists="ordered"))
    assert Rules(**{name: values[0] for name, values in choices().items()}) == Rules()  # type: ignore[arg-type]


integers = st.integers(-10_000, 10_000)


@settings(max_examples=50)
@given(integers, st.integers(1, 999), st.integers(0, 4))
def test_a_rational_number_equals_all_its_notations_and_no_other_number(over: int, under: int, notation: int) -> None:
    value = Fraction(over, under)
    whole, rest = divmod(abs(over), under)
    written = [
        rf"\frac{{{over}}}{{{under}}}",
        f"{over}/{under}",
        rf"\dfrac{{{3 * over}}}{{{3 * under}}}",
        ("-" if over < 0 else "") + rf"{whole}\frac{{{rest}}}{{{under}}}",
        rf"$-\tfrac{{{-over}}}{{{under}}}$",
    ][notation]
    assert equal(written, str(value), ask=never)
    assert not equal(written, str(value + Fraction(1, 10**9)), ask=never)


def expressions(letters: str) -> st.SearchStrategy[str]:
    """Formulas that Python can evaluate, with `**` and all products written out."""
    leaf = st.integers(0, 12).map(str) | st.sampled_from(list(letters))

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        two = st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda p: f"({p[0]}{p[1]}{p[2]})")
        return two | inner.map(lambda e: f"({e})**2") | inner.map(lambda e: f"(-{e})")

    return st.recursive(leaf, larger, max_leaves=6)


def value(expression: str, **letters: Fraction) -> Fraction:
    return Fraction(eval(expression, {"__builtins__": {}}, letters))


@settings(max_examples=50)
@given(expressions("xy"), expressions("xy"))
def test_two_polynomials_are_equal_exactly_when_their_values_are(one: str, other: str) -> None:
    """Of degree at most 64 in two letters of integers with few digits: three large primes part any two."""
    points = [
        (Fraction(10**9 + 7), Fraction(998_244_353)),
        (Fraction(1, 10**9 + 9), Fraction(7)),
        (Fraction(3), Fraction(5)),
    ]
    same = all(value(one, x=x, y=y) == value(other, x=x, y=y) for x, y in points)
    try:
        assert algebra.equal(algebra.read(one), algebra.read(other)) == same
    except algebra.UnreadableError:
        assert len(one) > 40 or len(other) > 40  # too many terms


@settings(max_examples=50)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(2, 5))
def test_radicals_are_multiplied_exactly(a: int, b: int, degree: int) -> None:
    left = algebra.read(rf"\sqrt[{degree}]{{{a}}}\cdot\sqrt[{degree}]{{{b}}}")
    assert algebra.equal(left, algebra.read(rf"\sqrt[{degree}]{{{a * b}}}"))
    assert not algebra.equal(left, algebra.read(rf"\sqrt[{degree}]{{{a * b + 1}}}"))
    near = algebra.approximate(left)
    assert near is not None
    assert float(near) == pytest.approx((a * b) ** (1 / degree), rel=1e-12)


@given(st.text(max_size=80) | st.text("0123456789xyi+-*/^_=(){}[]<>,.\\ $%!frcsqtpmandeg\u2212\u00bd", max_size=40))
def test_any_text_is_compared_and_equals_itself_where_it_says_anything(text: str) -> None:
    for gold in ("5", r"\frac{1}{2}", "1, -2", r"(3,4]", r"\text{east}", "x=5", "52_8"):
        assert equal(text, gold, ask=lambda *_: "different") in (True, False)
        assert equal(gold, text, ask=lambda *_: "different") in (True, False)
    assert equal(text, text, ask=never) == bool(notation.clean(text))


@pytest.mark.parametrize(
    "unit", ["(", "{", "\\{", "-", "1,", "(1,", "\\frac", "\\sqrt{", "x^", "1 \\pm ", "\\text{", "²"]
)
def test_a_long_answer_is_compared_at_once(unit: str) -> None:
    start = time.process_time()
    for length in (100, 900, 100_000):
        equal(unit * (length // len(unit)), "1,2", ask=lambda *_: "different")
    assert time.process_time() - start < 1


def test_a_number_within_the_published_tolerance_is_right_and_nothing_else_is() -> None:
    assert within("3.14", r"\pi", "1e-2")
    assert not within("3.14", r"\pi", "1e-3")
    assert within(r"\sqrt{2}, 2", "1.41, 2.0", "0.01,0")
    assert not within("1.41", "1.41, 2.0", "0.01")
    assert not within("x", "1", "10")
    assert not within("1", "1", "some")


# What our rules leave to math-verify.

TRANSCENDENTAL = [
    (r"\frac{\cos x}{\sin x}", r"\cot x", True),
    (r"\sec x - \tan x", r"\cot x", False),
    (r"2^{n+1}", r"2\cdot 2^n", True),
    (r"2^{n+1}", r"2^n", False),
    (r"\log_2 8", "3", True),
    (r"\sin 30^\circ", r"\frac12", True),
    (r"\operatorname{cot} x", r"\frac{1}{\tan x}", True),
    (r"\sqrt{2+\sqrt3}", r"\frac{\sqrt6+\sqrt2}{2}", True),
    (r"\frac{\sin 1}{2^{99}}", r"\frac{\sin 1}{2^{98}}", False),
    (r"e^{i\pi}", "-1", True),
    (r"y=\sin x", r"2y=2\sin x", True),
    (r"y=\sin x", r"y=\cos x", False),
    (r"\sqrt{x^2}", "x", False),
]
VALUELESS = [r"\int\infty", r"1i\le7", r"\log", r"\sin\cot", r"\frac{\sin x}{0}"]


def test_functions_and_exponents_are_compared_at_many_points_in_both_orders() -> None:
    for one, other, same in TRANSCENDENTAL:
        assert equal(one, other) is same, (one, other)
        assert equal(other, one) is same, (other, one)


@pytest.mark.parametrize("prediction", VALUELESS)
def test_a_formula_without_a_value_equals_nothing_and_is_no_failure_of_the_scorer(prediction: str) -> None:
    assert not equal(prediction, r"\cot x")
    assert not equal(prediction, "5")


def test_an_answer_that_lists_formulas_over_the_limit_costs_one_limit() -> None:
    asked: list[str] = []

    def over(_: str, prediction: str) -> Literal["limit"]:
        asked.append(prediction)
        return "limit"

    listed = ", ".join(rf"\sin({number}^x)" for number in range(2, 9))
    assert not equal(listed, ", ".join(rf"\cos({number}^x)" for number in range(2, 9)), ask=over)
    assert len(asked) == 1


def test_any_thread_may_ask_and_gets_the_same_verdict() -> None:
    with ThreadPoolExecutor(4) as threads:
        said = list(threads.map(lambda row: equal(row[0], row[1]), TRANSCENDENTAL))
    assert said == [same for *_, same in TRANSCENDENTAL]


def children() -> dict[int, str]:
    """Processes that this one started, with their state."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            after = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(after[1]) == os.getpid():
            found[int(folder.name)] = after[0]
    return found


def test_a_formula_over_its_processor_time_is_not_equal_and_its_process_is_replaced() -> None:
    before = children().keys()
    asked = MathVerify(seconds=0.2, processes=1)
    assert asked.ask(r"\sin(9^{9^{9^{9}}})", "1") == "limit"
    assert not {pid for pid in children() if pid not in before}, "killed and waited for"
    assert [asked.ask(r"\cot x", r"\frac{1}{\tan x}") for _ in range(3)] == ["equal"] * 3
    (pid,) = {pid for pid in children() if pid not in before}
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert [line.split()[3] for line in limits.splitlines() if line.startswith("Max address space")] == [str(1 << 30)]
    assert [line.split()[3] for line in limits.splitlines() if line.startswith("Max file size")] == ["0"]
    asked.close()
    assert pid not in children()
    assert not equal(r"\sin(9^{9^{9^{9}}})", "1", ask=asked.ask)
    asked.close()


STUB = """
    import json, os, sys, time
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        gold, prediction = json.loads(line)
        if gold == "hang":
            time.sleep(600)
        if gold == "die":
            os._exit(1)
        verdict = {"raise": "failed", "fill": "memory"}.get(gold, "equal")
        print(json.dumps({"verdict": verdict, "why": "ValueError: no", "last": gold in ("fill", "last")}), flush=True)
        if gold in ("fill", "last"):
            break
"""


@pytest.fixture
def stub(tmp_path: Path) -> MathVerify:
    """A scorer that hangs, dies, fails or fills the memory when it is told to."""
    child = tmp_path / "child.py"
    child.write_text(textwrap.dedent(STUB))
    return MathVerify(child=child, wall_seconds=2, processes=1)


def test_a_scorer_that_hangs_is_killed_and_the_next_ten_pairs_are_answered(stub: MathVerify) -> None:
    before = children().keys()
    with pytest.raises(MathVerifyError, match="math-verify did not answer within 2 seconds"):
        stub.ask("hang", "1")
    assert not {pid for pid in children() if pid not in before}
    start = time.monotonic()
    assert [stub.ask("1", "1") for _ in range(10)] == ["equal"] * 10
    assert time.monotonic() - start < 2
    stub.close()


def test_a_scorer_that_dies_or_fails_is_an_error_and_never_a_wrong_answer(stub: MathVerify) -> None:
    before = children().keys()
    with pytest.raises(MathVerifyError, match="died twice on one pair"):
        stub.ask("die", "1")
    with pytest.raises(MathVerifyError, match="math-verify failed: ValueError: no"):
        stub.ask("raise", "1")
    with pytest.raises(MathVerifyError):
        equal(r"\sin x", r"\cos x", ask=lambda *_: stub.ask("raise", "1"))
    assert stub.ask("fill", "1") == "limit"
    assert stub.ask("last", "1") == "equal"
    assert stub.ask("1", "1") == "equal"
    stub.close()
    assert not {pid for pid in children() if pid not in before}


def test_threads_wait_for_a_free_process(stub: MathVerify) -> None:
    before = children().keys()
    said: list[str] = []
    threads = [threading.Thread(target=lambda: said.append(stub.ask("1", "1"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == ["equal"] * 8
    assert len({pid for pid in children() if pid not in before}) == 1
    stub.close()


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_no_process_outlives_the_program_and_a_fork_starts_its_own() -> None:
    said = run(
        r"""
        import os
        from dare.rewards.equivalence import equal
        from dare.rewards.mathverify import shared
        assert equal(r"\frac{1}{\tan x}", r"\cot x")
        pid = shared()._idle[0].popen.pid
        child = os.fork()
        if child == 0:
            assert equal(r"\frac{2}{2\tan x}", r"\cot x")
            assert shared()._idle[0].popen.pid != pid
            shared().close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert equal(r"\frac{3}{3\tan x}", r"\cot x")
        assert shared()._idle[0].popen.pid == pid
        print(pid)
        """
    )
    assert not Path(f"/proc/{said.strip()}").exists()


def test_nothing_heavy_is_imported_and_no_process_started_before_it_is_needed() -> None:
    said = run(
        """
        import sys
        from dare.rewards.equivalence import equal
        from dare.rewards.mathverify import require, shared
        require()
        assert equal("1/2", "0.5") and not equal("(x+1)^2", "x^2+1")
        print(sorted({"sympy", "math_verify", "latex2sympy2_extended", "numpy", "torch"} & sys.modules.keys()))
        print(shared.cache_info().currsize and shared()._idle)
        """
    )
    assert said.split() == ["[]", "[]"]


def test_without_math_verify_the_refusal_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    mathverify.require.cache_clear()
    with pytest.raises(mathverify.MissingMathVerifyError, match="not installed here: install dare with its extra"):
        mathverify.require()
    mathverify.require.cache_clear()
