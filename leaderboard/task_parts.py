"""Parts of the page of one task: its facts, its items, how scorers agree, one item with answers. Plain data to HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from dare.spec import TaskProtocol
from dare_platform.board import Board
from dare_platform.verdict import escaped
from dare_platform.views.tasks import ORDERS, Agreement, Answer, ItemView, TaskView
from leaderboard import links, quantities, rulebook
from leaderboard.plain_tables import Text, plain_table

HIDDEN = "**Items of this split are hidden.** Their number, their hash and how hard they are is all that is shown."
NO_ITEMS = "**No answers are stored item by item here.** How hard an item is, and where scorers differ, needs them."
NOT_ASKED = "**Nobody has been asked this task on this backbone yet.**"
ONE_SCORER = (
    "**One scorer has judged these answers.** Agreement needs a second one: `dare rescore RUN` judges them again."
)
SATURATED = 0.95
"""Share solved from which on a column hardly separates entries."""
ORDER_NAMES = {"hardest": "hardest first", "dividing": "most dividing first", "position": "in their order"}


def standing(view: TaskView) -> str:
    """What the column measures, its floor, and what its number of items lets anybody see. Markdown."""
    task = view.task
    widest = 100 * 1.96 * math.sqrt(0.25 / view.items)
    return (
        f"**Chance floor {quantities.share(task.chance_floor)} per cent:** {escaped(task.chance_procedure)}. "
        f"{quantities.count(view.items)} items: the score of one checkpoint is uncertain by up to "
        f"±{quantities.fixed(widest, 1)} points from the choice of items alone."
    )


def facts(view: TaskView) -> str:
    """Where the items come from, and what must be known of them."""
    task = view.task
    rows: list[tuple[str, Text | str]] = [
        ("Items", f"{quantities.count(view.items)}, split {view.split}, version {view.version}"),
        ("Hash of the items", Text(view.items_sha256, code=True)),
        ("Source", task.source),
        ("Licence", task.licence),
        ("Overlap with training data", task.contamination or "Nothing is recorded."),
        *(("To know", note) for note in task.notes),
    ]
    return plain_table(("What", "Which"), rows, f"Facts about {task.title}")


def asked(protocols: Sequence[TaskProtocol]) -> str:
    """How these answers were asked for."""
    rows = [
        (
            Text(quantities.short_hash(one.digest()), code=True, title=one.digest()),
            Text(one.prompt + ("" if one.template == "chat" else ", no chat template")),
            Text(rulebook.sampling(one.sampling)),
            Text(", ".join(one.scorers)),
        )
        for one in protocols
    ]
    return plain_table(("Protocol", "Prompt", "Decoding", "Scorers"), rows, "How the answers were asked for")


def saturation(board: Board, task: str) -> str:
    """Whether the column still separates anything. Markdown; empty when it does."""
    cells = [row.cells[task] for row in board.rows if row.kind == "method" and task in row.cells]
    scored = [cell.greedy.value for cell in cells if cell.greedy is not None]
    above = sum(value > SATURATED for value in scored)
    if not scored or 2 * above < len(scored):
        return ""
    verb = "is" if above == 1 else "are"
    return (
        f"**{above} of {quantities.plural(len(scored), 'entry')} {verb} above 95 per cent:** this column hardly "
        "separates them."
    )


def whose(view: TaskView) -> str:
    """Which checkpoints difficulty is about. Markdown."""
    shown, every = view.checkpoints, view.checkpoints_in_all
    counted = f"the newest {shown} of {quantities.count(every)}" if shown < every else quantities.count(shown)
    noun = "checkpoint" if every == 1 else "checkpoints"
    said = f"Of {counted} {noun} on {escaped(view.backbone)}, track {view.track}, greedy answers, by `{view.scorer}`."
    if view.without_items:
        said += f" {quantities.count(view.without_items)} of them have no answers stored item by item and do not count."
    return said


def difficulty_table(view: TaskView) -> str:
    """The histogram as numbers."""
    rows = [
        (f"{10 * place} to {10 * place + 10}", Text(quantities.count(items), number=True))
        for place, items in enumerate(view.difficulty)
    ]
    return plain_table(("Per cent of checkpoints", "Items"), rows, "Items by difficulty")


def agreements(found: Sequence[Agreement], scorer: str) -> str:
    """Each other scorer against the headline's."""
    rows = [
        (
            Text(one.scorer),
            Text(f"{quantities.fixed(100 * one.equal / judged, 1)} per cent" if judged else "—", number=True),
            Text(quantities.count(judged - one.equal), number=True),
            Text(quantities.count(one.failed), number=True),
            Text(quantities.count(one.answers), number=True),
            Text(
                f"run {one.runs[0][-8:]}" if one.runs else "",
                href=links.run_link(one.runs[0]) if one.runs else None,
                title="Both verdicts and the answer, on the page of a run" if one.runs else None,
            ),
        )
        for one in found
        for judged in [one.answers - one.failed]
    ]
    heads = (f"Against {scorer}", "Agree on", "Differ on", "One failed on", "Answers", "For example")
    return plain_table(heads, rows, "Agreement of scorers")


def items(view: TaskView) -> str:
    """One page of items; each leads to itself."""
    rows = [
        (
            Text(row.item_id, href=links.task_link(view, item=row.item_id)),
            Text(f"{row.solved} of {row.answered}" if row.answered else "not answered", number=True),
            Text(quantities.share(row.solved / row.answered) if row.answered else "—", number=True),
        )
        for row in view.rows
    ]
    return plain_table(("Item", "Solved by", "Per cent"), rows, f"Items of {view.task.title}")


def orders(view: TaskView, order: str) -> str:
    """In which order items stand, and the ways to the others."""
    ways = [
        f"<b>{escape(ORDER_NAMES[one])}</b>"
        if one == order
        else f'<a href="{escape(links.task_link(view, order=one))}">{escape(ORDER_NAMES[one])}</a>'
        for one in ORDERS
    ]
    return f'<div class="dare"><p class="second">{" · ".join(ways)}</p></div>'


def pages(view: TaskView, order: str) -> str:
    """Where one is among the pages of items, and the ways back and on."""
    parts = [f"page {quantities.count(view.page)} of {quantities.count(view.pages)}"]
    if view.page > 1:
        parts.insert(0, f'<a href="{escape(links.task_link(view, order=order, ipage=view.page - 1))}">before</a>')
    if view.page < view.pages:
        parts.append(f'<a href="{escape(links.task_link(view, order=order, ipage=view.page + 1))}">next</a>')
    return f'<div class="dare"><p class="second">{" · ".join(parts)}</p></div>'


def item(found: ItemView) -> str:
    """One item as it was asked, what is right, and one right and one wrong answer of public entries."""
    blocks = [_block("Prompt", found.prompt), _block("Right", found.gold)] if found.prompt is not None else []
    blocks += [_answer("A right answer", found.right), _answer("A wrong answer", found.wrong)]
    hashes = [("Hash of the item", found.sha256)]
    if found.prompt_sha256 is not None:
        hashes.append(("Hash of the prompt as asked", found.prompt_sha256))
    facts = "".join(f"{escape(name)} <code>{escape(value)}</code><br>" for name, value in hashes)
    why = f"<p>{escape(found.why_not)}</p>" if found.why_not else ""
    return f'<div class="dare prose">{why}{"".join(blocks)}<p class="second">{facts}</p></div>'


def example(view: TaskView) -> str:
    """The task's own example, made to be shown."""
    asked_item, right = view.task.example
    prompt = asked_item.prompt if isinstance(asked_item.prompt, str) else asked_item.prompt[-1]["content"]
    return f'<div class="dare prose">{_block("Prompt", prompt)}{_block("A right answer", right)}</div>'


def _block(title: str, text: str | None) -> str:
    if text is None:
        return ""
    return f'<p class="second">{escape(title)}</p><pre class="log" tabindex="0"><bdi>{escape(text)}</bdi></pre>'


def _answer(title: str, answer: Answer | None) -> str:
    if answer is None:
        return f'<p class="second">{escape(title)}: none among these checkpoints, or none that may be shown.</p>'
    where = (
        f'<a href="{escape(links.run_link(answer.run_id))}"><bdi>{escape(answer.entry)}</bdi>, seed {answer.seed}</a>'
    )
    read = "nothing" if answer.read is None else f"<code>{escape(answer.read)}</code>"
    cut = ", cut off" if answer.truncated else ""
    return (
        f'<p class="second">{escape(title)} of {where}: {quantities.plural(answer.tokens, "token")}{cut}, '
        f'read as {read}</p><pre class="log" tabindex="0"><bdi>{escape(answer.output)}</bdi></pre>'
    )
