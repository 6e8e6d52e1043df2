"""Hostile answers as strategies: fragments that scorers look for in every order, any Unicode, nesting, right answers
damaged. The fragments and the long texts are those of `studies.fuzz`."""

from __future__ import annotations

from hypothesis import strategies as st

from dare.scoring import MASKS
from studies.fuzz import LONG, PIECES, repeated

FIXED = {
    "nothing": "",
    "spaces": " \n\t\r\f\u2028\u3000",
    "zero bytes": "\x00" * 100,
    "a lone surrogate": "\ud800",
    "byte order marks": "\ufeff" * 3,
    "right to left": "\u202e81",
    "a tower of powers": "9**9**9",
    "a tagged tower": "<answer>9**9**9**9</answer>",
    "a boxed tower": r"\boxed{9^{9^{9^{9}}}}",
    "a factorial": r"\boxed{(10^{10})!}",
    "code": "<answer>__import__('os').system('true')</answer>",
    "division by zero": "<answer>1/0</answer>",
    "a fraction over nothing": r"\boxed{\frac{1}{0}}",
    "an unbalanced box": r"\boxed{\frac{1}{2}",
    "an unclosed fence": "```python\ndef f(:",
    "a mask token": f"<answer>{MASKS[0]}</answer>",
    "every mask token": "".join(MASKS),
    "not a number": "<answer>NaN</answer>",
    "infinity": r"\boxed{\infty}",
    "a huge exponent": r"\boxed{1e999999999}",
    "digits of other scripts": "²½٣１９一",
    "a format string": "{0.__class__} %s %(x)n",
    "a deep record": '{"log_likelihoods": ' + "[" * 10_000,
}
"""Texts by what they are."""

characters = st.characters() | st.sampled_from("\ud800\udfff\x00\x1b\u2028\u202e\u200b")
glued = st.lists(st.sampled_from(PIECES) | st.text(characters, max_size=3), max_size=40).map("".join)
nested = st.builds(
    lambda pair, depth, inside: pair[0] * depth + inside + pair[1] * depth,
    st.sampled_from([("(", ")"), ("{", "}"), (r"\boxed{", "}"), (r"\frac{1}{", "}"), ("<answer>", "</answer>")]),
    st.integers(1, 400),
    glued,
)
long = st.builds(repeated, st.sampled_from(sorted(LONG)), st.integers(10, 2000))


def damaged(right: str) -> st.SearchStrategy[str]:
    """The right answer with other things in it, cut or doubled, or whole in a text that says more."""
    place = st.integers(0, len(right))
    cut = st.builds(lambda a, b, piece: right[:a] + piece + right[b:], place, place, st.sampled_from(PIECES))
    return st.builds(lambda before, answer, after: before + answer + after, glued, cut | st.just(right), glued)


def texts(right: str) -> st.SearchStrategy[str]:
    """Any of them."""
    return st.text(characters) | glued | nested | long | damaged(right)
