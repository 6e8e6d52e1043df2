"""How an entry stands: computed from its gate and the states of its runs, stored nowhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare_platform.models import ACTIVE, Run

EntryStatus = Literal["waiting", "running", "complete", "partial", "failed", "rejected", "withdrawn"]


def status_of(gate: str, states: Sequence[str]) -> EntryStatus:
    """Withdrawn and rejected come from the gate; then any active run, any waiting one, and how the ended ones ended."""
    if gate == "withdrawn":
        return "withdrawn"
    if gate == "rejected":
        return "rejected"
    if any(state in ACTIVE for state in states):
        return "running"
    if any(state in ("blocked", "queued") for state in states):
        return "waiting"
    if all(state == "succeeded" for state in states):
        return "complete" if states else "waiting"
    return "partial" if any(state == "succeeded" for state in states) else "failed"


def statuses(session: Session, gates: Mapping[str, str], backbone: str | None = None) -> dict[str, EntryStatus]:
    """Status of several entries by id; over the runs of one backbone revision when its id is given.

    Checks count among the runs of an entry until it is accepted or rejected: what they found is then in its gate.
    """
    query = select(Run.entry_id, Run.kind, Run.state).where(Run.entry_id.in_(list(gates)))
    if backbone is not None:
        query = query.where((Run.backbone_revision_id == backbone) | (Run.kind == "check"))
    states: dict[str, list[str]] = {entry: [] for entry in gates}
    for entry, kind, state in session.execute(query):
        if kind != "check" or state not in ("succeeded", "cancelled"):
            states[entry].append(state)
    return {entry: status_of(gate, states[entry]) for entry, gate in gates.items()}


def sentence_of(status: EntryStatus, states: Sequence[str], rejection: str | None = None) -> str:
    """The status in one sentence, Markdown, its first words bold."""
    count = Counter(states)
    done, total = count["succeeded"], len(states)
    runs = "run" if total == 1 else "runs"
    if status == "withdrawn":
        return "**Withdrawn.** Results stay readable; they are not ranked."
    if status == "rejected":
        return f"**Rejected before queuing, nothing is charged.** {rejection or ''}".strip()
    if status == "running":
        active = sum(count[state] for state in ACTIVE)
        return f"**Running.** {active} of {total} {runs} at work, {done} done."
    if status == "waiting":
        return f"**Waiting.** {done} of {total} {runs} done."
    if status == "complete":
        return f"**Complete.** {done} of {total} {runs} succeeded."
    if status == "partial":
        return f"**{done} of {total} {runs} succeeded.** Not ranked while others are missing."
    return "**Cancelled.** No run was finished." if count["failed"] == 0 else "**All runs failed.**"
