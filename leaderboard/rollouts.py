"""A sample rollout as static HTML: what was still a mask at some denoising steps, and the finished text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from dare_platform.views import SampleView
from leaderboard.quantities import plural

MOST_FRAMES = 4
SPECIAL = re.compile(r"<\|[^<>|]+\|>|</?s>|<(?:pad|bos|eos|unk|mask)>|\[(?:PAD|BOS|EOS|UNK|MASK|CLS|SEP)\]")
END = "∎"


def is_special(token: str) -> bool:
    """Whether a token ends, pads or frames the text and is none itself."""
    return SPECIAL.fullmatch(token) is not None


def shown_steps(steps: int) -> tuple[int, ...]:
    """Denoising steps to draw: all when few, otherwise spread evenly; the last one always."""
    if steps <= MOST_FRAMES:
        return tuple(range(1, steps + 1))
    return tuple(round(steps * (place + 1) / MOST_FRAMES) for place in range(MOST_FRAMES))


def shown_positions(sample: SampleView) -> tuple[tuple[str, int], ...]:
    """Tokens with their steps; step 0 was never decoded, and is left out behind the first special token."""
    positions = tuple(zip(sample.tokens, sample.step_map, strict=True))
    end = next((place for place, (token, step) in enumerate(positions) if step and is_special(token)), len(positions))
    return tuple((token, step) for place, (token, step) in enumerate(positions) if step or place < end)


def rollout(sample: SampleView) -> str:
    """Frames from mostly masked to finished. Screen readers get the finished text only."""
    positions = shown_positions(sample)
    steps = max(sample.step_map, default=0)
    finished = "".join(token for token, step in positions if step and not is_special(token))
    frames = [
        f'<div aria-hidden="true"><span class="second">step {step} of {steps}</span><br>{_frame(positions, step)}</div>'
        for step in shown_steps(steps)
    ] or [f'<div aria-hidden="true">{_frame(positions, 0)}</div>']
    return (
        '<div class="dare"><p class="second">Prompt</p>'
        f'<pre class="rollout" tabindex="0">{escape(sample.prompt)}</pre>'
        f'<p class="second">{_how(positions, steps)}</p>'
        f'<div class="rollout"><span class="sr">{escape(finished)}</span>{"".join(frames)}</div></div>'
    )


def _how(positions: Sequence[tuple[str, int]], steps: int) -> str:
    """In how many steps, and what the marks mean."""
    if not steps:
        return "Completion. Nothing was decoded."
    said = f"Completion, decoded in {plural(steps, 'step')}; tiles are still masked"
    if any(step and is_special(token) for token, step in positions):
        said += f", {END} is a token that ends or fills the text"
    never = sum(step == 0 for _, step in positions)
    if never:
        said += f"; {plural(never, 'position')} {'was' if never == 1 else 'were'} never decoded"
    return said + "."


def _frame(positions: Sequence[tuple[str, int]], now: int) -> str:
    """The tokens decoded up to a step; the others as tiles of their own width."""
    tiles = []
    for token, step in positions:
        special = is_special(token)
        text = END if special else escape(token.replace("\n", "⏎"))
        if not 0 < step <= now:
            tiles.append(f'<span class="token mask">{text or "&nbsp;"}</span>')
        elif special:
            tiles.append(f'<span class="token special" title="{escape(token)}">{text}</span>')
        else:
            tiles.append(f'<span class="token">{text}</span>')
    return "".join(tiles)
