"""What is said when an entry or a run has ended: the same facts as JSON for programs and as a mail for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from dare_platform.models import Run, Subscription
from dare_platform.viewer import viewer_of
from dare_platform.views import entry_view
from dare_platform.views.rows import KINDS, summaries


@dataclass(frozen=True)
class Message:
    """One message, ready to be sent."""

    subject: str
    text: str
    content: dict[str, Any]


def delivery_id(subscription_id: str, run_id: str) -> str:
    """Names a message: the same however often it is sent."""
    return f"{subscription_id}-{run_id}"


def message_about(session: Session, subscription: Subscription, run: Run, site: str | None) -> Message | None:
    """What a subscription is told of a run, or of the entry that ended with it; None when its owner may not know.

    Args:
        site: address of the site, for links.
    """
    owner = viewer_of(subscription.account_id, "submitter")
    entry = entry_view(session, run.entry_id, owner)
    if entry is None:
        return None
    summary = entry.summary
    link = f"{site}/entry?id={summary.id}" if site else None
    about: dict[str, Any] = {
        "delivery": delivery_id(subscription.id, run.id),
        "event": "run.ended" if subscription.each_run else "entry.ended",
        "at": run.finished_at,
        "entry": {
            "id": summary.id,
            "name": summary.name,
            "track": summary.track,
            "backbones": list(summary.backbones),
            "status": summary.status,
            "runs_done": summary.runs_done,
            "runs_total": summary.runs_total,
            "url": link,
        },
    }
    lines = [entry.headline.replace("**", "")]
    subject = f"{summary.name}: {summary.status}"
    if subscription.each_run:
        one = summaries(session, Run.id == run.id, viewer=owner)[0]
        about["run"] = {
            "id": run.id, "kind": run.kind, "backbone": one.backbone, "seed": run.seed, "state": run.state,
            "cause": run.cause, "sentence": run.sentence, "url": f"{site}/run?id={run.id}" if site else None,
        }  # fmt: skip
        what = f"{KINDS[run.kind]} on {one.backbone}, seed {run.seed}"
        subject = f"{summary.name}: {what} {run.state}"
        lines = [f"{what[0].upper()}{what[1:]}: {run.state}.", *([run.sentence] if run.sentence else []), *lines]
        link = about["run"]["url"]
    elif entry.ending is not None:
        pays = "It is charged." if entry.ending.charged else "Nothing is charged."
        lines.append(f"{entry.ending.sentence} {pays} {entry.ending.next_step}")
    text = "\n".join([*lines, "", f"Track {summary.track}, entry {summary.id}.", *([link] if link else [])])
    return Message(f"[DARE] {subject}", text + "\n", about)
