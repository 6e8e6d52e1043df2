"""A sample rollout as static HTML: what was still a mask at some denoising steps, and the finished text."""

from __future__ import annotations

from html import escape

from dare_platform.views import SampleView

MOST_FRAMES = 4


def shown_steps(steps: int) -> tuple[int, ...]:
    """Denoising steps to draw: all when few, otherwise spread evenly; the last one always."""
    if steps <= MOST_FRAMES:
        return tuple(range(1, steps + 1))
    return tuple(round(steps * (place + 1) / MOST_FRAMES) for place in range(MOST_FRAMES))


def rollout(sample: SampleView) -> str:
    """Frames from mostly masked to finished. Screen readers get the finished text only."""
    last = max(sample.step_map, default=0)
    first = min(sample.step_map, default=0)
    steps = last - first + 1
    finished = escape("".join(sample.tokens))
    frames = [
        f'<div aria-hidden="true"><span class="second">step {step} of {steps}</span><br>'
        f"{_frame(sample, first + step)}</div>"
        for step in shown_steps(steps)
    ]
    return (
        '<div class="dare"><p class="second">Prompt</p>'
        f'<pre class="rollout" tabindex="0">{escape(sample.prompt)}</pre>'
        f'<p class="second">Completion, decoded in {steps} steps; tiles are still masked</p>'
        f'<div class="rollout"><span class="sr">{finished}</span>{"".join(frames)}</div></div>'
    )


def _frame(sample: SampleView, before: int) -> str:
    """The tokens committed before a step; the others as tiles of their own width."""
    tiles = []
    for token, step in zip(sample.tokens, sample.step_map, strict=True):
        text = escape(token.replace("\n", "⏎"))
        if step < before:
            tiles.append(f'<span class="token">{text}</span>')
        else:
            tiles.append(f'<span class="token mask">{text or "&nbsp;"}</span>')
    return "".join(tiles)
