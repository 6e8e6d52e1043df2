r"""Exact arithmetic of formulas: what `\frac{1}{1+\sqrt2}` or `(a+5)(b+2)` is, so that two of them can be compared.

A formula is a quotient of two polynomials over the rationals in letters, `\pi`, `i` and radicals of primes. Products
of radicals of different primes are linearly independent over the rationals (Besicovitch), `i` is independent of them as
they are real, and letters, `\pi` among them, are taken as independent. So both answers, equal and different, are
proofs. There is no floating point, and what is no such quotient, a sine or `2^n`, is refused and left to others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import factorial
from typing import NamedTuple

MAX_LENGTH = 400
MAX_DEPTH = 30
MAX_TERMS = 100
MAX_BITS = 100_000
"""Of a numerator or denominator: numbers of 30,000 digits are exact, `9^{9^9}` is too large to be written."""
MAX_FACTORIAL = 3_000
MAX_RADICAND = 10**10
MAX_DIGITS = 1_000


class UnreadableError(ValueError):
    """The text is no formula of this kind: somebody else has to say what it is."""


class NonsenseError(UnreadableError):
    """No formula at all: a number where none can be, as in `x 3` or `2 3`, or a division by zero."""


class TooLargeError(UnreadableError):
    """A number that cannot be written down: it is no number that can."""


Monomial = tuple[tuple[str, Fraction], ...]
"""Sorted atoms with their exponents. An atom is a letter, `i`, or a prime whose exponent is below one."""
Polynomial = Mapping[Monomial, Fraction]
_ONE: Monomial = ()


class Formula(NamedTuple):
    """The quotient `over / under`; `under` is not zero."""

    over: Polynomial
    under: Polynomial

    @property
    def number(self) -> Fraction | None:
        """Its value where it is a rational number."""
        if not self.over:
            return Fraction(0)
        if self.over.keys() == self.under.keys() == {_ONE}:
            return self.over[_ONE] / self.under[_ONE]
        return None


def equal(one: Formula, other: Formula) -> bool:
    """Whether the two are the same."""
    return _product(one.over, other.under) == _product(other.over, one.under)


def approximate(formula: Formula) -> Fraction | None:
    """Its value to some forty digits where it is a real number in radicals and pi, else None."""
    over, under = (_approximate(side) for side in formula)
    return None if over is None or not under else over / under


_PI = Fraction("3.14159265358979323846264338327950288419716939937510582")


def _approximate(polynomial: Polynomial) -> Fraction | None:
    total = Fraction(0)
    for monomial, value in polynomial.items():
        for name, exponent in monomial:
            if name == r"\pi" and exponent.denominator == 1:
                value *= _PI ** int(exponent)
            elif name.isdecimal():
                value *= _root(int(name) ** exponent.numerator, exponent.denominator)
            else:
                return None
        total += value
    return total


def _root(value: int, degree: int) -> Fraction:
    """By Newton's rounded-down integer root, forty digits behind the point."""
    scaled = value * 10 ** (40 * degree)
    root = 1 << -(-scaled.bit_length() // degree)
    while (better := ((degree - 1) * root + scaled // root ** (degree - 1)) // degree) < root:
        root = better
    return Fraction(root, 10**40)


def proportional(one: Formula, other: Formula) -> bool:
    """Whether one is a rational multiple of the other, not zero times: `2x = 4` says what `x - 2 = 0` says."""
    left, right = _product(one.over, other.under), _product(other.over, one.under)
    if left.keys() != right.keys() or not left:
        return False
    return len({left[monomial] / right[monomial] for monomial in left}) == 1


def _constant(value: Fraction) -> Formula:
    return Formula({_ONE: value} if value else {}, {_ONE: Fraction(1)})


def _atom(name: str, exponent: Fraction = Fraction(1)) -> Formula:
    return Formula({((name, exponent),): Fraction(1)}, {_ONE: Fraction(1)})


def _checked(polynomial: dict[Monomial, Fraction]) -> Polynomial:
    if len(polynomial) > MAX_TERMS:
        raise UnreadableError("too many terms")
    if any(value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS for value in polynomial.values()):
        raise TooLargeError("a coefficient is too large")
    return polynomial


def _sum(one: Polynomial, other: Polynomial, sign: int = 1) -> Polynomial:
    total = dict(one)
    for monomial, value in other.items():
        total[monomial] = total.get(monomial, Fraction(0)) + sign * value
        if not total[monomial]:
            del total[monomial]
    return _checked(total)


def _product(one: Polynomial, other: Polynomial) -> Polynomial:
    if len(one) * len(other) > 20 * MAX_TERMS:
        raise UnreadableError("too many terms")
    total: dict[Monomial, Fraction] = {}
    for left, value in one.items():
        for right, other_value in other.items():
            monomial, factor = _merged(left, right)
            total[monomial] = total.get(monomial, Fraction(0)) + value * other_value * factor
    return _checked({monomial: value for monomial, value in total.items() if value})


def _merged(left: Monomial, right: Monomial) -> tuple[Monomial, Fraction]:
    """The product of two monomials, and the rational factor that radicals and the square of `i` leave."""
    if not left or not right:
        return left or right, Fraction(1)
    exponents = dict(left)
    for name, exponent in right:
        exponents[name] = exponents.get(name, Fraction(0)) + exponent
    factor = Fraction(1)
    for name, exponent in list(exponents.items()):
        if name == "i":
            factor *= (-1) ** (int(exponent) // 2 % 2)
            exponents[name] = exponent % 2
        elif name.isdecimal():
            factor *= Fraction(int(name)) ** int(exponent // 1)
            exponents[name] = exponent % 1
        if not exponents[name]:
            del exponents[name]
    return tuple(sorted(exponents.items())), factor


def _times(one: Formula, other: Formula) -> Formula:
    return Formula(_product(one.over, other.over), _product(one.under, other.under))


def _over(one: Formula, other: Formula) -> Formula:
    if not other.over:
        raise NonsenseError("a division by zero")
    return _times(one, Formula(other.under, other.over))


def _plus(one: Formula, other: Formula, sign: int = 1) -> Formula:
    if one.under == other.under:
        return Formula(_sum(one.over, other.over, sign), one.under)
    left, right = _product(one.over, other.under), _product(other.over, one.under)
    return Formula(_sum(left, right, sign), _product(one.under, other.under))


def difference(one: Formula, other: Formula) -> Formula:
    """One less the other."""
    return _plus(one, other, -1)


def power(base: Formula, exponent: Formula) -> Formula:
    """A rational power of a number or of one letter, a whole power of anything that stays small."""
    by = exponent.number
    if by is None:
        raise UnreadableError("an exponent that is no number")
    if by.denominator == 1:
        return _whole_power(base, int(by))
    number = base.number
    if number is not None:
        return _radical(number, by)
    if len(base.over) == 1 and base.under == {_ONE: Fraction(1)}:
        ((monomial, value),) = base.over.items()
        if value > 0 and all(exponent == 1 and name != "i" and not name.isdecimal() for name, exponent in monomial):
            letters = tuple((name, by) for name, _ in monomial)
            return _times(_radical(value, by), Formula({letters: Fraction(1)}, {_ONE: Fraction(1)}))
    raise UnreadableError("a root of a sum")


def _whole_power(base: Formula, by: int) -> Formula:
    if by < 0:
        return _over(_constant(Fraction(1)), _whole_power(base, -by))
    number = base.number
    if number is not None:
        if by and abs(number) not in (0, 1):
            bits = max(number.numerator.bit_length(), number.denominator.bit_length()) - 1 or 1
            if bits * by > MAX_BITS:
                raise TooLargeError("a power is too large")
        return _constant(number**by)
    if len(base.over) == len(base.under) == 1:
        if by > MAX_BITS:
            raise UnreadableError("an exponent is too large")
    elif by > 64:
        raise UnreadableError("too many terms")
    result, square = _constant(Fraction(1)), base
    while by:
        if by & 1:
            result = _times(result, square)
        by >>= 1
        square = _times(square, square) if by else square
    return result


def _radical(number: Fraction, by: Fraction) -> Formula:
    """A rational power of a rational number, the positive one; of a negative number only the square root."""
    if not number:
        if by < 0:
            raise NonsenseError("a division by zero")
        return _constant(Fraction(0))
    if number < 0:
        if by.denominator % 2:  # the real root
            return _times(_constant(Fraction(-1 if by.numerator % 2 else 1)), _radical(-number, by))
        if by != Fraction(1, 2):
            raise UnreadableError("a root of a negative number")
        return _times(_atom("i"), _radical(-number, by))
    if by.denominator > 60 or abs(by.numerator) > 600:
        raise UnreadableError("a root of a high degree")
    whole, rest = Fraction(1), {}
    for value, sign in ((number.numerator, 1), (number.denominator, -1)):
        for prime, count in _factors(value, by.denominator).items():
            exponent = by * count * sign
            whole *= Fraction(prime) ** int(exponent // 1)
            if exponent % 1:
                rest[str(prime)] = exponent % 1
    return Formula({tuple(sorted(rest.items())): whole}, {_ONE: Fraction(1)})


@lru_cache(1024)
def _factors(value: int, degree: int) -> Mapping[int, int]:
    if value > MAX_RADICAND:
        root = round(value ** (1 / degree)) if value < 10**300 else 0
        if root <= MAX_RADICAND and root**degree == value:
            return {prime: count * degree for prime, count in _factors(root, 1).items()}
        raise UnreadableError("a root of a large number")
    found: dict[int, int] = {}
    prime = 2
    while prime * prime <= value:
        while value % prime == 0:
            found[prime] = found.get(prime, 0) + 1
            value //= prime
        prime += 1 if prime == 2 else 2
    if value > 1:
        found[value] = found.get(value, 0) + 1
    return found


_DIGITS = re.compile(r"[0-9]+")
_NUMBER = re.compile(
    r"(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*)(?:\\overline(?:\{(?P<repeated>[0-9]+)\}|(?P<one>[0-9])))?)?"
)
_PROPER = re.compile(
    r" *\\frac ?(?:\{ ?([0-9]{1,9}) ?\}|([0-9])) ?(?:\{ ?([0-9]{1,9}) ?\}|([0-9]))| +([0-9]{1,9})/([0-9]{1,9})(?![0-9])"
)
_COMMAND = re.compile(r"\\[A-Za-z]+|\\.")
_SUBSCRIPT = re.compile(r"_(?:\{([A-Za-z0-9]{1,8})\}|([A-Za-z0-9]))")
LETTERS = frozenset(
    re.findall(
        r"\S+",
        r"""\alpha \beta \gamma \delta \epsilon \varepsilon \zeta \eta \theta \vartheta \iota \kappa \lambda \mu \nu \xi
    \pi \rho \sigma \tau \phi \varphi \chi \psi \omega \Gamma \Delta \Theta \Lambda \Xi \Pi \Sigma \Phi \Psi \Omega
    \ell \infty""",
    )
)
_SAME_LETTER = {r"\varepsilon": r"\epsilon", r"\vartheta": r"\theta", r"\varphi": r"\phi"}
_TIMES = (r"\cdot", r"\times", r"\ast")
_FUNCTIONS = frozenset("fghFGH")
"""Letters that name a function where a bracket follows: `f(2x)` is not `2f(x)`."""
_STARTS = re.compile(r"[A-Za-z({]|\\(?:frac|sqrt|[a-zA-Z]+)")


@lru_cache(1024)
def read(text: str) -> Formula:
    """The formula that a text is, and the whole text: spaces, `\\left` and the like are gone already."""
    if len(text) > MAX_LENGTH:
        raise UnreadableError("too long")
    reader = _Reader(text)
    formula = reader.sum(0)
    if reader.peek():
        raise UnreadableError(f"{reader.peek()!r} is not expected")
    return formula


class _Reader:
    """Recursive descent over the characters of a formula."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def peek(self) -> str:
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1
        return self.text[self.at : self.at + 1]

    def command(self) -> str:
        self.peek()
        found = _COMMAND.match(self.text, self.at)
        return found.group() if found else ""

    def take(self, *words: str) -> bool:
        self.peek()
        for word in words:
            if self.text.startswith(word, self.at):
                after = self.text[self.at + len(word) : self.at + len(word) + 1]
                if word.startswith("\\") and word[1:].isalpha() and after.isalpha():
                    continue
                self.at += len(word)
                return True
        return False

    def need(self, word: str) -> None:
        if not self.take(word):
            raise UnreadableError(f"{word!r} is missing")

    def sum(self, depth: int) -> Formula:
        if depth > MAX_DEPTH:
            raise UnreadableError("too deep")
        negative = self.signs()
        total = self.term(depth)
        if negative:
            total = _times(_constant(Fraction(-1)), total)
        while self.peek() in ("+", "-"):
            negative = self.signs()
            total = _plus(total, self.term(depth), -1 if negative else 1)
        return total

    def signs(self) -> bool:
        negative = False
        while sign := self.peek():
            if sign not in "+-":
                break
            negative ^= sign == "-"
            self.at += 1
        return negative

    def term(self, depth: int) -> Formula:
        product = self.factor(depth)
        while True:
            if self.take("**"):
                raise UnreadableError("a power of a product")
            if self.take("*", *_TIMES):
                product = _times(product, self.signed(depth))
            elif self.take("/", r"\div"):
                product = _over(product, self.signed(depth))
            elif self.peek() and self.peek() in "0123456789.":
                raise NonsenseError(f"a number after {self.text[: self.at][-20:]!r}")
            elif _STARTS.match(self.text, self.at):  # `2x`, `(x+1)(x-1)`
                product = _times(product, self.factor(depth))
            else:
                return product

    def signed(self, depth: int) -> Formula:
        negative = self.signs()
        factor = self.factor(depth)
        return _times(_constant(Fraction(-1)), factor) if negative else factor

    def factor(self, depth: int) -> Formula:
        value = self.primary(depth)
        while self.take("!"):
            number = value.number
            if number is None or number.denominator != 1 or number < 0:
                raise UnreadableError("the factorial of no number")
            if number > MAX_FACTORIAL:
                raise TooLargeError("a factorial is too large")
            value = _constant(Fraction(factorial(int(number))))
        if self.take("^", "**"):
            value = power(value, self.exponent(depth + 1))
        return value

    def exponent(self, depth: int) -> Formula:
        if depth > MAX_DEPTH:
            raise UnreadableError("too deep")
        if self.peek() == "{":
            return self.argument(depth)
        negative = self.signs()
        value = self.primary(depth)  # all digits: who writes 2^10 without braces means 1024
        if self.take("^", "**"):
            value = power(value, self.exponent(depth + 1))
        return _times(_constant(Fraction(-1)), value) if negative else value

    def argument(self, depth: int) -> Formula:
        """Of a command: a group in braces, one command, or one character."""
        self.peek()
        if self.take("{"):
            value = self.sum(depth + 1)
            self.need("}")
            return value
        character = self.peek()
        if character.isdecimal():
            self.at += 1
            return _constant(Fraction(int(character)))
        return self.primary(depth + 1)

    def primary(self, depth: int) -> Formula:
        if depth > MAX_DEPTH:
            raise UnreadableError("too deep")
        character = self.peek()
        for opened, closed in (("(", ")"), ("[", "]"), ("{", "}")):
            if self.take(opened):
                value = self.sum(depth + 1)
                self.need(closed)
                return value
        if character and character in "0123456789.":
            return self.numeral(depth)
        if character.isascii() and character.isalpha():
            return self.letter(character)
        command = self.command()
        if command == r"\frac":
            self.at += len(command)
            over = self.argument(depth)
            return _over(over, self.argument(depth))
        if command == r"\sqrt":
            return self.root(depth)
        if command == r"\binom":
            self.at += len(command)
            return _binomial(self.argument(depth).number, self.argument(depth).number)
        if command in LETTERS:
            return self.letter(command)
        raise UnreadableError(f"{command or character!r} is not known")

    def letter(self, name: str) -> Formula:
        self.at += len(name)
        if name in _FUNCTIONS and self.text[self.at : self.at + 1] == "(":
            raise UnreadableError("a function")
        name = _SAME_LETTER.get(name, name)
        if subscript := _SUBSCRIPT.match(self.text, self.at):
            self.at = subscript.end()
            name += f"_{subscript[1] or subscript[2]}"
        return _atom(name)

    def numeral(self, depth: int) -> Formula:
        found = _NUMBER.match(self.text, self.at)
        if found is None or not any(found.group(name) for name in ("whole", "part", "repeated", "one")):
            raise UnreadableError("no number")
        if len(found.group()) > MAX_DIGITS:
            raise UnreadableError("too many digits")
        self.at = found.end()
        whole, part, repeated = found["whole"], found["part"] or "", found["repeated"] or found["one"]
        value = Fraction(int(whole + part or "0"), 10 ** len(part))
        if repeated:
            value += Fraction(int(repeated), (10 ** len(repeated) - 1) * 10 ** len(part))
        if whole and found["part"] is None and (proper := _PROPER.match(self.text, self.at)):
            over, under = (int(digits) for digits in proper.groups() if digits)
            if over < under:  # a mixed number
                self.at = proper.end()
                value += Fraction(over, under)
        if self.text[self.at : self.at + 1] in ("_", "."):
            raise UnreadableError("a number to some base")
        return _constant(value)

    def root(self, depth: int) -> Formula:
        self.need(r"\sqrt")
        degree = _constant(Fraction(2))
        if self.take("["):
            degree = self.sum(depth + 1)
            self.need("]")
        number = degree.number
        if number is None or number.denominator != 1 or number < 2:
            raise UnreadableError("a root of no degree")
        if digits := _DIGITS.match(self.text, self.at + (self.peek() == "")):
            self.at = digits.end()  # all of them: who writes \sqrt13 without braces means thirteen
            return _radical(Fraction(int(digits.group()[:MAX_DIGITS])), 1 / number)
        return power(self.argument(depth), _constant(1 / number))


def _binomial(n: Fraction | None, k: Fraction | None) -> Formula:
    if n is None or k is None or n.denominator != 1 or k.denominator != 1 or not 0 <= k <= n <= MAX_FACTORIAL:
        raise UnreadableError("a binomial of no numbers")
    return _constant(Fraction(factorial(int(n)) // factorial(int(k)) // factorial(int(n - k))))
