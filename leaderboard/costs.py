"""What the Cost page says in words and tables: units, the sentence about the frontier, and every entry at its price."""

from __future__ import annotations

from typing import NamedTuple

from dare_platform.verdict import escaped
from dare_platform.views.cost import MEAN, CostPoint, CostView, Measure
from leaderboard import links, quantities
from leaderboard.plain_tables import Text, plain_table

QUESTION = "What does a point cost?"
SECONDS_AN_HOUR = 3600
NO_POINT = "**Nothing has a price here yet.** A price needs a finished training run and a score on this backbone."
HOW_TO_READ = (
    "A method is on the frontier when none is at most as dear and gains at least as much. Filled square: a method on "
    "the frontier is provably better for no more. Hollow square: not provably, so it may be as good. Hollow circle: "
    "fewer seeds than a rank needs, compared with nobody. Diamond: a baseline or the control. Lines through points "
    "are 95 % t intervals over seeds; the dashed step joins the frontier."
)
STANDINGS = {
    "frontier": "on the frontier",
    "within noise": "within noise of",
    "dominated": "dominated by",
    "preliminary": "preliminary, compared with nobody",
    "beside": "not a method, beside the frontier",
}
MEASURE_NAMES: dict[Measure, str] = {
    "gpu_h": "device time of training",
    "nfe": "forwards of training (NFE)",
    "tokens": "tokens decoded in training",
    "tok_s": "tokens decoded a second in training",
}


class Unit(NamedTuple):
    """How a measure is written: divisor, short unit, axis title."""

    scale: float
    short: str
    title: str


def unit_of(view: CostView) -> Unit:
    """One unit for all points of a view."""
    largest = max((point.cost for point in view.points), default=0.0)
    if view.measure == "gpu_h":
        device = view.device or ""
        long = largest >= SECONDS_AN_HOUR
        short = quantities.cost_unit("cpu" if "cpu" in device.lower() else _kind(device), long)
        return Unit(SECONDS_AN_HOUR if long else 60, short, f"training, {short} a seed, {device}")
    if view.measure == "tok_s":
        return Unit(1, "tok/s", f"tokens a second, {view.device}")
    scale, letter = (1e6, "M ") if largest >= 1e6 else (1.0, "")
    noun = "forwards" if view.measure == "nfe" else "tokens"
    return Unit(scale, f"{letter}{noun}", f"{MEASURE_NAMES[view.measure]}, {letter}{noun} a seed")


def _kind(device: str) -> str:
    """Processors say how many cores they have; accelerators do not."""
    return "cpu" if device.endswith("cores") or not device else device


def written_cost(point: CostPoint, unit: Unit) -> str:
    """`18 GPU-h`, two significant digits below 10."""
    amount = point.cost / unit.scale
    digits = 0 if amount >= 10 or amount == 0 or unit.short in ("tok/s", "forwards", "tokens") else 1
    written = quantities.count(amount) if digits == 0 else quantities.fixed(amount, digits)
    return f"{written}{quantities.THIN}{unit.short}"


def half_width(point: CostPoint) -> float:
    """Of the gain, in points; 0 where it is not shown."""
    half = point.gain.half_width
    return 100 * half if half is not None and point.gain.seeds > 2 and point.standing != "preliminary" else 0.0


def _score(view: CostView) -> str:
    return "mean gain" if view.task == MEAN else f"gain on {view.task}"


def takeaway(view: CostView) -> str:
    """The chart in a sentence, from its data; plain text."""
    names = ", ".join(point.name for point in view.frontier)
    shown = f"{_score(view).capitalize()} against {MEASURE_NAMES[view.measure]} of {_entries(len(view.points))}"
    return f"{shown}; {names} {'forms' if len(view.frontier) == 1 else 'form'} the frontier." if names else f"{shown}."


def _entries(number: int) -> str:
    return quantities.plural(number, "entry")


def verdict(view: CostView, backbone: str) -> str:
    """Who is on the frontier and what may be said of the others. Markdown."""
    if not view.points:
        return NO_POINT
    if not view.frontier:
        return "**No method can be compared yet.** What is shown has fewer seeds than a rank needs."
    unit, front = unit_of(view), view.frontier
    named = ", ".join(
        f"{escaped(point.name)} ({written_cost(point, unit)}, {quantities.gain(point.gain).value})" for point in front
    )
    verb = "One method is" if len(front) == 1 else f"{len(front)} methods are"
    said = [f"**{verb} on the frontier on {escaped(backbone)}:** {named}."]
    for standing, words in (
        ("within noise", "no cheaper than one on the frontier, and not provably worse"),
        ("dominated", "no cheaper than one on the frontier, and provably worse"),
    ):
        others = [escaped(point.name) for point in view.points if point.standing == standing]
        if others:
            said.append(f"{', '.join(others)}: {words}.")
    return " ".join(said)


def devices(view: CostView) -> str:
    """Several devices, of which one is shown. Markdown."""
    named = " and ".join(escaped(device) for device in view.devices)
    count = "Two" if len(view.devices) == 2 else str(len(view.devices))
    return f"**{count} devices in this view.** Hours on {named} are not comparable; choose one."


def price_table(view: CostView) -> str:
    """Every entry: cost, gain, points for a unit of cost where there are any, and how it stands."""
    unit = unit_of(view)
    has_rate = view.measure != "tok_s"
    rate = [f"Points for 1 {unit.short}"] if has_rate else []
    heads = ["Entry", f"Cost, {unit.short}", "Gain, points", *rate, "Standing"]
    rows = [
        [
            Text(point.name, href=links.entry_link(point.entry_id)),
            Text(written_cost(point, unit).partition(quantities.THIN)[0], number=True),
            Text(_gain(point), number=True),
            *([Text(_rate(point, unit.scale), number=True)] if has_rate else []),
            Text(_standing(point)),
        ]
        for point in view.points
    ]
    return plain_table(heads, rows, f"{_score(view).capitalize()} and {MEASURE_NAMES[view.measure]} of each entry")


def _gain(point: CostPoint) -> str:
    written = quantities.gain(point.gain)
    return written.value if point.standing == "preliminary" else str(written)


def _standing(point: CostPoint) -> str:
    words = STANDINGS[point.standing]
    return f"{words} {', '.join(point.beaten_by)}" if point.beaten_by else words


def _rate(point: CostPoint, scale: float) -> str:
    """Points for one unit with their interval; nothing where there is no gain or no cost."""
    if point.gain.value <= 0 or point.cost <= 0 or point.standing == "preliminary":
        return ""
    amount = point.cost / scale
    value, half = 100 * point.gain.value / amount, half_width(point) / amount
    digits = 2 if value < 1 else 1 if value < 10 else 0
    spread = f" ±{quantities.fixed(half, digits)}" if half else ""
    return f"{quantities.fixed(value, digits)}{spread}"


def unpriced_table(view: CostView) -> str:
    """Entries without a place in the picture, each with its reason: not measured is not zero."""
    rows = [(Text(one.name, href=links.entry_link(one.entry_id)), Text(one.why)) for one in view.unpriced]
    return plain_table(("Not in the picture", "Why"), rows, "Entries without a price or a score")
