"""The process that asks math-verify whether two formulas are equal: a line of JSON in, a line out.

Started by `mathverify`, as a file and not as a module of ours: it imports nothing of the package. A pair that takes
more than its share of processor time ends the process by a signal that no library can hold back; the parent notices.

Math-verify parses; what it calls equal is not always equal (an absolute tolerance), so numbers and formulas are
compared here, at several points, to 30 significant digits. Its own word counts for the rest: equations, inequalities.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

LIFE = 500
"""Pairs after which the process ends: the caches of the libraries grow."""
LIFE_SECONDS = 600
DIGITS = 40
CLOSE = 30
POINTS = ((3, 7, 11, 5), (5, 3, 7, 11), (13, 9, 4, 7), (-4, 3, 9, 5), (7, -6, -5, 8), (-9, -8, 7, -5))
"""Numerators of the values that letters get; the first three have no minus."""


def main() -> None:
    """Answers until the input ends. The limits are the arguments: seconds for a pair, bytes of address space."""
    seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever a library prints is no answer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (LIFE_SECONDS, LIFE_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    logging.disable(logging.CRITICAL)
    compare = _comparison()
    _say(answers, {"ready": True})
    for count, line in enumerate(sys.stdin, 1):
        gold, prediction = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        said = _verdict(compare, gold, prediction)
        signal.setitimer(signal.ITIMER_PROF, 0)
        last = count >= LIFE or said["verdict"] == "memory"
        _say(answers, {**said, "last": last})
        if last:
            return


def _say(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _verdict(compare: Callable[[str, str], str], gold: str, prediction: str) -> dict[str, Any]:
    try:
        return {"verdict": compare(gold, prediction)}
    except MemoryError:
        return {"verdict": "memory"}
    except RecursionError:
        return {"verdict": "unreadable"}
    except Exception as error:  # of any library below: said, counted and never taken for a wrong answer
        return {"verdict": "failed", "why": f"{type(error).__name__}: {error}"[:300]}


def _comparison() -> Callable[[str, str], str]:
    """The libraries, imported here and nowhere else."""
    import sympy
    from math_verify import parse, verify
    from math_verify.parser import LatexExtractionConfig

    configuration = [LatexExtractionConfig()]

    def read(text: str) -> Any:
        found = parse(
            f"${text}$",
            extraction_config=configuration,
            fallback_mode="no_fallback",
            extraction_mode="first_match",
            parsing_timeout=None,
        )
        expression = next((one for one in found if isinstance(one, (sympy.Basic, sympy.MatrixBase))), None)
        if expression is None:
            return None
        floats = {one: sympy.Rational(str(one)) for one in expression.atoms(sympy.Float)}
        meant = {"i": sympy.I, "e": sympy.E}
        constants = {one: meant[one.name] for one in expression.free_symbols if one.name in meant}
        return expression.xreplace({**floats, **constants})

    def values(one: Any, other: Any) -> Iterator[tuple[int, Any, Any]]:
        letters = sorted(one.free_symbols | other.free_symbols, key=str)
        for number, point in enumerate(POINTS if letters else POINTS[:1]):
            chosen = {
                letter: sympy.Rational(point[index % 4] + 2 * (index // 4), 6 + index)
                for index, letter in enumerate(letters)
            }
            pair = [sympy.N(side.subs(chosen).doit(), DIGITS) for side in (one, other)]
            if all(side.is_number and side.is_finite for side in pair):
                yield number, *pair

    def close(one: Any, other: Any) -> bool:
        largest = max(abs(one), abs(other))
        return bool(largest == 0 or abs(one - other) <= largest * sympy.Float(10) ** -CLOSE)

    def formulas(one: Any, other: Any) -> bool | None:
        """Whether two formulas have the same values wherever both have one; None where that cannot be told."""
        told = 0
        for number, left, right in values(one, other):
            if number > 2 and not (left.is_real and right.is_real):
                continue  # beyond where a root or a logarithm is meant
            if not close(left, right):
                if max(abs(left), abs(right)) > sympy.Float(10) ** -60:
                    return False
                return bool(sympy.simplify(one - other) == 0)
            told += 1
        return True if told >= (3 if one.free_symbols | other.free_symbols else 1) else None

    def equations(one: Any, other: Any) -> bool | None:
        """Whether one says the other times a constant; None where that cannot be told."""
        sides = [equation.lhs - equation.rhs for equation in (one, other)]
        ratios = [left / right for _, left, right in values(*sides) if right != 0]
        if len(ratios) < 3 or ratios[0] == 0:
            return None
        return True if all(close(ratio, ratios[0]) for ratio in ratios) else None

    def read_answer(text: str) -> Any:
        """None too where the libraries choke on it: an answer without a value is no failure of theirs."""
        try:
            answer = read(text)
            for side in answer.args if isinstance(answer, sympy.Eq) else (answer,):
                if isinstance(side, sympy.Expr):
                    next(values(side, side), None)
        except (MemoryError, RecursionError):
            raise
        except Exception:
            return None
        return answer

    def compare(gold: str, prediction: str) -> str:
        right, answer = read(gold), read_answer(prediction)
        if right is None or answer is None:
            return "unreadable"
        said: bool | None = None
        if isinstance(right, sympy.Expr) and isinstance(answer, sympy.Expr):
            said = formulas(right, answer)
        elif isinstance(right, sympy.Eq) and isinstance(answer, sympy.Eq):
            said = equations(right, answer)
        if said is None:  # in both directions: it is not symmetric where one side is an equation
            said = any(verify(*pair, timeout_seconds=None) for pair in ((right, answer), (answer, right)))
        return "equal" if said else "different"

    return compare


if __name__ == "__main__":
    main()
