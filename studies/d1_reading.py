"""How d1's own evaluation reads an answer, from its published rules (dllm-reasoning/d1 at 837888f), for comparison.

It searches the raw text, special tokens included. What it lets through that our scorers do not, and the other way
round, is what `studies.real_answers` lists.
"""

from __future__ import annotations

import re
from fractions import Fraction

from dare.rewards.countdown import ExpressionPolicy, solves

PLAIN = ExpressionPolicy(leading_zeros=False, sentence_dot=False, boxed=False)
"""The expressions that a Python interpreter computes as meant, which is what d1 asks."""
_NUMBER = re.compile(r"-?\d+\.?\d*")
_GRIDS = (
    r"<answer>.*?```\s*([\d\s]+)```",
    r"<answer>(.*?)(?:<\|eot_id\|>|<\|endoftext\|>|</answer>)",
    r"</answer>\s*(.*?)(?:<\|eot_id\|>|<\|endoftext\|>|$)",
    r".*?(\d{16})\s*</answer>",
    r"\b(\d{16})\b",
)
"""Where a grid may stand, tried in this order."""


def gsm8k(text: str, gold: Fraction) -> bool:
    """The first box with a number in it, of which the first number counts; without one the first answer tag."""
    for content in re.findall(r"\\boxed{(.*?)}", text):
        found = _float(content.strip()) or _first(content, 0)
        if found is not None:
            return found == gold
    tag = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
    if tag is None:
        return False
    found = _float(tag[1].strip()) or _first(tag[1], -1)
    return found is not None and found == gold


def countdown(text: str, numbers: tuple[int, ...], target: int) -> bool:
    """The last box; the first answer tag where that box is never closed; everything where there is no box or no tag. Of
    an equation with a number its left side."""
    equation = _last_box(text) if r"\boxed" in text else text
    if equation is None:
        tag = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
        equation = tag[1].strip() if tag else text
    for latex, sign in ((r"\div", "/"), (r"\times", "*"), (r"\cdot", "*")):
        equation = equation.replace(latex, sign)
    left = re.search(r"([0-9+\-*/() ]+)=[0-9. ]+", equation)
    expression = left[1].strip() if left else equation
    return re.fullmatch(r"[\d+\-*/().\s]+", expression) is not None and solves(expression, numbers, target, PLAIN)


def sudoku_cells(text: str, puzzle: str, solution: str) -> float:
    """Share of the holes filled as in the published solution; an answer of another length is cut or filled up to 16."""
    found = next(
        (match[1].strip() for one in _GRIDS if (match := re.search(one, text, re.DOTALL)) and match[1].strip()), ""
    )
    grid = re.sub(r"\s", "", found)[:16].ljust(16, "0")
    holes = [place for place, digit in enumerate(puzzle) if digit == "0"]
    return sum(grid[place] == solution[place] for place in holes) / len(holes)


def _last_box(text: str) -> str | None:
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    depth = 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if text[place] == "}" and depth == 0:
            return text[start + len(r"\boxed{") : place]
    return None


def _float(text: str) -> Fraction | None:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None


def _first(text: str, place: int) -> Fraction | None:
    numbers = _NUMBER.findall(text)
    return Fraction(numbers[place].rstrip(".") or "0") if numbers else None
