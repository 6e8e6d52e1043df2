"""Quotas: charged by what was revealed, given back at most once, asked only when an entry is submitted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from played import built_in, register, steps, succeed, take, upload
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from dare_platform import accounts, checks, endings, entries, quotas
from dare_platform.database import Database
from dare_platform.models import Account, QuotaLedger, Run
from dare_platform.quotas import NO_QUOTA, QuotaError, left_of
from dare_platform.settings import Quota
from dare_platform.viewer import LOCAL, Viewer, viewer_of

TWO = Quota(entries_per_day=2)
METHODS = ("bgpo", "d1", "cj_grpo", "spg")


def ada(session: Session) -> Viewer:
    account = accounts.signed_in(session, "https://id.example", "ada", "ada", None)
    return viewer_of(account.id, account.role)


def used(session: Session, who: Viewer, quota: Quota = TWO) -> int:
    return left_of(session, quota, str(who.account_id)).entries_used


def submit(session: Session, who: Viewer, name: str, quota: Quota = TWO) -> str:
    return entries.submit(session, who, built_in(name), f"key-{name}", quota=quota).entry_id


def test_the_third_of_two_is_refused_with_what_is_used_and_when_it_is_free(database: Database) -> None:
    with database.write() as session:
        register(session)
        who = ada(session)
        submit(session, who, "bgpo")
        submit(session, who, "d1")
    with (
        database.write() as session,
        pytest.raises(QuotaError, match=r"has used 2 of 2 entries in 24 h; the next is free at \d\d:\d\d UTC"),
    ):
        submit(session, who, "cj_grpo")
    with database.read() as session:
        assert used(session, who) == 2
        assert session.execute(select(func.count()).select_from(Run)).scalar_one() > 0


def test_the_same_entry_again_is_charged_once_and_nobody_pays_for_somebody_else(database: Database) -> None:
    with database.write() as session:
        register(session)
        who = ada(session)
        for _ in range(3):
            submit(session, who, "bgpo")
        submit(session, LOCAL, "d1", NO_QUOTA)
        assert (used(session, who), used(session, LOCAL)) == (1, 1)


def test_without_a_limit_everything_is_noted_and_nothing_refused(sqlite: Database) -> None:
    with sqlite.write() as session:
        register(session)
        for name in METHODS:
            submit(session, LOCAL, name, NO_QUOTA)
        left = left_of(session, NO_QUOTA, "local")
        assert (left.entries_used, left.has_limit, left.is_used_up, left.next_free_at) == (4, False, False, None)


def test_an_accounts_own_limit_goes_before_the_installations(sqlite: Database) -> None:
    with sqlite.write() as session:
        register(session)
        who = ada(session)
        accounts.set_quota(session, LOCAL, "ada", 0, None)
        with pytest.raises(QuotaError, match="0 of 0 entries in 24 h; only an admin can give it more"):
            submit(session, who, "bgpo")


def test_an_entry_that_was_cancelled_before_anything_was_seen_is_given_back_and_later_not(database: Database) -> None:
    with database.write() as session:
        register(session)
        who = ada(session)
        unseen = submit(session, who, "bgpo")
        entries.cancel(session, who, unseen)
        assert used(session, who) == 0
        seen = submit(session, who, "d1")
        claimed = take(session)
        assert claimed is not None
        steps(session, claimed, 2)
        entries.cancel(session, who, seen)
        assert endings.end_cancelled(session, claimed.run_id, claimed.token, "t")
        assert used(session, who) == 1


def test_an_entry_that_its_check_rejects_costs_nothing(sqlite: Database) -> None:
    with sqlite.write() as session:
        register(session)
        who = ada(session)
        entries.submit(session, who, upload(), "key", quota=TWO)
        assert used(session, who) == 1
        claimed = take(session)
        assert claimed is not None
        assert claimed.job.kind == "check"
        for _ in range(2):
            checks.conclude_check(session, claimed.run_id, passed=False, message="no gradient", log="")
        assert used(session, who) == 0
        assert session.execute(select(func.sum(QuotaLedger.amount))).scalar_one() == 0


def test_a_run_that_we_lost_for_good_costs_its_author_nothing(sqlite: Database) -> None:
    with sqlite.write() as session:
        register(session)
        who = ada(session)
        submit(session, who, "bgpo")
        claimed = take(session)
        assert claimed is not None
        assert endings.fail(session, claimed.run_id, "lost_worker", actor="t", token=claimed.token, for_good=True)
        assert used(session, who) == 0


def test_time_on_a_device_is_charged_by_our_clock_and_ends_no_run(sqlite: Database) -> None:
    with sqlite.write() as session:
        register(session)
        who = ada(session)
        submit(session, who, "bgpo", NO_QUOTA)
        while (claimed := take(session)) is not None:
            endings.close_attempt(session, claimed.run_id, claimed.token, "cancelled")
            endings._end_as_cancelled(session, claimed.run_id, "t", claimed.token)
        spent = left_of(session, NO_QUOTA, str(who.account_id)).device_hours_used
        assert spent > 0
        hours = Quota(device_hours_per_week=spent / 2)
        with pytest.raises(QuotaError, match=r"device-hours in 7 days; the next is free at"):
            submit(session, who, "d1", hours)


@pytest.mark.full
def test_of_two_who_take_the_last_place_at_once_one_gets_it(database: Database) -> None:
    with database.write() as session:
        register(session)
        who = ada(session)
        submit(session, who, "spg")

    def one(name: str) -> bool:
        try:
            with database.write() as session:
                submit(session, who, name)
        except QuotaError:
            return False
        return True

    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(one, ("bgpo", "d1", "cj_grpo")))
    assert sorted(outcomes) == [False, False, True]
    with database.read() as session:
        assert used(session, who) == 2


Act = st.sampled_from(("submit", "cancel", "work", "give back"))


@given(acts=st.lists(st.tuples(Act, st.sampled_from(METHODS)), max_size=12))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_happens_no_charge_is_given_back_twice_and_nothing_is_owed(
    sqlite: Database, acts: list[tuple[str, str]]
) -> None:
    with sqlite.write() as session:
        register(session)
        who = ada(session)
        made: dict[str, str] = {}
        for act, name in acts:
            if act == "submit":
                made[name] = submit(session, who, name, NO_QUOTA)
            elif act == "work" and (claimed := take(session)) is not None:
                succeed(session, claimed, lambda run, task: 0.5)
            elif name in made and act == "cancel":
                entries.cancel(session, who, made[name])
            elif name in made:
                quotas.give_back(session, made[name], "test")
        rows = session.execute(select(QuotaLedger).where(QuotaLedger.kind == "entries")).scalars().all()
        by_entry: dict[str | None, float] = {}
        for row in rows:
            by_entry[row.entry_id] = by_entry.get(row.entry_id, 0.0) + row.amount
        assert set(by_entry.values()) <= {0.0, 1.0}
        reversed_ = [row.reverses for row in rows if row.reverses]
        assert len(reversed_) == len(set(reversed_))
        assert used(session, who) == sum(by_entry.values())
        assert session.execute(select(func.count()).select_from(Account)).scalar_one() >= 2
        session.rollback()
