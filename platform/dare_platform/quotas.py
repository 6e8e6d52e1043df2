"""Quotas: what an account may ask for in a day and a week, charged by what was revealed, in a ledger that gives back.

Every entry and every charged attempt writes a row, whether or not there is a limit. A row is never changed: what is
given back is a row with the opposite amount, at most once. Limits are asked when an entry is submitted; no run is ever
ended because of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from sqlalchemy import ColumnElement, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, aliased

from dare_platform.database import now
from dare_platform.errors import PlatformError
from dare_platform.models import Account, Attempt, Entry, MetricPoint, QuotaLedger, Run, Usage
from dare_platform.settings import Quota

NO_QUOTA = Quota()
DAY, WEEK = 24 * 3600.0, 7 * 24 * 3600.0
HOUR = 3600.0


class QuotaError(PlatformError):
    """Nothing is left. The sentence says what is used, what the limit is, and when something comes free."""


@dataclass(frozen=True)
class QuotaLeft:
    """What an account has used of what it may."""

    entries_used: int
    """In the last 24 hours, those that were given back not counted."""
    entries_limit: int | None
    device_hours_used: float
    """In the last seven days."""
    device_hours_limit: float | None
    next_free_at: float | None
    """When the next entry may be submitted, in seconds since 1970; None when it may be now, or never."""

    @property
    def has_limit(self) -> bool:
        """Whether there is anything to run out of."""
        return self.entries_limit is not None or self.device_hours_limit is not None

    @property
    def is_used_up(self) -> bool:
        """Whether nothing more may be submitted now."""
        entries = self.entries_limit is not None and self.entries_used >= self.entries_limit
        hours = self.device_hours_limit is not None and self.device_hours_used >= self.device_hours_limit
        return entries or hours

    @property
    def sentence(self) -> str:
        """For the one whose quota it is: `3 of 5 entries in 24 h, 1.5 of 10 device-hours in 7 days`."""
        parts = []
        if self.entries_limit is not None:
            parts.append(f"{self.entries_used} of {self.entries_limit} entries in 24 h")
        if self.device_hours_limit is not None:
            parts.append(f"{self.device_hours_used:.3g} of {self.device_hours_limit:g} device-hours in 7 days")
        return ", ".join(parts)


def charge_entry(session: Session, quota: Quota, account_id: str, entry_id: str) -> None:
    """Charge an entry to its author, in the transaction that writes it. QuotaError when nothing is left.

    One that is charged already is not charged again. Call it after the last run was locked: who ends a run locks the
    run first, and the account afterwards.
    """
    # without its key: rows that refer to the account, such as the entry itself, are written by others meanwhile
    session.execute(select(Account.id).where(Account.id == account_id).with_for_update(key_share=True)).one()
    if _standing_of(session, entry_id):
        return
    for charged in {row.entry_id for row in _standing(session, account_id, "entries", DAY)}:
        give_back_unseen(session, charged)
    left = left_of(session, quota, account_id)
    if left.is_used_up:
        raise QuotaError(_refusal(left, now(session)))
    _write(session, account_id, "entries", 1.0, entry_id=entry_id, note="submitted")


def charge_attempt(session: Session, usage: Usage) -> None:
    """Charge a charged attempt's time on its device to the entry's author.

    By the platform's own clock: what the runner says of itself is worth nothing where it was killed.
    """
    if not usage.charged or usage.wall_seconds == 0:
        return
    entry_id, account_id = session.execute(
        select(Entry.id, Entry.submitted_by).join(Run, Run.entry_id == Entry.id).where(Run.id == usage.run_id)
    ).one()
    _write(
        session, account_id, "device_seconds", usage.wall_seconds,
        entry_id=entry_id, run_id=usage.run_id, note=f"attempt {usage.token}",
    )  # fmt: skip


def give_back(session: Session, entry_id: str, why: str) -> None:
    """Reverse what an entry was charged as an entry. A second time changes nothing; device time stays charged."""
    for charge in _standing_of(session, entry_id):
        try:
            with session.begin_nested():
                _write(
                    session, charge.account_id, "entries", -charge.amount,
                    entry_id=entry_id, reverses=charge.id, note=why,
                )  # fmt: skip
        except IntegrityError:  # another run of the entry ended at the same moment and gave it back
            continue


def give_back_unseen(session: Session, entry_id: str) -> None:
    """Reverse an entry that was cancelled as a whole before its first score or log line was there to be read."""
    work = (Run.entry_id == entry_id) & (Run.kind != "check")
    others = session.execute(select(Run.id).where(work, Run.state != "cancelled").limit(1)).first()
    seen = session.execute(
        select(Run.id)
        .outerjoin(Attempt, Attempt.run_id == Run.id)
        .outerjoin(MetricPoint, MetricPoint.run_id == Run.id)
        .where(work, (Attempt.log_tail != "") | MetricPoint.name.is_not(None) | Run.reward.is_not(None))
        .limit(1)
    ).first()
    if others is None and seen is None:
        give_back(session, entry_id, "cancelled before anything was revealed")


def left_of(session: Session, quota: Quota, account_id: str) -> QuotaLeft:
    """What is used and what the limits are: the account's own, or those of `quota`."""
    account = session.get_one(Account, account_id)
    most = quota.entries_per_day if account.entries_per_day is None else account.entries_per_day
    hours = quota.device_hours_per_week if account.device_hours_per_week is None else account.device_hours_per_week
    entries = _standing(session, account_id, "entries", DAY)
    times = _standing(session, account_id, "device_seconds", WEEK)
    waits = [
        *_free_at(entries, None if most is None else float(most), DAY),
        *_free_at(times, None if hours is None else hours * HOUR, WEEK),
    ]
    return QuotaLeft(
        entries_used=len(entries),
        entries_limit=most,
        device_hours_used=sum(row.amount for row in times) / HOUR,
        device_hours_limit=hours,
        next_free_at=None if None in waits else max((at for at in waits if at is not None), default=None),
    )


def moment(at: float, seen_at: float) -> str:
    """A time to come, rounded up to the minute: `14:20 UTC`, with its day when it is not today."""
    then = datetime.fromtimestamp(at, UTC) + timedelta(seconds=59)
    day = "" if then.date() == datetime.fromtimestamp(seen_at, UTC).date() else f" on {then.day} {then:%B}"
    return f"{then:%H:%M} UTC{day}"


def _refusal(left: QuotaLeft, at: float) -> str:
    if left.next_free_at is None:
        return f"Not submitted: this account has used {left.sentence}; only an admin can give it more."
    return f"Not submitted: this account has used {left.sentence}; the next is free at {moment(left.next_free_at, at)}."


Kind = Literal["entries", "device_seconds"]


class _Charge(NamedTuple):
    id: str
    account_id: str
    entry_id: str
    at: float
    amount: float


def _standing(session: Session, account_id: str, kind: Kind, window: float) -> Sequence[_Charge]:
    """Charges of the last `window` seconds that were not given back, oldest first."""
    return _charges(
        session,
        QuotaLedger.account_id == account_id,
        QuotaLedger.kind == kind,
        QuotaLedger.at > now(session) - window,
    )


def _standing_of(session: Session, entry_id: str) -> Sequence[_Charge]:
    """What an entry was charged as an entry and has not been given back."""
    return _charges(session, QuotaLedger.entry_id == entry_id, QuotaLedger.kind == "entries")


def _charges(session: Session, *where: ColumnElement[bool]) -> Sequence[_Charge]:
    reversal = aliased(QuotaLedger)
    query = (
        select(QuotaLedger.id, QuotaLedger.account_id, QuotaLedger.entry_id, QuotaLedger.at, QuotaLedger.amount)
        .outerjoin(reversal, reversal.reverses == QuotaLedger.id)
        .where(*where, QuotaLedger.reverses.is_(None), reversal.id.is_(None))
        .order_by(QuotaLedger.at, QuotaLedger.id)
    )
    return [_Charge(id, account, entry or "", at, amount) for id, account, entry, at, amount in session.execute(query)]


def _free_at(charges: Sequence[_Charge], limit: float | None, window: float) -> Sequence[float | None]:
    """When enough of these has passed out of the window; empty when there is room now, None when it never does."""
    used = sum(charge.amount for charge in charges)
    if limit is None or used < limit:
        return []
    for charge in charges:
        used -= charge.amount
        if used < limit:
            return [charge.at + window]
    return [None]


def _write(
    session: Session,
    account_id: str,
    kind: Kind,
    amount: float,
    *,
    entry_id: str,
    run_id: str | None = None,
    reverses: str | None = None,
    note: str,
) -> None:
    session.add(
        QuotaLedger(
            account_id=account_id,
            kind=kind,
            amount=amount,
            entry_id=entry_id,
            run_id=run_id,
            reverses=reverses,
            at=now(session),
            note=note,
        )
    )
    session.flush()
