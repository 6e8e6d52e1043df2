"""Parts of the page of one backbone: its facts, its untouched scores, what the tracks say of it. Plain data to HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo

from dare.tasks import load_task, task_names
from dare_platform.claims import Claim
from dare_platform.verdict import escaped
from dare_platform.views.backbones import BackboneView, Untouched
from dare_platform.views.shapes import EntrySummary
from leaderboard import links, quantities, rulebook
from leaderboard.plain_tables import Text, plain_table

NO_STEPS = "no task has results of the untouched backbone at two numbers of denoising steps"


def headline(view: BackboneView) -> str:
    """Kind, size and whether anything has been run on it. Markdown."""
    kind = f"{view.kind.capitalize()} diffusion" if view.kind else "A diffusion model"
    family = f", family {escaped(view.family)}" if view.family else ""
    size = f", {parameters(view.parameters)} parameters" if view.parameters else ""
    if not view.untouched and not view.entries:
        return f"**Nothing has been run on {escaped(view.slug)}.** {kind}{family}{size}."
    return f"**{kind}{family}{size}.**"


def parameters(number: int) -> str:
    """`8.0 B`, `0.2 M`."""
    for scale, letter in ((1e9, "B"), (1e6, "M")):
        if number >= scale / 10:
            return f"{quantities.fixed(number / scale, 1)}{quantities.THIN}{letter}"
    return quantities.count(number)


def facts(view: BackboneView) -> str:
    """What it is and what it is decoded with; what is not known here is said so."""
    elsewhere = "not known: its files are not on this machine"
    mask = f"{view.mask_token or 'not named'}, id {view.mask_id}" if view.mask_id is not None else elsewhere
    rows: list[tuple[str, Text | str]] = [
        ("Origin", view.origin or view.summary or elsewhere),
        ("Licence", view.licence or elsewhere),
        ("Mask token", Text(mask, code=view.mask_id is not None)),
        ("Block", f"{view.sampling.block_length} tokens" if view.sampling else elsewhere),
        ("Rollouts, unless a track says otherwise", rulebook.sampling(view.sampling) if view.sampling else elsewhere),
    ]
    return plain_table(("What", "Which"), rows, f"Facts about {view.slug}")


def contents(view: BackboneView) -> str:
    """Every exact content that runs here have used, the newest first."""
    rows = [
        (
            Text(one.revision, code=True),
            Text(one.weights_sha256, code=True),
            Text(one.tokenizer_sha256, code=True),
            Text(quantities.count(one.entries), number=True),
        )
        for one in view.contents
    ]
    heads = ("Revision", "SHA-256 of the weights", "SHA-256 of the tokenizer", "Entries")
    return plain_table(heads, rows, "Contents under this name, the newest first")


def untouched(found: Sequence[Untouched]) -> str:
    """What it scores without training, and at which decoding."""
    rows = [
        (
            Text(title(one.task), href=links.task_page(one.task)),
            Text(one.track),
            Text(str(quantities.score(one.solved)), number=True),
            Text(f"{quantities.count(one.items)} items", number=True),
            Text(rulebook.sampling(one.sampling)),
            Text(f"{one.scorer}, protocol {quantities.short_hash(one.protocol)}", title=one.protocol),
        )
        for one in found
    ]
    heads = ("Task", "Track", "Per cent solved", "Of", "Decoding", "Scored by")
    return plain_table(heads, rows, "The untouched backbone, greedy, mean of seeds")


def title(task: str) -> str:
    """A task by its title; one that has left the catalog by its name."""
    return load_task(task).title if task in task_names() else task


def stated(claims: Sequence[Claim]) -> str:
    """What others state of it, each with its source; in no mean and no rank."""
    rows = [
        (
            Text(title(claim.task), href=links.task_page(claim.task)),
            Text(f"{100 * claim.value:g}", number=True, mark="second"),
            Text(claim.source, href=claim.url),
            Text(claim.protocol),
        )
        for claim in claims
    ]
    return plain_table(("Task", "Claimed, per cent", "Source", "Protocol, as far as stated"), rows, "Claims of others")


def with_steps(found: Sequence[Untouched]) -> Mapping[tuple[str, str], list[Untouched]]:
    """By task and scorer, results at two numbers of denoising steps or more, all else of the decoding equal."""
    groups: dict[tuple[str, str, str], list[Untouched]] = {}
    for one in found:
        if one.steps is not None:
            rest = one.sampling.model_dump_json(exclude={"steps_per_block"})
            groups.setdefault((one.task, one.scorer, rest), []).append(one)
    return {
        (task, scorer): group for (task, scorer, _), group in groups.items() if len({one.steps for one in group}) > 1
    }


def no_steps(found: Sequence[Untouched]) -> str:
    """Why there is no curve over denoising steps. Markdown."""
    steps = sorted({one.steps for one in found if one.steps is not None})
    at = f" All results here are at {' or '.join(map(str, steps))} steps an answer." if steps else ""
    return (
        f"**Not measured:** {NO_STEPS}, all else equal.{at} `dare evaluate` asks at any number; what it finds is a "
        "result of its own and on no board."
    )


def entries(found: Sequence[EntrySummary], zone: tzinfo) -> str:
    """The newest entries on it."""
    rows = [
        (
            Text(entry.name, href=links.entry_link(entry.id)),
            Text(entry.kind),
            Text(entry.track),
            Text(entry.status),
            Text(quantities.moment(entry.submitted_at, zone)),
        )
        for entry in found
    ]
    return plain_table(("Entry", "Kind", "Track", "Status", "Submitted"), rows, "The newest entries on it")
