"""Boards as HTML files that need no server: the site's own table, styles inline, no script, nothing fetched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from dare_platform import rankings, snapshots
from dare_platform.board import Board
from dare_platform.database import open_database
from dare_platform.errors import PlatformError
from dare_platform.settings import Settings
from dare_platform.tracks import Track
from dare_platform.verdict import unescaped
from leaderboard import links, tables, texts, theme
from leaderboard.links import BoardChoices, BoardView

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 0 auto; max-width: 1280px; padding: 24px 16px; }}
body {{ font-family: "Source Sans 3", "Source Sans Pro", system-ui, sans-serif; }}
h1 {{ font-size: 28px; }}
{styles}
.stApp {{ background: var(--background); color: var(--text); }}
</style>
</head>
<body class="stApp">
{body}
</body>
</html>
"""
_LINK = re.compile(r'<a\b([^>]*?)href="([^"]*)"([^>]*)>(.*?)</a>', re.DOTALL)


class ExportError(PlatformError):
    """The files cannot be written there."""


def export(settings: Settings, folder: Path, track: Track, backbones: Sequence[str] = ()) -> list[Path]:
    """Write a file for each board, and an index where there are several; each board is kept as a snapshot too.

    UnknownTrackError for a backbone that the track has not. A file is whole or not there.
    """
    chosen = list(backbones) or list(track.backbones)
    with open_database(settings) as database, database.write() as session:
        boards = [rankings.board(session, track, backbone) for backbone in chosen]
        for backbone in chosen:
            snapshots.take(session, track, backbone)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = [_write(folder / f"{board.backbone}.html", page(board, settings.public_url)) for board in boards]
        if len(boards) > 1:
            written.append(_write(folder / "index.html", index(track, boards)))
    except OSError as error:
        raise ExportError(f"nothing can be written to {folder}: {error.strerror or error}") from error
    return written


def page(board: Board, site: str | None = None) -> str:
    """One board as a document. Links lead to the site where its address is known, and are plain text where not."""
    choices = BoardChoices((board.backbone,), (board.track,), links.sorts_of(board))
    table = tables.board_table(board, BoardView(board.backbone, board.track), choices, sortable=False)
    body = "\n".join(
        (
            f"<h1>{escape(texts.QUESTION)}</h1>",
            f"<p>{escape(unescaped(board.verdict.replace('**', '')))}</p>",
            _settled(table, site),
            f'<div class="dare"><p class="second">{_made(board)}</p></div>',
        )
    )
    return _document(f"{board.backbone}, track {board.track} {board.version}", body)


def index(track: Track, boards: Sequence[Board]) -> str:
    """The list of the boards beside it."""
    items = "".join(
        f'<li><a href="{escape(board.backbone)}.html">{escape(board.backbone)}</a></li>' for board in boards
    )
    summary = escape(" ".join(track.summary.split()))
    return _document(
        f"DARE, track {track.name}",
        f'<h1>{escape(track.title)}</h1><p>{summary}</p><div class="dare"><ul>{items}</ul></div>',
    )


def _document(title: str, body: str) -> str:
    return PAGE.format(title=escape(title), styles=theme.styles(), body=body)


def _settled(html: str, site: str | None) -> str:
    """Links of a page of the site, for a file that is somewhere else."""

    def settle(found: re.Match[str]) -> str:
        before, href, after, inner = found.groups()
        if site is None and inner == tables.ABOUT:  # says nothing where it leads nowhere
            return ""
        if site is None:
            return f"<span{before.rstrip()}{after}>{inner}</span>"
        return f'<a{before}href="{escape(site)}/{href}"{after}>{inner}</a>'

    return _LINK.sub(settle, html)


def _made(board: Board) -> str:
    made = datetime.fromtimestamp(board.made_at, UTC)
    return (
        f"Board of {made:%Y-%m-%d %H:%M} UTC, scorer {escape(board.scorer)}, SHA-256 <code>{board.digest}</code>. "
        f"Where it was made, <code>dare verify {board.digest[:12]}</code> checks it and every answer behind it."
    )


def _write(path: Path, text: str) -> Path:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
    return path
