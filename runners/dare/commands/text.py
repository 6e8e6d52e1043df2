"""Text of a model on a terminal: nothing in it is ever interpreted, wide characters keep their width."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

PLAIN = Style()
REPLACEMENT = "�"
_CONTROL_PICTURES = 0x2400  # U+2400 to U+241F show the first 32 control characters
_DELETE, _PICTURE_OF_DELETE = 0x7F, "␡"
_HARMLESS_FORMAT = "\u200c\u200d"  # joiners: scripts and emoji need them, and they move no text


def neutral(text: str, keep: str = "\n\t") -> str:
    """The text without anything that a terminal obeys: controls become pictures, direction marks and the like `�`.

    The characters of `keep` stay. What is left is printable, so no escape sequence survives.
    """
    return "".join(character if character in keep else _shown(character) for character in text)


def _shown(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    if code == _DELETE:
        return _PICTURE_OF_DELETE
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in _HARMLESS_FORMAT:
        return REPLACEMENT
    return character


@dataclass(frozen=True)
class Cell:
    """One piece of a canvas: what is shown, how, and whether the eye should be led to it."""

    text: str
    style: Style = PLAIN
    fresh: bool = False


def lay_out(cells: Iterable[Cell], width: int) -> list[list[Cell]]:
    """Lines of at most `width` columns; a piece is broken only where it is longer than a line, or at its newlines."""
    width = max(width, 2)  # a wide character must fit
    lines: list[list[Cell]] = [[]]
    used = 0
    for cell in cells:
        for number, part in enumerate(cell.text.split("\n")):
            if number:
                lines.append([])
                used = 0
            for piece in [part] if cell_len(part) <= width else _chopped(part, width):
                if used + cell_len(piece) > width:
                    lines.append([])
                    used = 0
                if piece:
                    lines[-1].append(Cell(piece, cell.style, cell.fresh))
                    used += cell_len(piece)
    return lines


def _chopped(text: str, width: int) -> list[str]:
    pieces, used = [""], 0
    for character in text:
        size = cell_len(character)
        if used + size > width:
            pieces.append("")
            used = 0
        pieces[-1] += character
        used += size
    return pieces


def shown_lines(lines: Sequence[Sequence[Cell]], height: int) -> Sequence[Sequence[Cell]]:
    """At most `height` of the lines: the last fresh one is among them, with what comes after it where there is room."""
    if len(lines) <= height:
        return lines
    fresh = [number for number, line in enumerate(lines) if any(cell.fresh for cell in line)]
    last = fresh[-1] if fresh else len(lines) - 1
    first = max(0, min(len(lines) - height, last - height // 2))
    return lines[first : first + height]


def as_text(lines: Sequence[Sequence[Cell]]) -> Text:
    """Lines for rich. Pieces are appended as they are: no markup is read in them."""
    text = Text(no_wrap=True, overflow="crop")
    for number, line in enumerate(lines):
        if number:
            text.append("\n")
        for cell in line:
            text.append(cell.text, cell.style)
    return text
