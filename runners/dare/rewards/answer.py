"""Where the answer stands in a completion: one rule, shared by training rewards and evaluation scores."""

from __future__ import annotations

from typing import Literal

OPENING, CLOSING = "<answer>", "</answer>"


def extract(
    text: str, *, tags: Literal["required", "optional"], which: Literal["last", "first"] = "last"
) -> str | None:
    """The content of the last closed `<answer>` tag, line breaks kept inside, white space stripped at both ends.

    Without a closed tag the answer is the whole text where the task declares tags optional, and none where it
    declares them required. Nothing between the tags is no answer either. `which="first"` exists to compare with
    published scorers that read the first tag. Linear in the length of the text, which a regular expression is not.
    """
    end = text.rfind(CLOSING)
    start = text.find(OPENING) if which == "first" else text.rfind(OPENING, 0, max(end, 0))
    if start >= 0:
        end = text.find(CLOSING, start)
    if start >= 0 and end >= 0:
        return text[start + len(OPENING) : end].strip() or None
    return (text.strip() or None) if tags == "optional" else None
