"""Countdown: an arithmetic grammar with exact values, the judge, and all expressions over three numbers.

Model text is read by a grammar of integers, + - * / and brackets, never handed to an interpreter. The reader keeps
its own stacks, so depth costs memory and not the interpreter's recursion, and the numbers of an expression are
compared with the given ones before anything is computed: the cost is bounded by the length of the text.

    ExpressionError(ValueError)    the text is no expression, or its value does not exist
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import permutations
from typing import Literal

Postfix = tuple[int | str, ...]
"""Numbers and the operators + - * / and "negate", operands first."""


class ExpressionError(ValueError):
    """The text is no expression of the grammar, or divides by zero."""


@dataclass(frozen=True)
class ExpressionPolicy:
    """What scorers disagree about. A task declares its policy; the same one serves reward and evaluation."""

    equation: Literal["refused", "left_side", "one_side"] = "refused"
    """Whether `3+4=7` counts, with the expression on the left or on either side. The other side must be the target,
    written as a number: a false equation is wrong under every policy."""
    leading_zeros: bool = True
    """`03` is 3."""
    implicit_product: bool = False
    """`4(2)` is 8. Two numbers side by side are never a product."""
    repeated_signs: bool = True
    """A sign may follow a sign or an operator, as in `--3` and `3*-4`. After a bracket it always may."""
    sentence_dot: bool = True
    """One full stop at the end is punctuation."""
    comments: bool = False
    """What follows a `#` is ignored."""
    unicode_digits: bool = False
    """Decimal digits of every script are digits."""
    boxed: bool = True
    r"""A `\boxed{...}` around the whole answer is typography."""
    max_depth: int | None = 64
    """Brackets that may be open at once."""
    max_characters: int = 10_000


DEFAULT_POLICY = ExpressionPolicy()

MAX_DIGITS = 18
"""Longest numeral read. Python refuses to convert very long ones, and no task has such numbers."""

_OPERATORS = dict.fromkeys("+＋", "+") | dict.fromkeys("-−–－", "-") | dict.fromkeys("*×·⋅∙∗✕＊", "*")
_OPERATORS |= dict.fromkeys("/÷∕⁄／", "/") | {r"\times": "*", r"\cdot": "*", r"\ast": "*", r"\div": "/"}
_BRACKETS = {"(": "(", ")": ")", "（": "(", "）": ")", "{": "{", "}": "}"}
_SILENT = {r"\left", r"\right"}
_FRACTIONS = {r"\frac", r"\dfrac", r"\tfrac"}
_TOKEN = re.compile(r"\d+|\\[A-Za-z]+|\S")
_ARITHMETIC: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "negate": 3}


def _tokens(text: str, policy: ExpressionPolicy) -> list[int | str]:
    """Numbers, operators and round brackets; every notation of one of them is the same token from here on."""
    tokens: list[int | str] = []
    open_brackets: list[Literal["(", "numerator", "denominator"]] = []
    awaited: Literal["numerator", "denominator"] | None = None
    for match in _TOKEN.finditer(text):
        piece = match.group()
        bracket = _BRACKETS.get(piece)
        if awaited and bracket != "{":
            raise ExpressionError(f"expected the {awaited} of a fraction in braces, found {piece[:20]!r}")
        if piece[0].isdecimal():
            tokens.append(_number(piece, policy))
        elif piece in _OPERATORS:
            tokens.append(_OPERATORS[piece])
        elif piece in _FRACTIONS:
            tokens.append("(")
            awaited = "numerator"
        elif bracket == "(":
            tokens.append("(")
            open_brackets.append("(")
        elif bracket == "{" and awaited:
            tokens.append("(")
            open_brackets.append(awaited)
            awaited = None
        elif bracket == ")" and open_brackets and open_brackets[-1] == "(":
            tokens.append(")")
            open_brackets.pop()
        elif bracket == "}" and open_brackets and open_brackets[-1] != "(":
            numerator = open_brackets.pop() == "numerator"
            tokens.extend([")", "/"] if numerator else [")", ")"])
            awaited = "denominator" if numerator else None
        elif piece not in _SILENT:
            raise ExpressionError(f"{piece[:20]!r} has no place here")
        if policy.max_depth is not None and len(open_brackets) > policy.max_depth:
            raise ExpressionError(f"more than {policy.max_depth} brackets are open at once")
    if open_brackets or awaited:
        raise ExpressionError("a bracket is not closed")
    return tokens


def _number(piece: str, policy: ExpressionPolicy) -> int:
    if not (piece.isascii() or policy.unicode_digits):
        raise ExpressionError(f"{piece[:20]!r} is not written in ASCII digits")
    if len(piece) > MAX_DIGITS:
        raise ExpressionError(f"a number has {len(piece)} digits, the limit is {MAX_DIGITS}")
    number = int(piece)
    if len(piece) > len(str(number)) and not policy.leading_zeros:
        raise ExpressionError(f"{piece!r} has leading zeros")
    return number


def parse(text: str, policy: ExpressionPolicy = DEFAULT_POLICY) -> Postfix:
    """Reads an expression by operator precedence; raises ExpressionError."""
    if len(text) > policy.max_characters:
        raise ExpressionError(f"the text has {len(text)} characters, the limit is {policy.max_characters}")
    output: list[int | str] = []
    waiting: list[str] = []  # operators and open brackets whose right side is not read yet
    previous: int | str = "("
    for token in _tokens(text, policy):
        operand_before = isinstance(previous, int) or previous == ")"
        if operand_before and (token == "(" or (previous == ")" and isinstance(token, int))):
            if not policy.implicit_product:
                raise ExpressionError("a product needs its operator")
            _make_room(output, waiting, "*")
            operand_before = False
        if isinstance(token, int):
            if operand_before:
                raise ExpressionError(f"no operator before {token}")
            output.append(token)
        elif token == "(":
            waiting.append(token)
        elif token == ")":
            if not operand_before:
                raise ExpressionError("an operand is missing before a closing bracket")
            while waiting[-1] != "(":  # brackets were matched while reading tokens
                output.append(waiting.pop())
            waiting.pop()
        elif operand_before:
            _make_room(output, waiting, token)
        elif token not in "+-" or (previous != "(" and not policy.repeated_signs):
            raise ExpressionError(f"an operand is missing before {token!r}")
        elif token == "-":
            waiting.append("negate")
        previous = token
    if not (isinstance(previous, int) or previous == ")"):
        raise ExpressionError("the expression is empty or ends with an operator")
    return (*output, *reversed(waiting))


def _make_room(output: list[int | str], waiting: list[str], binary: str) -> None:
    """Closes what binds at least as tightly as a binary operator, then lets it wait for its right side."""
    while waiting and waiting[-1] != "(" and _PRECEDENCE[waiting[-1]] >= _PRECEDENCE[binary]:
        output.append(waiting.pop())
    waiting.append(binary)


def value(expression: Postfix) -> Fraction:
    """The exact value; raises ExpressionError for a division by zero."""
    stack: list[Fraction] = []
    for token in expression:
        if isinstance(token, int):
            stack.append(Fraction(token))
        elif token == "negate":
            stack.append(-stack.pop())
        else:
            right, left = stack.pop(), stack.pop()
            if token == "/" and right == 0:
                raise ExpressionError("division by zero")
            stack.append(_ARITHMETIC[token](left, right))
    return stack.pop()


def solves(answer: str, numbers: tuple[int, ...], target: int, policy: ExpressionPolicy = DEFAULT_POLICY) -> bool:
    """Whether an extracted answer uses every number exactly once and has exactly the target as its value."""
    text = answer.split("#", 1)[0].strip() if policy.comments else answer.strip()
    if policy.sentence_dot:
        text = text.removesuffix(".")
    if policy.boxed and text.startswith(r"\boxed{") and text.endswith("}"):
        text = text.removeprefix(r"\boxed{").removesuffix("}")

    def reaches(side: str, allowed: tuple[int, ...]) -> bool:
        try:
            expression = parse(side, policy)
            used = sorted(token for token in expression if isinstance(token, int))
            return used == sorted(allowed) and value(expression) == target
        except ExpressionError:
            return False

    sides = text.split("=")
    if len(sides) == 1:
        return reaches(text, numbers)
    if len(sides) > 2 or policy.equation == "refused":
        return False
    left, right = sides
    forwards = reaches(left, numbers) and reaches(right, (target,))
    return forwards or (policy.equation == "one_side" and reaches(right, numbers) and reaches(left, (target,)))


def _apply(symbol: str, left: tuple[int, int] | None, right: tuple[int, int] | None) -> tuple[int, int] | None:
    """Arithmetic on (numerator, denominator), not reduced: Fraction would take most of the time of enumeration."""
    if left is None or right is None:
        return None
    (a, b), (c, d) = left, right
    if symbol == "*":
        return a * c, b * d
    if symbol == "/":
        return (a * d, b * c) if c else None
    return (a * d + b * c if symbol == "+" else a * d - b * c), b * d


def forms(numbers: tuple[int, int, int]) -> list[tuple[str, int | None]]:
    """The 192 ways to use three numbers once each (6 orders, 16 pairs of operators, 2 groupings), with their values.

    The value is None where it is no integer. Brackets are written only where they change the meaning.
    """
    written: list[tuple[str, int | None]] = []
    for a, b, c in permutations(numbers):
        x, y, z = (a, 1), (b, 1), (c, 1)
        for first in "+-*/":
            for second in "+-*/":
                left = f"({a}{first}{b})" if first in "+-" and second in "*/" else f"{a}{first}{b}"
                right = f"{b}{second}{c}" if first in "+-" and second in "*/" else f"({b}{second}{c})"
                written.append((f"{left}{second}{c}", _whole(_apply(second, _apply(first, x, y), z))))
                written.append((f"{a}{first}{right}", _whole(_apply(first, x, _apply(second, y, z)))))
    return written


def _whole(number: tuple[int, int] | None) -> int | None:
    if number is None or number[0] % number[1]:
        return None
    return number[0] // number[1]


@cache
def shortest(numbers: tuple[int, int, int]) -> dict[int, str]:
    """From every integer that can be reached to its shortest expression; of equally short ones the first form,
    which keeps the order of the numbers where it can."""
    best: dict[int, str] = {}
    for text, result in sorted(forms(numbers), key=lambda form: len(form[0])):
        if result is not None:
            best.setdefault(result, text)
    return best


def chance(numbers: tuple[int, int, int], target: int) -> float:
    """Probability that a form drawn uniformly has the target as its value."""
    results = [result for _, result in forms(numbers)]
    return results.count(target) / len(results)
