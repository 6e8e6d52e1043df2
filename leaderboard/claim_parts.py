"""What papers claim, beside our reruns: a table of its own, in no rank and in no mean."""

from __future__ import annotations

from collections.abc import Sequence

from dare_platform.claims import Beside
from leaderboard import quantities
from leaderboard.plain_tables import Text, plain_table

WORDS = {
    "inside": "inside our interval",
    "outside": "outside our interval",
    "not rerun": "not rerun here",
    "other quantity": "another quantity: a shaped reward",
    "no interval": "one seed here: no interval",
}


def title(found: Sequence[Beside]) -> str:
    """How many there are, and how many our rerun disagrees with."""
    outside = sum(one.comparison == "outside" for one in found)
    disagree = f", {outside} outside our rerun's interval" if outside else ""
    return f"What papers claim: {quantities.plural(len(found), 'number')}{disagree}"


def table(found: Sequence[Beside]) -> str:
    """Claim, our rerun, how the two lie, and the source with its protocol as far as it is stated."""
    rows = [
        (
            Text(one.claim.algorithm),
            Text(one.claim.task),
            Text(f"{100 * one.claim.value:g}", number=True, mark="second"),
            Text(str(quantities.score(one.ours)) if one.ours is not None else "—", number=True),
            Text(WORDS[one.comparison], mark="attention" if one.comparison == "outside" else ""),
            Text(one.claim.source, href=one.claim.url, title=one.claim.protocol),
        )
        for one in found
    ]
    heads = ("Method", "Task", "Claimed", "Here", "The two", "Source")
    return plain_table(heads, rows, "Claims of papers, per cent, beside our reruns")
