r"""`python -m studies.fuzz --minutes 5`: hostile answers for every judge, until the time is over.

Texts are glued from fragments that scorers look for (tags, boxes, formulas, fences, mask tokens, records), repeated,
nested, and cut; or the right answer of the task's shown item, damaged. Each is judged under policies drawn at random.
What a verdict must be is checked every time; what a text was can be made again from the task, the seed and its number.
A judge that takes longer than `dare.scoring` allows is stopped, and that is a finding too.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dare.scoring import MASKS, SECONDS
from dare.tasks import Item, NotScoredError, Task, Verdict, load_task, task_names
from dare.time_limit import TooLongError, stopwatch

PIECES: Sequence[str] = (
    *("<answer>", "</answer>", "<reasoning>", "</reasoning>", "<answer", "</ANSWER>", "<answer></answer>"),
    *(r"\boxed{", r"\boxed", r"\fbox{", r"\framebox{", r"\boxed{\boxed{", "boxed{", "{", "}", r"\{", r"\}"),
    *("####", "#### ", "The answer is ", "answer: ", "**Answer:** ", "Final answer = ", "the answer is not "),
    *("0", "1", "18", "-3", "1,000", "1,0,0", "3.14", ".5", "1.", "1e999", "9" * 400, "0" * 400, "1/0", "2/3", "½"),
    *("9**9**9", "10^10^10", "2^{2^{2^{99}}}", "9999!", "1e1000000", "factorial(99999)", "(10**9)**(10**9)"),
    *(
        "+",
        "-",
        "*",
        "/",
        "=",
        "×",
        "÷",
        "−",
        "^",
        "_",
        "(",
        ")",
        "[",
        "]",
        "|",
        ",",
        ";",
        ":",
        ".",
        "%",
        "$",
        "&",
        "~",
    ),
    *(r"\frac", r"\frac{", r"\frac{1}{0}", r"\dfrac12", r"\sqrt{", r"\sqrt[3]{", r"\left(", r"\right)", r"\pm", r"\pi"),
    *(r"\text{", r"\mathrm{", r"\begin{pmatrix}", r"\end{pmatrix}", r"\\", r"\cup", r"\infty", r"\in", r"\cdot", r"\,"),
    *(r"\int_0^1", r"\sum_{n=1}^{\infty}", r"\lim_{x\to 0}", r"\sin", r"\log", "x", "y^2", "e^{x}", r"\displaystyle"),
    *(r"\(", r"\)", r"\[", r"\]", "$$", r"^\circ", r"\%", "degrees", " cm", "dollars", "dozen", "million"),
    *("A", "B", "(C)", "D.", "[B]", "A or B", "not A", "option B", "none of the above", "Both", "E", "ABCD"),
    *("1 2 3 4\n", "4321\n", "1234341221434321", "| 1 | 2 |", "0000", "²½٣", "１８", "٤٢", "Ⅳ", "一", "∞"),
    *(
        "```python\n",
        "```",
        "~~~",
        "```\r\n",
        '"""',
        "def f():\n",
        "    return 1\n",
        "[DONE]",
        "[BEGIN]",
        "import os\n",
    ),
    *("while True: pass\n", "assert", "exit(0)", "input()", "class A:\n", "lambda: 0", "if __name__"),
    *('{"log_likelihoods": [', "NaN", "Infinity", "null", "true", '"', "'", '{"a":', "[[", "]]", "{}", "\\u0000"),
    *MASKS,
    *("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "[PAD]", "</s>", "<think>", "</think>"),
    *("\n", "\r\n", "\r", "\t", "\f", "\x00", "\x1b[31m", "\x7f", "\x85", "\u2028", "\u202e", "\u200b", "\ufeff"),
    *("\ud800", "\udfff", "\U0001f600", "e\u0301", "\u0301" * 20, "ﷺ", "\U0010ffff", "\u00a0"),
    *(
        " ",
        "  ",
        "the",
        "so",
        "it is",
        "because",
        "I cannot help with that",
        "Sure!",
        "Step 1:",
        "1. ",
        "- ",
        "* ",
        "**",
    ),
)
"""What texts are glued from."""

LONG: dict[str, tuple[str, str, str]] = {
    "one letter": ("", "x", ""),
    "spaces": ("", " ", ""),
    "spaces before a number": ("answer is", " ", "18"),
    "line breaks": ("", "\n", ""),
    "no-break spaces": ("", "\u00a0", "7"),
    "digits": ("", "9", ""),
    "digits behind a marker": ("#### ", "9", ""),
    "groups of digits": ("1", ",000", ""),
    "spaced digits": ("", "1 ", ""),
    "decimal points": ("", "1.", ""),
    "zeros behind a point": ("0.", "0", "1"),
    "minus signs": ("", "-", "1"),
    "spaced minus signs": ("", "- ", "1"),
    "sums": ("", "1+", "1"),
    "products in brackets": ("", "(1*", ""),
    "powers": ("", "9**", "9"),
    "carets": ("x", "^x", ""),
    "braced powers": ("", "2^{", "2"),
    "fractions": ("", r"\frac{1}{", "2"),
    "closed fractions": ("", r"\frac{1}{2}", ""),
    "roots": ("", r"\sqrt{", "2"),
    "equations": ("", "1=", "1"),
    "opening brackets": ("", "(", ""),
    "closing brackets": ("", ")", ""),
    "pairs of brackets": ("", "()", ""),
    "opening braces": ("", "{", ""),
    "closing braces": ("", "}", ""),
    "square brackets": ("", "[", ""),
    "open boxes": ("", r"\boxed{", "18"),
    "closed boxes": ("", r"\boxed{18}", ""),
    "boxes without braces": ("", r"\boxed ", "18"),
    "empty boxes": ("", r"\boxed{}", ""),
    "nested boxes": ("", r"\boxed{1", ""),
    "open tags": ("", "<answer>", "18"),
    "closing tags": ("18", "</answer>", ""),
    "closed tags": ("", "<answer>18</answer>", ""),
    "empty tags": ("", "<answer></answer>", ""),
    "half tags": ("", "<answer", ""),
    "hashes": ("", "#", " 18"),
    "markers": ("", "#### ", ""),
    "phrases": ("", "the answer is ", ""),
    "answered phrases": ("", "the answer is 18. ", ""),
    "chains": ("#### 1", " + 1", " = 2"),
    "asterisks": ("", "*", "18"),
    "bold": ("", "**18** ", ""),
    "backslashes": ("", "\\", ""),
    "backticks": ("", "`", ""),
    "open fences": ("", "```python\n", "x"),
    "fences": ("", "```\nx\n```\n", ""),
    "tildes": ("", "~~~\n", ""),
    "dollars": ("", "$", "18"),
    "formulas": ("", "$x$ ", ""),
    "letters of choice": ("", "A ", ""),
    "choices": ("", "(B) ", ""),
    "options": ("", "Answer: A. ", ""),
    "either or": ("Answer: A", " or B", ""),
    "quotation marks": ("", '"', ""),
    "records": ("", '{"log_likelihoods": ', "1"),
    "JSON arrays": ("", "[1,", ""),
    "numbers of a record": ('{"log_likelihoods": [', "1,", "1]}"),
    "bars": ("", "|", ""),
    "rows of a grid": ("", "1234\n", ""),
    "combining accents": ("e", "\u0301", ""),
    "emoji": ("", "\U0001f600", ""),
    "surrogates": ("", "\ud800", ""),
    "mask tokens": ("", "<|mdm_mask|>", ""),
    "end of text": ("18", "<|endoftext|>", ""),
    "null characters": ("", "\x00", ""),
    "words": ("", "word ", ""),
    "sentences": ("", "So it is 18. ", ""),
    "capitals": ("", "WORD ", ""),
    "list items": ("", "\n* 1", ""),
    "colons": ("answer", ":", "18"),
    "commas": ("", ",", "18"),
    "lists": ("", "1, ", "1"),
    "intervals": ("", "(1,2] \\cup ", "(1,2]"),
    "matrices": ("", r"\begin{pmatrix}1", ""),
    "rows of a matrix": (r"\begin{pmatrix}", r"1 & 2 \\ ", r"\end{pmatrix}"),
    "texts": ("", r"\text{", ""),
    "spaced commands": ("", r"\, ", ""),
    "left brackets": ("", r"\left(", ""),
    "primes": ("x", "'", ""),
    "factorials": ("9", "!", ""),
    "code": ("", "def f():\n    return 1\n", ""),
    "indents": ("", "    ", "return 1"),
    "decorators": ("", "@x\n", "def f(): pass"),
    "docstrings": ("", '"""', ""),
    "comments": ("", "# x\n", ""),
    "unary operators": ("x = ", "not ", "1"),
    "nested lambdas": ("", "lambda:", "0"),
}  # fmt: skip
"""Beginning, what is repeated, and end: texts in which a scorer that looks back and forth takes quadratic time."""


def repeated(name: str, length: int) -> str:
    """One of `LONG` with about so many characters."""
    start, unit, end = LONG[name]
    return start + unit * max(1, (length - len(start) - len(end)) // len(unit)) + end


def hostile_text(generator: random.Random, right: str) -> str:
    """One text; of some a right answer is a part, whole or damaged."""
    kind = generator.randrange(8)
    length = int(10 ** generator.uniform(0, 3.5))
    if kind == 0:
        return "".join(chr(generator.randrange(0x110000)) for _ in range(length // 8))
    if kind == 1:
        return repeated(generator.choice(list(LONG)), int(10 ** generator.uniform(1, 5)))
    if kind == 2:
        depth = int(10 ** generator.uniform(0, 3))
        opening, closing = generator.choice(
            [("(", ")"), ("{", "}"), ("[", "]"), (r"\boxed{", "}"), (r"\frac{1}{", "}")]
        )
        return opening * depth + generator.choice((right, "18", "x")) + closing * (depth + generator.randint(-1, 1))
    if kind == 3:
        return _damaged(generator, right)
    glued = "".join(generator.choices(PIECES, k=max(1, length // 10)))
    if kind == 4:
        place = generator.randrange(len(glued) + 1)
        return (
            glued[:place]
            + generator.choice(("<answer>{}</answer>", r"\boxed{{{}}}", "#### {}", "{}")).format(
                _damaged(generator, right) if generator.random() < 0.5 else right
            )
            + glued[place:]
        )
    if kind == 5:
        few = generator.sample(PIECES, 3)
        return "".join(generator.choices(few, k=length))
    return glued


def _damaged(generator: random.Random, text: str) -> str:
    for _ in range(generator.randint(1, 4)):
        a, b = sorted(generator.randrange(len(text) + 1) for _ in range(2))
        middle = generator.choice(("", generator.choice(PIECES), text[a:b] * 2, text[a:b][::-1]))
        text = text[:a] + middle + text[b:]
    return text


def broken_rule(text: str, verdict: Verdict) -> str | None:
    """What is wrong with a verdict, whatever the task."""
    if verdict.status == "error":
        return "the scorer failed"
    if not 0 <= verdict.reward <= 1:
        return f"a reward of {verdict.reward}"
    if verdict.solved and verdict.reward != 1:
        return f"solved, with a reward of {verdict.reward}"
    if verdict.solved and not text.strip():
        return "an empty answer is solved"
    if (verdict.answer is None) != (verdict.status == "no_answer"):
        return f"status {verdict.status} with answer {verdict.answer!r:.40}"
    return None


@dataclass
class Fuzzed:
    """What the texts of one task gave."""

    task: str
    texts: int = 0
    characters: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    """Seconds by the wall: part of a judge may be another process."""
    slowest_text: str = ""
    findings: list[str] = field(default_factory=list)


def fuzz(task: Task, seconds: float, seed: int, most: int | None = None) -> Fuzzed:
    """Judge hostile texts for so long, or so many of them."""
    fuzzed = Fuzzed(task.name)
    end = time.monotonic() + seconds
    with stopwatch() as bound:
        for number, (item, text, policies) in enumerate(_asked(task, seed)):
            if time.monotonic() > end or number == most:
                break
            judge = task.judging(policies)
            began = time.monotonic()
            try:
                bound(SECONDS)
                verdict = judge(item, text)
                bound(0)
                taken = time.monotonic() - began
                wrong = broken_rule(text, verdict)
                if wrong is None and number % 4 == 0 and judge(item, text) != verdict:
                    wrong = "another verdict at the second time"
            except NotScoredError as error:
                fuzzed.findings.append(f"not scored here: {error}")
                break
            except TooLongError:
                wrong, verdict, taken = f"no verdict after {SECONDS:g} s", None, SECONDS
            except Exception as error:  # what we are looking for
                wrong, verdict, taken = f"raised {type(error).__name__}: {error!s:.80}", None, 0.0
            finally:
                bound(0)
            fuzzed.texts += 1
            fuzzed.characters += len(text)
            fuzzed.verdicts["none" if verdict is None else "solved" if verdict.solved else verdict.status] += 1
            if taken > fuzzed.slowest:
                fuzzed.slowest, fuzzed.slowest_text = taken, text
            if wrong is not None:
                fuzzed.findings.append(
                    f"seed {seed}, text {number}, {policies or 'no policies'}: {wrong}: {text!r:.120}"
                )
    return fuzzed


def _asked(task: Task, seed: int) -> Iterator[tuple[Item, str, dict[str, str]]]:
    item, right = task.example
    number = 0
    while True:
        generator = random.Random(f"{task.name} {seed} {number}")
        chosen = {name: generator.choice(values) for name, values in task.policies.items() if generator.random() < 0.3}
        yield item, hostile_text(generator, right), chosen
        number += 1


def report(found: Sequence[Fuzzed]) -> Iterator[str]:
    """One row a task, then what was found."""
    yield "| task | texts | Mcharacters | solved | other answers | no answer | slowest, ms | its length | findings |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for one in found:
        other = sum(count for status, count in one.verdicts.items() if status not in ("solved", "no_answer", "none"))
        yield (
            f"| {one.task} | {one.texts} | {one.characters / 1e6:.1f} | {one.verdicts['solved']} | {other} | "
            f"{one.verdicts['no_answer']} | {1000 * one.slowest:.1f} | {len(one.slowest_text)} | {len(one.findings)} |"
        )
    for one in found:
        for finding in one.findings[:5]:
            yield f"\n{one.task}: {finding}"


def main() -> None:
    """Fuzz every task in turn and print the figures."""
    parser = argparse.ArgumentParser(prog="studies.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="one task by name")
    given = parser.parse_args()
    tasks = [load_task(name) for name in task_names() if given.only in ("", name)]
    found = [fuzz(task, 60 * given.minutes / len(tasks), given.seed) for task in tasks]
    print("\n".join(report(found)))
    if any(one.findings for one in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
