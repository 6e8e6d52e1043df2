"""Boards as files: whole documents that ask nobody for anything."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from board_samples import BGPO, FULL, board
from filled_database import Site

from dare_platform.settings import Settings
from dare_platform.snapshots import find
from dare_platform.tracks import UnknownTrackError, load_track
from leaderboard.static_export import ExportError, export, page


class Tags(HTMLParser):
    """What a document is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_file_has_its_styles_inside_no_script_and_fetches_nothing() -> None:
    text = page(FULL)
    tags = Tags(text).found
    assert {"script", "link", "img", "iframe", "a"} & {tag for tag, _ in tags} == set()
    assert not re.search(r"url\(|@import|https?://", text)
    assert {"html", "title", "style", "table", "caption"} <= {tag for tag, _ in tags}
    assert FULL.digest in text
    assert "color-scheme: light dark" in text


def test_links_lead_to_the_site_where_it_is_known() -> None:
    tags = Tags(page(FULL, "https://dare.example.org")).found
    targets = [attributes["href"] for tag, attributes in tags if tag == "a"]
    assert targets
    assert all(str(target).startswith("https://dare.example.org/") for target in targets)


def test_names_are_text() -> None:
    text = page(board(replace(BGPO, name="<script>alert(1)</script>")))
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_every_board_of_a_track_is_written_with_an_index_and_kept(site: Site, tmp_path: Path) -> None:
    written = export(Settings.from_environment(), tmp_path / "out", load_track("tiny"))
    assert [path.name for path in written] == ["llada-tiny.html", "sdar-tiny.html", "index.html"]
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]
    digest = re.search(r"SHA-256 <code>([0-9a-f]{64})", written[0].read_text())
    assert digest is not None
    with site.database.read() as session:
        assert find(session, digest[1]).board.backbone == "llada-tiny"


def test_what_cannot_be_written_is_said(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match="nothing can be written to"):
        export(Settings.from_environment(), tmp_path / "file", load_track("tiny"))
    with pytest.raises(UnknownTrackError):
        export(Settings.from_environment(), tmp_path / "out", load_track("tiny"), ["no-such"])
