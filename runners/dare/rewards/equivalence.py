r"""Whether an answer in mathematics is the right one, whatever it looks like.

First exact rules of our own: `notation` takes typography away and tells lists from points and intervals, `algebra`
compares formulas by proof. What they cannot decide, a sine or `2^n`, goes to math-verify in a process that can be
killed. A formula that is not shown to be equal within the limit of a pair is not equal; a scorer that fails raises,
and nobody's answer is wrong for that. Nothing equals a missing answer, and a missing gold equals nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args, get_type_hints

from dare.rewards import algebra, mathverify, notation
from dare.rewards.notation import Group, Many, Node, Scalar

MAX_ASKED = 12
"""Formulas of one answer that may go to math-verify: lists of many are compared item by item."""

Ask = Callable[[str, str], mathverify.Answer]


@dataclass(frozen=True)
class Rules:
    """What has no universal answer. A protocol chooses."""

    percent: Literal["ignored", "number"] = "ignored"
    """`50\\%` is 50, or it is 0.5."""
    scientific: Literal["read", "refused"] = "read"
    """`1e3` is 1000, or no number."""
    lists: Literal["unordered", "ordered"] = "unordered"
    """`1,-2` and `-2,1` are the same answer, or two."""


RULES = Rules()


def choices() -> dict[str, tuple[str, ...]]:
    """The values of every rule, the default first."""
    return {name: get_args(values) for name, values in get_type_hints(Rules).items()}


def equal(prediction: str | None, gold: str | None, rules: Rules = RULES, ask: Ask | None = None) -> bool:
    """Whether the prediction is the gold. Raises MathVerifyError where math-verify fails on the pair."""
    if not prediction or not gold or not prediction.strip() or not gold.strip():
        return False
    if max(len(prediction), len(gold)) > notation.MAX_LENGTH:
        return False
    answer, right = notation.clean(prediction), notation.clean(gold)
    if not answer or not right:
        return False
    if _squeezed(answer) == _squeezed(right):
        return True
    comparison = _Comparison(rules, ask or mathverify.shared().ask)
    readings = {notation.has_grouped_digits(answer) or notation.has_grouped_digits(right), False}
    return any(
        comparison.same(notation.parse(answer, thousands=thousands), notation.parse(right, thousands=thousands))
        for thousands in sorted(readings, reverse=True)
    )


def within(prediction: str, gold: str, tolerance: str) -> bool:
    """Whether every number of an answer is within a published tolerance of the gold's, in the gold's order. False
    where one is no number."""
    sides = [_numbers(text) for text in (prediction, gold)]
    allowed = [_exact(bound) for bound in tolerance.split(",")]
    if not sides[0] or len(sides[0]) != len(sides[1]) or len(allowed) not in (1, len(sides[1])):
        return False
    bounds = allowed * len(sides[1]) if len(allowed) == 1 else allowed
    return all(
        answer is not None and right is not None and bound is not None and abs(answer - right) <= bound
        for answer, right, bound in zip(*sides, bounds, strict=True)
    )


def _numbers(text: str) -> list[Fraction | None]:
    if len(text) > notation.MAX_LENGTH:
        return []
    node = notation.parse(notation.clean(text), thousands=True)
    items = node.items if isinstance(node, Many | Group) else (node,)
    return [_exact(_EQUALS.split(item.text)[-1]) if isinstance(item, Scalar) else None for item in items]


def _exact(text: str) -> Fraction | None:
    """The value of a numeral, or that of a formula in radicals and pi to some forty digits."""
    text = text.strip()
    if scientific := _SCIENTIFIC.fullmatch(text):
        text = f"{scientific[1]}*10^{{{scientific[2]}}}"
    try:
        return algebra.approximate(algebra.read(text))
    except algebra.UnreadableError:
        return None


_SPACE = re.compile(r"(?<![0-9A-Za-z]) +| +(?![0-9A-Za-z])|(?<=[0-9]) +(?=[A-Za-z])|(?<=[A-Za-z]) +(?=[0-9])")


def _squeezed(text: str) -> str:
    """Without spaces but those that part two words or two numbers, and without braces around one character."""
    text = _SPACE.sub("", text)
    return re.sub(r"\{([0-9A-Za-z])\}", r"\1", text)


_EQUALS = re.compile(r"(?<![<>!:])=")
_NAME = re.compile(
    r"\\?[A-Za-z]+(?: ?_ ?(?:\{[^{}]*\}|\w))?'?(?:\([^()=]*\))?|\\text ?\{[^{}]*\}|\\angle ?\{?[A-Za-z]+\}?|[A-Za-z ]+"
)
_SCIENTIFIC = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))[eE]([+-]?[0-9]{1,6})")
_BASE = re.compile(r"([0-9]+) ?_ ?(?:\{ ?([0-9]{1,2}) ?\}|([0-9]))")
_CHOICE = re.compile(r"\\text ?\{ ?\(([A-Z])\) ?\}|\(([A-Z])\)")
_CHOSEN = re.compile(r"(?:\\text ?\{)? ?(?:\(?([A-Za-z])\)(?!\}?[0-9A-Za-z])|([A-Za-z])(?:[.:]| ?$|\}))")
_FORMULA = re.compile(r"[0-9A-Za-z+*/^_=<>(){}\[\]|,.!&'\\ -]{1,300}")
_COMMANDS = frozenset(
    re.findall(
        r"\S+",
        r"""\frac \sqrt \cdot \times \div \ast \sin \cos \tan \cot \sec \csc \sinh \cosh \tanh \arcsin \arccos \arctan
    \log \ln \exp \le \ge \ne \lfloor \rfloor \lceil \rceil \binom \sum \prod \int \pmod \mid \max \min \gcd \lim \to
    \infty \vert \circ \dots \ldots \cdots \partial \prime \overline \deg \pi""",
    )
)
_LOST_DIGIT = re.compile(r"(?<![\\A-Za-z])[A-Za-z][0-9]")
_LONG_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4,}")


class _Comparison:
    """One prediction against one gold under some rules."""

    def __init__(self, rules: Rules, ask: Ask) -> None:
        self.rules, self.ask, self.asked = rules, ask, 0

    def same(self, answer: Node, right: Node) -> bool:
        if isinstance(answer, Scalar) and isinstance(right, Scalar):
            return self.scalars(answer, right)
        if isinstance(answer, Many) and isinstance(right, Many):
            if answer.kind != right.kind or len(answer.items) != len(right.items):
                return False
            if self.rules.lists == "ordered" and right.kind == "list":
                return all(map(self.same, answer.items, right.items))
            return self.unordered(answer.items, right.items)
        if isinstance(answer, Group) and isinstance(right, Group):
            answer, right = _vector(answer), _vector(right)
            return (
                answer.brackets == right.brackets
                and len(answer.items) == len(right.items)
                and all(map(self.same, answer.items, right.items))
            )
        return False

    def unordered(self, answers: tuple[Node, ...], rights: tuple[Node, ...]) -> bool:
        """As multisets: equality is transitive, so the first partner that fits is as good as any."""
        open_answers = list(answers)
        for index, right in enumerate(rights):
            order = sorted(range(len(open_answers)), key=lambda at: answers.index(open_answers[at]) != index)
            partner = next((at for at in order if self.same(open_answers[at], right)), None)
            if partner is None:
                return False
            del open_answers[partner]
        return True

    def scalars(self, answer: Scalar, right: Scalar) -> bool:
        if answer.unit and right.unit and answer.unit != right.unit:
            return False
        left, gold = self._number(answer), self._number(right)
        if left is None or gold is None:
            return False
        if _squeezed(left) == _squeezed(gold):
            return bool(left)
        spoken = _spoken(left, gold)
        return self.formulas(left, gold) if spoken is None else spoken

    def _number(self, value: Scalar) -> str | None:
        """The text of a value under the rules for percent signs and powers of ten; None where they refuse it."""
        text = value.text
        if scientific := _SCIENTIFIC.fullmatch(text):
            if self.rules.scientific == "refused":
                return None
            text = f"{scientific[1]}*10^{{{scientific[2]}}}"
        if value.percent and self.rules.percent == "number":
            return f"({text})/100"
        return text

    def formulas(self, answer: str, right: str) -> bool:
        answer, right = _approximated(answer, right)
        told, asked_for = _EQUALS.split(answer), _EQUALS.split(right)
        if len(asked_for) > 1 and _NAME.fullmatch(asked_for[0].strip()):
            same_name = len(told) == 1 or _squeezed(told[0]) == _squeezed(asked_for[0])
            if same_name and self.values(told[-1].strip(), asked_for[-1].strip()):
                return True
        elif len(asked_for) == 1:
            return self.values(told[-1].strip(), right)
        return len(told) == len(asked_for) == 2 and self.equations(told, asked_for)

    def equations(self, told: list[str], asked_for: list[str]) -> bool:
        try:
            one, other = (algebra.difference(*map(algebra.read, sides)) for sides in (told, asked_for))
            return algebra.proportional(one, other)
        except algebra.UnreadableError:
            return self.math_verify("=".join(told), "=".join(asked_for))

    def values(self, answer: str, right: str) -> bool:
        if not answer or not right:
            return False
        if _squeezed(answer) == _squeezed(right):
            return True
        based = _BASE.fullmatch(answer), _BASE.fullmatch(right)
        if any(based):
            return _same_in_base(answer, right)
        read: list[algebra.Formula | None] = []
        too_large = []
        for text in (answer, right):
            try:
                read.append(algebra.read(text))
            except algebra.NonsenseError:
                return False
            except algebra.TooLargeError:
                too_large.append(text)
            except algebra.UnreadableError:
                read.append(None)
        if too_large:
            return False  # no gold is too large to be written, and two such numbers have been compared as texts
        one, other = read
        if one is not None and other is not None:
            return _equal(one, other)
        return self.math_verify(answer, right)

    def math_verify(self, answer: str, right: str) -> bool:
        answer, right = _radians(answer), _radians(right)
        if not _is_formula(answer) or not _is_formula(right) or self.asked >= MAX_ASKED:
            return False
        self.asked += 1
        said = self.ask(right, answer)
        if said == "limit":  # one answer may cost one limit, however many formulas it lists
            self.asked = MAX_ASKED
        return said == "equal"


def _equal(one: algebra.Formula, other: algebra.Formula) -> bool:
    try:
        return algebra.equal(one, other)
    except algebra.UnreadableError:  # the products do not fit: then neither do the numbers
        return False


def _vector(group: Group) -> Group:
    """A matrix of one row or column is a point."""
    if group.brackets != "rows":
        return group
    rows = [row.items for row in group.items if isinstance(row, Group)]
    if len(rows) == 1:
        return Group(rows[0], "()")
    if all(len(row) == 1 for row in rows):
        return Group(tuple(row[0] for row in rows), "()")
    return group


def _spoken(answer: str, right: str) -> bool | None:
    """Whether words are the words of the gold; None where the gold is a formula."""
    if choice := _CHOICE.fullmatch(right):
        chosen = _CHOSEN.match(answer)
        return bool(chosen) and (chosen[1] or chosen[2]).upper() == (choice[1] or choice[2]) if chosen else False
    gold = notation.words(right)
    if gold is None:
        return None
    if not right.startswith(r"\text") and ("\\" in right or len(gold) < (4 if right.islower() else 3)):
        return None  # a product of letters
    return notation.words(answer) == gold


def _approximated(answer: str, right: str) -> tuple[str, str]:
    """Of `exact \\approx decimal` the side of the gold's kind: a decimal where the gold is one."""
    sides = answer.split(r"\approx")
    if len(sides) == 2:
        decimal = re.fullmatch(r"-?[0-9]*\.[0-9]+", right)
        answer = sides[1 if decimal else 0].strip() or sides[1].strip()
    return answer, right


def _same_in_base(answer: str, right: str) -> bool:
    """Numerals to a base: of the same base where both say one, of the same digits where the prediction says none.
    Where the gold says none it means ten."""
    told, gold = _BASE.fullmatch(answer), _BASE.fullmatch(right)
    if gold and told:
        return _base(told) == _base(gold) and told[1].lstrip("0") == gold[1].lstrip("0")
    if gold:
        return answer.strip().isdecimal() and answer.strip().lstrip("0") == gold[1].lstrip("0")
    try:
        value = algebra.read(right).number
    except algebra.UnreadableError:
        return False
    return told is not None and _base(told) == 10 and value == Fraction(int(told[1]))


def _base(numeral: re.Match[str]) -> int:
    return int(numeral[2] or numeral[3])


def _radians(text: str) -> str:
    """`\\sin 30^\\circ` means degrees."""
    return re.sub(r"([0-9]+(?:\.[0-9]+)?) ?\\deg ?", r"(\\frac{\1\\pi}{180})", text)


def _is_formula(text: str) -> bool:
    """Whether a text can be one at all. Prose and anything that only a program would read stay here."""
    if not _FORMULA.fullmatch(text) or _LONG_WORD.search(text) or _LOST_DIGIT.search(text) or "__" in text:
        return False
    if text.count(",") > 3 or len(notation.parts(text, ",;")) > 1:  # a list is compared here or not at all
        return False
    commands = set(re.findall(r"\\[A-Za-z]+", text))
    if not commands <= _COMMANDS | algebra.LETTERS:
        return False
    return text.count("{") == text.count("}") and bool(re.search("[0-9A-Za-z]", text))
