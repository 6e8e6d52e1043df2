r"""How an answer in mathematics is written: typography taken away, and what is left as scalars, lists, tuples, sets.

`1 \pm \sqrt{19}` is two numbers, `\left[\tfrac12, 3\right)` an interval from one half, `5.4 \text{ cents}` the number
5.4 with a unit, `10,\!080` one number and `3, 5, 7` three, `x \in (3,4]` and `3 < x \le 4` the same interval.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

MAX_LENGTH = 1_000
"""Longest answer that is read. No published gold is half as long."""
MAX_ITEMS = 60
MAX_DEPTH = 8

_CHARACTERS = {
    **dict.fromkeys("−‒–—﹣－", "-"),
    "×": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "∙": r"\cdot ",
    "÷": "/",
    "∕": "/",
    "π": r"\pi ",
    "∞": r"\infty ",
    "θ": r"\theta ",
    "√": r"\sqrt ",
    "°": r"\deg ",
    "∪": r"\cup ",
    "∈": r"\in ",
    "±": r"\pm ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "⟨": "(",
    "⟩": ")",
    "∅": r"\emptyset ",
    "’": "'",
    "€": "¤",
    "£": "¤",
    "¢": r"\text{cents}",
    **{
        c: rf"\frac{{{n}}}{{{d}}}"
        for c in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
        for n, _, d in [unicodedata.normalize("NFKC", c).partition("⁄")]
    },
}
_TABLE = str.maketrans(_CHARACTERS)
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ]+")
_SUBSCRIPT = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")

_SCALE = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALES = "|".join(_SCALE)
_REWRITTEN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"(?<!\\)\\\\(?=(?:d?frac|sqrt|pi|text|left|right)(?![A-Za-z]))", r"\\"),  # escaped once too often
        (r"\\\\(?:\[[^\]]{0,9}\])?", r"\\row "),
        (r"\\\$", "¤"),
        (r"\$|\\[()](?![A-Za-z])|\\\[|(?<!\\)\\\](?!\[)", " "),
        (r"(?<=[0-9])(?:,\\[!,]|\{,\}|,\{\}|\\[,!:;])\s*(?=[0-9]{3}(?![0-9]))", ""),  # between groups of digits
        (r"\\[!,:;>](?![A-Za-z])|\\ |~|\\(?:quad|qquad|thinspace|displaystyle|limits)(?![A-Za-z])", " "),
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])(?:\s*\.(?![0-9]))?", ""),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\langle(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])", ")"),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}", r"\\frac{\1}{\2}"),
        (r"\\(?:leq|leqslant)(?![A-Za-z])", r"\\le "),
        (r"\\(?:geq|geqslant)(?![A-Za-z])", r"\\ge "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])", r"\\deg "),
        (r"\\(?:boxed|fbox|framebox)(?![A-Za-z])", ""),
        (
            r"\\(?:mbox|textrm|textbf|textit|textnormal|textsf|mathrm|mathbf|mathit|mathsf|operatorname)\s*\{",
            r"\\text{",
        ),
        (r"\\(?:rm|bf|it)(?![A-Za-z])", " "),
        (r"\\text\{\s*(sin|cos|tan|cot|sec|csc|log|ln)\s*\}", r"\\\1 "),
        (r"(^\s*|[-=+*/({,^]\s*)\\text\{\s*([A-Za-z])\s*\}", r"\1\2"),
        (r"^\s*\\text\{([^{}]*[0-9][^{}]*)\}\s*$", r"\1"),
        (r"\\text\{\s*(-?[0-9][0-9.,/]*)\s*\}", r"\1"),
        (r"\\(?:%|text\{\s*(?:\\?%|percent)\s*\})|%|(?<![A-Za-z])percent(?![A-Za-z])", "%"),
        (r"\\[#&](?![A-Za-z])", " "),
        (r"\\(?:approx|thickapprox)(?![A-Za-z])|≈", r"\\approx "),
        (r"\\begin\{(?:[bBp]?matrix|smallmatrix|array)\}(?:\{[lcr|]*\})?", r"\\matrix "),
        (r"\\end\{(?:[bBp]?matrix|smallmatrix|array)\}", r"\\endmatrix "),
        (r"\\text\{\s*,?\s*(?:and|or)\s*\}|(?<=[\s,])(?:and|or)(?=\s)", ","),
        (r",(?:\s*,)+", ","),
        (r"\s+", " "),
    )
)
_SCALED = re.compile(
    rf"(?<=[0-9])\s*(?:\\text\{{\s*(?:{_SCALES})s?(?![A-Za-z])\s*([^{{}}]*)\}}|(?:{_SCALES})s?(?![A-Za-z]))", re.I
)
_GROUPED = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?!,[0-9])")
_SPACED = re.compile(r"-?[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]+)?")
_INK = re.compile(r"[^\W_]|\\[A-Za-z]")
_COUNT = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def clean(text: str) -> str:
    """The text in one typography: no delimiters, one name for each command; "" where nothing is said. Longer than the
    input at most by a constant factor."""
    text = text[: MAX_LENGTH + 1].strip()
    text = _SUPERSCRIPT.sub(lambda m: "^{" + unicodedata.normalize("NFKC", m[0]).replace("\u2212", "-") + "}", text)
    text = _SUBSCRIPT.sub(lambda m: "_{" + unicodedata.normalize("NFKC", m[0]) + "}", text)
    text = unicodedata.normalize("NFKC", text.translate(_TABLE)).translate(_TABLE)
    for pattern, instead in _REWRITTEN:
        text = pattern.sub(instead, text)
    text = _SCALED.sub(_scaled, text).strip()
    while text and text[-1] in ".,;:" and not text.endswith(".."):
        text = text[:-1].rstrip()
    if text.casefold() in _COUNT:
        return str(_COUNT.index(text.casefold()))
    if not _INK.search(text):
        return ""
    return text.replace(" ", "") if _SPACED.fullmatch(text) else text


def _scaled(found: re.Match[str]) -> str:
    word = re.search(_SCALES, found[0], re.IGNORECASE)
    exponent = _SCALE[word[0].casefold()] if word else 0
    return f"*10^{{{exponent}}}" + (rf"\text{{{found[1]}}}" if found[1] and found[1].strip() else "")


@dataclass(frozen=True)
class Scalar:
    """One value. `text` has neither unit nor percent sign; `unit` is "" where there is none."""

    text: str
    unit: str = ""
    percent: bool = False


@dataclass(frozen=True)
class Group:
    """Items in order between two brackets: a point, an interval, or "rows" of a matrix."""

    items: tuple[Node, ...]
    brackets: str


@dataclass(frozen=True)
class Many:
    """Several answers, or a union of sets, without an order."""

    items: tuple[Node, ...]
    kind: Literal["list", "union"] = "list"


Node = Scalar | Group | Many


_OPENING, _CLOSING = ("(", "[", "{", r"\{", r"\matrix"), (")", "]", "}", r"\}", r"\endmatrix")
_BRACKET = re.compile(r"\\[{}]|\\(?:end)?matrix(?![A-Za-z])|.", re.DOTALL)
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![A-Za-z])")
_MEMBER = re.compile(r"(?:[A-Za-z]|\\[a-z]+) *(?:_\{?\w{1,4}\}?)? *\\in(?![A-Za-z]) *")
_CONDITION = re.compile(r"[A-Za-z] *(?:\\in *[^|:]{1,20})?(?:\||:|\\mid) *(.+)")
_RELATION = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>")
_VARIABLE = re.compile(r"(?:[A-Za-z]|\\theta|\\alpha|\\beta|\\lambda)(?:_\{?\w{1,4}\}?)?")


def parts(text: str, separators: str) -> list[str]:
    """The text at its separators outside all brackets. Half-open intervals have brackets of two kinds."""
    found, start, depth = [], 0, 0
    for piece in _BRACKET.finditer(text):
        symbol = piece.group()
        if symbol in _OPENING:
            depth += 1
        elif symbol in _CLOSING:
            depth -= 1
        elif depth == 0 and symbol in separators:
            found.append(text[start : piece.start()].strip())
            start = piece.end()
    return [*found, text[start:].strip()]


def _enclosed(text: str) -> tuple[str, str, str] | None:
    """The opening bracket, the content and the closing bracket where one pair encloses the whole text."""
    opening = next((o for o in (r"\{", r"\matrix", "(", "[", "{") if text.startswith(o)), None)
    if opening is None:
        return None
    depth = 0
    for piece in _BRACKET.finditer(text):
        symbol = piece.group()
        depth += (symbol in _OPENING) - (symbol in _CLOSING)
        if depth == 0:
            if piece.end() < len(text.rstrip()):
                return None
            return opening, text[len(opening) : piece.start()].strip(), symbol.strip()
    return None


def has_grouped_digits(text: str) -> bool:
    """Whether a comma may be one between thousands as well as one between two numbers."""
    return bool(_GROUPED.search(text))


def parse(text: str, *, thousands: bool, depth: int = 0) -> Node:
    """What a clean text is. With `thousands`, `1,000` outside brackets is one number."""
    if thousands and depth == 0:
        text = _joined(text)
    if depth > MAX_DEPTH:
        return Scalar(text)
    if member := _MEMBER.match(text):
        text = text[member.end() :]
    unions = text.split(r"\cup")
    if len(unions) > 1:
        return Many(tuple(parse(part.strip(), thousands=thousands, depth=depth + 1) for part in unions), "union")
    if (enclosed := _enclosed(text)) is not None:
        return _bracketed(text, *enclosed, depth)
    if structure := _named_or_scaled(text, depth):
        return structure
    items = [item for item in parts(text, ",;") if item]
    if 1 < len(items) <= MAX_ITEMS:
        return _many([parse(item, thousands=False, depth=depth + 1) for item in items])
    return _scalar_or_two(text, depth)


def _named_or_scaled(text: str, depth: int) -> Group | None:
    """`P = (3, 4)` as the point, `\\frac12 \\begin{pmatrix}...` as the matrix multiplied out."""
    *_, value = parts(text, "=")
    if value != text and value:
        named = parse(value, thousands=False, depth=depth + 1)
        return named if isinstance(named, Group) else None
    factor, matrix, rest = text.partition(r"\matrix")
    if not matrix or not (factor := factor.strip().removesuffix(r"\cdot").strip()):
        return None
    rows = parse(matrix + rest, thousands=False, depth=depth + 1)
    if not isinstance(rows, Group) or rows.brackets != "rows":
        return None
    return Group(tuple(_times(factor, row) for row in rows.items), "rows")


def _times(factor: str, row: Node) -> Node:
    if not isinstance(row, Group):
        return row
    factor = "-1" if factor == "-" else factor
    return Group(
        tuple(Scalar(f"({factor})*({c.text})") if isinstance(c, Scalar) else c for c in row.items), row.brackets
    )


def _joined(text: str) -> str:
    level, depths = 0, []
    for piece in _BRACKET.finditer(text):
        symbol = piece.group()
        level += (symbol in _OPENING and symbol != "{") - (symbol in _CLOSING and symbol != "}")
        depths.extend([level] * len(symbol))
    return _GROUPED.sub(lambda m: m[0] if depths[m.start()] else m[0].replace(",", ""), text)


def _bracketed(text: str, opening: str, content: str, closing: str, depth: int) -> Node:
    if opening == "{":
        return parse(content, thousands=False, depth=depth + 1)
    if opening == r"\{" and (condition := _CONDITION.fullmatch(content)):
        return parse(condition[1], thousands=False, depth=depth + 1)
    if opening.startswith(r"\matrix"):
        rows = [row for row in content.split(r"\row") if row.strip()]
        cells = [
            tuple(parse(cell.strip(), thousands=False, depth=depth + 1) for cell in parts(row, "&")) for row in rows
        ]
        return Group(tuple(Group(row, "row") for row in cells), "rows")
    items = parts(content, ",;")
    if len(items) > MAX_ITEMS:
        return Scalar(text)
    inside = [parse(item, thousands=False, depth=depth + 1) for item in items]
    if opening == r"\{":
        return _many(inside)
    if len(inside) == 1:
        if isinstance(inside[0], Group):
            return inside[0]  # brackets around a point or a matrix
        return _scalar_or_two(text, depth)
    return Group(tuple(inside), opening + closing)


def _many(items: list[Node]) -> Node:
    flat: list[Node] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Many) and item.kind == "list" else [item])
    return flat[0] if len(flat) == 1 else Many(tuple(flat))


def _scalar_or_two(text: str, depth: int) -> Node:
    if _PLUS_MINUS.search(text):
        sides = (_signed(text, plus="+", minus="-"), _signed(text, plus="-", minus="+"))
        return Many(tuple(parse(side.strip(), thousands=False, depth=depth + 1) for side in sides))
    return _interval(text) or scalar(text)


def _signed(text: str, plus: str, minus: str) -> str:
    return _PLUS_MINUS.sub(lambda found: plus if found[1] == "pm" else minus, text)


def _interval(text: str) -> Node | None:
    """`3 < x \\le 4` and `x > 2` as intervals."""
    sides = [side.strip() for side in _RELATION.split(text)]
    signs = [sign.replace("\\", "") for sign in _RELATION.findall(text)]
    names = [index for index, side in enumerate(sides) if _VARIABLE.fullmatch(side)]
    if len(sides) not in (2, 3) or len(names) != 1 or (len(sides) == 3 and names[0] != 1):
        return None
    if len(sides) == 3 and {sign in ("<", "le") for sign in signs} not in ({True}, {False}):
        return None
    rising = signs[0] in ("<", "le")
    ends = {"<": "()", ">": "()", "le": "[]", "ge": "[]"}
    if len(sides) == 3:
        low, high = (sides[0], sides[2]) if rising else (sides[2], sides[0])
        first, last = (signs[0], signs[1]) if rising else (signs[1], signs[0])
        return Group((scalar(low), scalar(high)), ends[first][0] + ends[last][1])
    value = scalar(sides[1 - names[0]])
    if rising == (names[0] == 0):
        return Group((scalar(r"-\infty"), value), "(" + ends[signs[0]][1])
    return Group((value, scalar(r"\infty")), ends[signs[0]][0] + ")")


_FUNCTIONS = frozenset(
    re.findall(
        r"\w+",
        "sin cos tan cot sec csc log ln exp sqrt frac max min gcd lcm mod arcsin arccos arctan det",
    )
)
_UNITS = {
    unit: names[0]
    for names in (
        ("deg", "degree", "degrees", r"\deg"),
        ("$", "¤", "dollar", "dollars", "usd", "bucks"),
        ("cent", "cents", "¢"),
        ("in", "inch", "inches"),
        ("ft", "foot", "feet"),
        ("yd", "yard", "yards"),
        ("mi", "mile", "miles"),
        ("mph", "miles per hour", "mi/h", "miles/hour"),
        ("mm", "millimeter", "millimeters"),
        ("cm", "centimeter", "centimeters", "centimetre", "centimetres"),
        ("m", "meter", "meters", "metre", "metres"),
        ("km", "kilometer", "kilometers", "kilometre", "kilometres"),
        ("kg", "kilogram", "kilograms"),
        ("g", "gram", "grams"),
        ("lb", "lbs", "pound", "pounds"),
        ("s", "sec", "secs", "second", "seconds"),
        ("min", "mins", "minute", "minutes"),
        ("h", "hr", "hrs", "hour", "hours"),
        ("rad", "radian", "radians"),
        ("", "unit", "units"),
    )
    for unit in names
}
_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_WORD = re.compile(r"\\text ?\{|\\deg(?![A-Za-z])|(?<![A-Za-z\\])[A-Za-z]{2,}")
_UNIT_TEXT = re.compile(r"(?:\\text ?\{[^{}]*\}|\\deg |\\deg$|[A-Za-z./ -]|\^ ?(?:\{ ?[23] ?\}|[23])|[()])+")
_SQUARE = re.compile(r"\b(?:sq|square)\b\.? ?")
_CUBIC = re.compile(r"\b(?:cu|cubic)\b\.? ?")
_SHORT_UNIT = frozenset(unit for unit in _UNITS if unit.isalpha() and len(unit) > 1)


def scalar(text: str) -> Scalar:
    """One value with its unit and percent sign taken off; a text that is nothing but words stays whole."""
    unit, percent = "", False
    if "¤" in text:
        text, unit = text.replace("¤", "").strip(), "$"
    if word := _WORD.search(text):
        value, tail = text[: word.start()].strip(), text[word.start() :].strip()
        if (
            _has_value(value)
            and _UNIT_TEXT.fullmatch(tail)
            and _names_a_unit(tail, attached=text[word.start() - 1] != " ")
        ):
            text, unit = value, unit or _unit(tail)
    if text.endswith("%"):
        text, percent = text[:-1].strip(), True
    return Scalar(text, unit, percent)


def _has_value(text: str) -> bool:
    """Whether a text that stands before words can have them as its unit. An angle in a function is no unit."""
    if text[-1:] in "+-*/=^_,(\\<>" or any(text.count(o) != text.count(c) for o, c in ("()", "[]", "{}")):
        return False
    return bool(re.search(r"[0-9]|\\pi|[a-zA-Z]\}?$", text)) and not _ANGLE.search(text)


def _names_a_unit(tail: str, attached: bool) -> bool:
    """Whether words after a value are its unit: of `\\text` all are; of bare ones those that no formula has."""
    if tail.startswith("\\"):
        return True
    word = re.match("[A-Za-z]+", tail)
    if word is None or word[0].casefold() in _FUNCTIONS:
        return False
    if word[0].casefold() in _SHORT_UNIT or tail.casefold() in _UNITS:
        return True
    return len(word[0]) >= (4 if attached else 3)


def _unit(tail: str) -> str:
    words = re.sub(r"\\text ?\{([^{}]*)\}", r"\1", tail).replace(r"\deg", "degree")
    words = re.sub(r"[ .{}()]+", " ", words).casefold().strip()
    exponent = ""
    if raised := re.search(r"\^ ?([23])$", words):
        words, exponent = words[: raised.start()].strip(), raised[1]
    for pattern, value in ((_SQUARE, "2"), (_CUBIC, "3")):
        if pattern.search(words):
            words, exponent = pattern.sub("", words).strip(), value
    name = _UNITS.get(words, words[:-1] if words.endswith("s") and len(words) > 3 else words)
    return f"{name}^{exponent}" if exponent and name else name


def words(text: str) -> str | None:
    """A text answer in one spelling, None where the text is no words: no letter case, articles or brackets."""
    bare = re.sub(r"\\text ?\{([^{}]*)\}", r" \1 ", text)
    bare = re.sub(r"[{}()\"'.:*_`]", " ", bare)
    bare = re.sub(r"\s+", " ", bare).strip().casefold()
    if not re.fullmatch(r"[^\W\d_]+(?:[ ,-]+[^\W\d_]+)*", bare):
        return None
    return re.sub(r"^(?:the|an?) (?=.)", "", bare)
