"""The canvas of one answer while it is denoised: what a step committed stands out, colours say when, masks are blocks.

A token keeps a place on the way from blue (decided first) to rose (decided last). Tokens of the step just done are
reversed, tokens that an editing decoder replaced are underlined on yellow.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.box import ROUNDED
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.style import Style
from rich.text import Text

from dare.commands.text import REPLACEMENT, Cell, as_text, lay_out, neutral, shown_lines
from dare.family import Tokenizer
from dare.policy import RequestError
from dare.types import Frame, Samples

PALETTE = ((59, 130, 246), (20, 184, 166), (132, 174, 30), (245, 158, 11), (244, 63, 94))
"""Stations from the first step to the last; of middle lightness, so that both dark and light terminals show them."""
MASK, END, NEWLINE = "░", "∎", "↵\n"
DIM = Style(dim=True)
EDITED = Style(color="black", bgcolor="yellow", underline=True)
LONGEST_CHARACTER = 4  # tokens of single bytes that make one character
NARROW = 44  # columns below which the frame is left out


@dataclass(frozen=True)
class Picture:
    """One row after a denoising step, in plain numbers: window positions only."""

    ids: tuple[int, ...]
    step_map: tuple[int, ...]
    """0 where nothing is decided yet."""
    nfe: int
    seconds: float
    """Spent decoding, without what was spent on showing it; 0 for a recording that should not depend on the machine."""
    edited: frozenset[int] = frozenset()
    """Positions whose token the last step replaced."""
    edits: int = 0
    finished: bool = False

    @property
    def step(self) -> int:
        """Denoising steps so far."""
        return max(self.step_map, default=0)

    @property
    def decided(self) -> int:
        """Positions that have a token."""
        return sum(step > 0 for step in self.step_map)


@dataclass(frozen=True)
class Scene:
    """What stays the same over all pictures of one answer."""

    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    prompt: str
    title: str
    subtitle: str
    length: int
    """Tokens of the window."""
    mask_width: int = 1

    def draw(self, picture: Picture, width: int, height: int) -> RenderableType:
        """The picture for a terminal of this size."""
        framed = width >= NARROW
        inside = width - 4 if framed else width
        prompt = lay_out([Cell("❯ " + neutral(self.prompt), DIM)], inside)[:2]
        status = self.status(picture, inside)
        room = max(1, height - len(prompt) - len(status) - (5 if framed else 3))
        lines = shown_lines(lay_out(self.cells(picture), inside), room)
        body = Group(as_text(prompt), Text(), as_text(lines), Text(), *status)
        if not framed:
            return body
        return Panel(
            body,
            box=ROUNDED,
            title=Text(neutral(self.title, "")),
            title_align="left",
            subtitle=Text(self.subtitle, style=DIM),
            subtitle_align="right",
            border_style=DIM,
            width=width,
        )

    def cells(self, picture: Picture) -> list[Cell]:
        """The canvas piece by piece. What lies behind the end of the answer is dim."""
        cells: list[Cell] = []
        ended = False
        for first, last, text in self._pieces(picture):
            step = max(picture.step_map[first:last])
            if step == 0:
                if not picture.finished:
                    cells.append(Cell(MASK * self.mask_width, DIM))
                continue
            fresh = step == picture.step and not picture.finished
            style = _colour(step, picture.step)
            if picture.ids[first] in self.eos_ids:
                cells.append(Cell(END, DIM if ended else style, fresh))
                ended = True
                continue
            if ended:
                style = DIM
            elif any(place in picture.edited for place in range(first, last)):
                style, fresh = EDITED, True
            elif fresh:
                style += Style(reverse=True, bold=True)
            cells.append(Cell(neutral(text, keep="\n").replace("\n", NEWLINE), style, fresh))
        return cells

    def status(self, picture: Picture, width: int) -> list[Text]:
        """A bar, and the numbers of the decoding so far."""
        full = width if picture.finished else picture.decided * width // max(len(picture.ids), 1)
        bar = Text(no_wrap=True, overflow="crop")
        for place in range(full):
            bar.append("━", _colour(place + 1, width))
        bar.append("─" * (width - full), DIM)
        words = [f"step {picture.step}", f"NFE {picture.nfe}", f"{picture.decided} of {len(picture.ids)} tokens"]
        if picture.edits:
            words.append(f"{picture.edits} edited")
        words.append(f"{picture.decided / max(picture.nfe, 1):.2f} tokens/forward")
        if picture.seconds > 0:
            words.append(f"{picture.decided / picture.seconds:,.0f} tokens/s")
        line = Text(no_wrap=True, overflow="ellipsis", style=DIM)
        for number, word in enumerate(words):
            if line.cell_len + cell_len(word) + 3 > width and number:
                break
            line.append(" · " if number else "").append(word)
        return [bar, line]

    def _pieces(self, picture: Picture) -> list[tuple[int, int, str]]:
        """(first, last, text) of every piece: a token, or the few tokens whose bytes make one character together."""
        pieces: list[tuple[int, int, str]] = []
        texts = self.tokenizer.pieces(picture.ids)
        first = 0
        while first < len(picture.ids):
            last, text = first + 1, texts[first]
            if REPLACEMENT in text and picture.step_map[first] > 0:
                for end in range(first + 2, min(first + LONGEST_CHARACTER, len(texts)) + 1):
                    whole = self.tokenizer.decode(picture.ids[first:end])
                    if min(picture.step_map[first:end]) > 0 and whole and REPLACEMENT not in whole:
                        last, text = end, whole
                        break
            pieces.append((first, last, text))
            first = last
        return pieces


def mask_width(tokenizer: Tokenizer, text: Sequence[int]) -> int:
    """Columns of a mask: about those of a token of the user's text, so that little moves when tokens appear."""
    widths = [cell_len(neutral(piece, "")) for piece in tokenizer.pieces(text)]
    return max(1, min(4, round(sum(widths) / len(widths)))) if widths else 1


def _colour(step: int, last: int) -> Style:
    place = (step - 1) / max(last - 1, 1) * (len(PALETTE) - 1)
    station = min(int(place), len(PALETTE) - 2)
    part = place - station
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(PALETTE[station], PALETTE[station + 1], strict=True))
    return Style(color=f"rgb({red},{green},{blue})")


class Animation:
    """A `Watch` that shows the first row on a terminal, records it as text, or both."""

    def __init__(
        self,
        scene: Scene,
        console: Console | None,
        delay: float,
        recording: Recording | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._scene = scene
        self._recording = recording
        self._delay = delay
        self._sleep = sleep
        self._live = None if console is None else Live(console=console, auto_refresh=False)
        self._picture: Picture | None = None
        self._mark = time.monotonic()

    def __enter__(self) -> Animation:
        if self._live is not None:
            self._live.start()
        nothing = (0,) * self._scene.length
        self._show(Picture(ids=nothing, step_map=nothing, nfe=0, seconds=0.0))
        self._sleep(self._delay)
        self._mark = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def watch(self, frame: Frame) -> None:
        """Show the canvas after a step."""
        window = frame.window[0]
        self._next(frame.ids[0][window].tolist(), frame.step_map[0][window].tolist(), int(frame.nfe[0]), False)
        self._sleep(self._delay)
        self._mark = time.monotonic()

    def conclude(self, samples: Samples) -> None:
        """Show the finished answer, coloured by step."""
        window = samples.window[0]
        self._next(samples.ids[0][window].tolist(), samples.step_map[0][window].tolist(), int(samples.nfe[0]), True)

    def _next(self, ids: list[int], step_map: list[int], nfe: int, finished: bool) -> None:
        before = self._picture
        edited = frozenset(
            place
            for place, token in enumerate(ids)
            if before is not None and before.step_map[place] > 0 and before.ids[place] != token and step_map[place] > 0
        )
        picture = Picture(
            ids=tuple(ids),
            step_map=tuple(step_map),
            nfe=nfe,
            seconds=(0.0 if before is None else before.seconds) + time.monotonic() - self._mark,
            edited=edited,
            edits=(0 if before is None else before.edits) + len(edited),
            finished=finished,
        )
        self._show(picture)

    def _show(self, picture: Picture) -> None:
        self._picture = picture
        if self._live is not None:
            console = self._live.console
            self._live.update(self._scene.draw(picture, console.width, console.height), refresh=True)
        if self._recording is not None:
            self._recording.add(self._scene, picture)


class Recording:
    """The pictures in a file: an asciicast (version 2) when its name ends in .cast, else plain text frames."""

    WIDTH, HEIGHT = 72, 20

    def __init__(self, path: Path, delay: float | None) -> None:
        self._cast = path.suffix == ".cast"
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise RequestError(f"{path} cannot be written: {error.strerror}") from error
        self._delay = delay or 0.08
        self._frames = 0
        if self._cast:
            self._file.write(json.dumps({"version": 2, "width": self.WIDTH, "height": self.HEIGHT}) + "\n")

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, scene: Scene, picture: Picture) -> None:
        """One frame."""
        out = io.StringIO()
        colours = {"force_terminal": True, "color_system": "truecolor"} if self._cast else {"color_system": None}
        console = Console(file=out, width=self.WIDTH, height=self.HEIGHT, _environ={}, **colours)
        timeless = replace(picture, seconds=picture.seconds if self._cast else 0.0)
        console.print(scene.draw(timeless, self.WIDTH, self.HEIGHT))
        if self._cast:
            screen = "\x1b[H\x1b[2J" + out.getvalue().replace("\n", "\r\n")
            self._file.write(json.dumps([round(self._frames * self._delay, 3), "o", screen]) + "\n")
        else:
            self._file.write(out.getvalue() + "\n")
        self._frames += 1
