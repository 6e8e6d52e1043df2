"""Small semantic tables as HTML: on a phone each row becomes a block whose cells carry their column's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Text:
    """A cell of a small table: plain text, where it leads, and how it is aligned or marked."""

    text: str
    href: str | None = None
    title: str | None = None
    number: bool = False
    mark: str = ""
    code: bool = False

    def html(self) -> str:
        """The escaped content."""
        if not self.text:
            return ""
        inner = f"<bdi>{escape(self.text)}</bdi>"
        if self.code:
            inner = f"<code>{inner}</code>"
        if self.mark:
            inner = f'<span class="{self.mark}">{inner}</span>'
        return f'<a href="{escape(self.href)}">{inner}</a>' if self.href else inner


def plain_table(
    heads: Sequence[str], rows: Sequence[Sequence[Text | str]], caption: str, hidden_caption: bool = True
) -> str:
    """A small semantic table. On a phone each row becomes a block whose cells carry their column's name."""
    numbers = {place for row in rows for place, cell in enumerate(row) if isinstance(cell, Text) and cell.number}
    head = "".join(
        f'<th scope="col"{number_class(place in numbers)}>{escape(title)}</th>' for place, title in enumerate(heads)
    )
    body = []
    for row in rows:
        cells = []
        for place, (title, given) in enumerate(zip(heads, row, strict=True)):
            cell = Text(given) if isinstance(given, str) else given
            hint = f' title="{escape(cell.title)}"' if cell.title else ""
            if place == 0:
                named = f' data-name="{escape(title)}"' if cell.number else ""
                cells.append(f'<th scope="row"{named}{number_class(cell.number)}{hint}>{cell.html()}</th>')
            else:
                cells.append(f'<td data-name="{escape(title)}"{number_class(cell.number)}{hint}>{cell.html()}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    legend = f'<caption><span class="{"sr" if hidden_caption else "shown"}">{escape(caption)}</span></caption>'
    return (
        f'<div class="dare"><table class="plain">{legend}<thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def number_class(is_number: bool) -> str:
    """The attribute that aligns a column of numbers."""
    return ' class="number"' if is_number else ""
