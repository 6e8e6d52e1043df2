"""The parts of the comparison of two entries: what may be said, the items they answer apart, settings and source."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from urllib.parse import urlencode

from dare_platform.verdict import escaped
from dare_platform.views import CurvesView
from dare_platform.views.comparison import SHOWN, Algorithms, Answered, ComparisonView, Shown, Side
from leaderboard import links, quantities
from leaderboard.plain_tables import Text, plain_table

WORDS: dict[Shown, str] = {"differ": "answered apart", "both-wrong": "both wrong", "all": "all"}


def verdict(view: ComparisonView) -> str:
    """The two findings, one of algorithms and one of checkpoints, which are not the same. Markdown."""
    a, b = escaped(view.a.entry.summary.name), escaped(view.b.entry.summary.name)
    lines = [_of_algorithms(view.algorithms, a, b)]
    if view.checkpoints is not None and view.seed is not None:
        lines.append(
            f"{view.checkpoints.sentence} That is about the two checkpoints of seed {view.seed}, not about others."
        )
    else:
        lines.append("No seed has items of both, so that no two checkpoints can be compared.")
    return "\n\n".join(lines)


def _of_algorithms(found: Algorithms | None, a: str, b: str) -> str:
    if found is None:
        return "**Nothing can be said of the algorithms:** one of them has fewer than two finished seeds here."
    points = [quantities.fixed(100 * value, 1, signed=True) for value in (found.difference, found.low, found.high)]
    size = f"difference {points[0]} points, 95 % interval {points[1]} to {points[2]}"
    if found.differ:
        better, other = (a, b) if found.difference > 0 else (b, a)
        return f"**The algorithms differ:** {better} solves more than {other} ({size}, {_p(found.p)})."
    return f"**The algorithms cannot be told apart** ({size}, {_p(found.p)}). {found.settling.sentence}"


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def to_curves(ids: tuple[str, str], track: str) -> str:
    """How both were trained."""
    return f'<div class="dare"><p><a href="{escape(links.curves_link(ids, track))}">Curves of both</a></p></div>'


def seeds_table(view: ComparisonView) -> str:
    """Share of items solved, seed by seed."""
    seeds = sorted(view.a.by_seed.keys() | view.b.by_seed.keys())
    rows = [_side_row(side, seeds) for side in (view.a, view.b)]
    return plain_table(("Entry", "Mean", *(f"Seed {seed}" for seed in seeds)), rows, "Per cent of items solved")


def _side_row(side: Side, seeds: Sequence[int]) -> tuple[Text, ...]:
    summary = side.entry.summary
    mean = str(quantities.score(side.mean, most=2)) if side.mean is not None else "not measured"
    values = [Text(_share(side.by_seed.get(seed)), number=True) for seed in seeds]
    return (Text(summary.name, href=links.entry_link(summary.id)), Text(mean, number=True), *values)


def _share(value: float | None) -> str:
    return "—" if value is None else quantities.fixed(100 * value, 1)


def counts(view: ComparisonView) -> str:
    """The four kinds of items, as a table of two by two would say it."""
    both, only_a, only_b, neither = view.counts
    names = [view.a.entry.summary.name, view.b.entry.summary.name]
    rows = [
        ("both right", both), (f"only {names[0]}", only_a), (f"only {names[1]}", only_b), ("both wrong", neither),
    ]  # fmt: skip
    return plain_table(
        ("Items", "Number"), [(Text(name), Text(quantities.count(number), number=True)) for name, number in rows],
        "Who is right where",
    )  # fmt: skip


def choose_items(view: ComparisonView, query: dict[str, str], shown: Shown) -> str:
    """Links to the three choices of items."""
    parts = []
    for choice in SHOWN:
        if choice == shown:
            parts.append(f"<b>{WORDS[choice]}</b>")
        else:
            href = "compare?" + urlencode({**query, "items": choice})
            parts.append(f'<a href="{escape(href)}">{WORDS[choice]}</a>')
    number = quantities.plural(view.of_items, "item")
    return f'<div class="dare"><p>Show {" · ".join(parts)} <span class="second">{number}</span></p></div>'


def items(view: ComparisonView) -> str:
    """Each item with both answers to the letter, one below the other on a phone."""
    names = (view.a.entry.summary.name, view.b.entry.summary.name)
    blocks = [
        f'<section><h3><code>{escape(one.item_id)}</code></h3><div class="sides">{_answer(one, names, 0)}'
        f"{_answer(one, names, 1)}</div></section>"
        for one in view.items
    ]
    return f'<div class="dare compare">{"".join(blocks)}</div>'


def _answer(one: Answered, names: tuple[str, str], side: int) -> str:
    mark, word, tone = ("✓", "right", "positive") if one.solved[side] else ("✕", "wrong", "attention")
    cut = ", cut off" if one.truncated[side] else ""
    return (
        f'<div><p><span class="{tone}"><span aria-hidden="true">{mark}</span> {word}</span> · '
        f'<bdi>{escape(names[side])}</bdi> <span class="second">{quantities.plural(one.tokens[side], "token")}{cut}'
        f'</span></p><pre class="log" tabindex="0"><bdi>{escape(one.outputs[side])}</bdi></pre></div>'
    )


def settings(view: ComparisonView) -> str:
    """What was set differently."""
    rows = [
        (Text(name, code=True), Text(_value(a), code=True), Text(_value(b), code=True)) for name, a, b in view.settings
    ]
    heads = ("Hyperparameter", view.a.entry.summary.name, view.b.entry.summary.name)
    return plain_table(heads, rows, "Settings that differ")


def _value(value: object) -> str:
    return "—" if value is None else str(value)


def source_diff(text: str) -> str:
    """Lines that one of the sources has alone, with three around them."""
    marks = {"+": "positive", "-": "attention"}
    lines = [
        f'<span class="{marks.get(line[:1], "second" if line.startswith("@@") else "")}">{escape(line)}</span>'
        for line in text.splitlines()
    ]
    inner = "\n".join(lines)
    box = '<pre class="log source" tabindex="0" role="region" aria-label="Differences">'
    return f'<div class="dare">{box}<bdi>{inner}</bdi></pre></div>'


def alarms(view: CurvesView) -> str:
    """What the runs of these curves raised, by entry, seed and step; empty where nothing was."""
    rows = [
        (
            Text(curve.entry_name, href=links.run_link(curve.run_id)),
            Text(str(curve.seed), number=True),
            Text("—" if alarm.step is None else quantities.count(alarm.step), number=True),
            Text(alarm.name),
            Text(alarm.sentence),
        )
        for curve in view.curves
        for alarm in curve.alarms
    ]
    return plain_table(("Entry", "Seed", "Step", "Alarm", "What it saw"), rows, "Alarms") if rows else ""
