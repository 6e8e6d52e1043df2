"""What belongs to an account besides messages: keys for programs, the quota, and for admins everybody's accounts."""

from __future__ import annotations

from datetime import UTC, datetime

import streamlit as st
from sqlalchemy.orm import Session

from dare_platform import accounts, quotas, tokens
from dare_platform.accounts import AccountView
from dare_platform.models import Role
from dare_platform.tokens import TokenView
from dare_platform.verdict import escaped
from dare_platform.viewer import MAY, Scope, Viewer
from leaderboard import actions, people, quantities, reading, texts

NEW_TOKEN = "new_token"
"""Key of a token that the next drawing of the page shows once."""
DAYS = (7, 30, 90, 365)


def quota(who: Viewer) -> None:
    """What is used of what one may ask for; nothing where there is no limit."""
    if line := quota_line(who):
        st.header("Quota", anchor=False)
        st.markdown(line)


def quota_line(who: Viewer) -> str | None:
    """One sentence, or None where nothing can run out."""
    if who.account_id is None:
        return None
    with reading.database().read() as session:
        left = quotas.left_of(session, reading.settings().quota, who.account_id)
    if not left.has_limit:
        return None
    free = ""
    if left.is_used_up and left.next_free_at is not None:
        free = f" The next is free at {quotas.moment(left.next_free_at, datetime.now(UTC).timestamp())}."
    return f"Used: {left.sentence}.{free}"


def keys(who: Viewer) -> None:
    """Tokens, and the form for one more."""
    st.header("Tokens", anchor=False)
    st.caption(texts.TOKENS)
    with reading.database().read() as session:
        found = tokens.tokens_of(session, who)
    for token in found:
        _key(token)
    if secret := st.session_state.pop(NEW_TOKEN, None):
        st.markdown(f"**The token.** {texts.SHOWN_ONCE}")
        st.code(secret, language=None, wrap_lines=True)
    offered: list[Scope] = [scope for scope in tokens.SCOPES if who.may(scope)]
    with st.form("new-token", border=False):
        name = st.text_input("Name", key="token-name", max_chars=tokens.LONGEST_NAME, placeholder="laptop", width=320)
        scopes = st.pills(
            "It may", offered, selection_mode="multi", default=offered[:2], key="token-scopes",
        )  # fmt: skip
        days = st.segmented_control("For, in days", DAYS, default=90, required=True, key="token-days")
        sent = st.form_submit_button("Make a token", key="make-token")
    if sent:
        made = actions.act(lambda session, viewer: tokens.issue(session, viewer, name, scopes, days))
        if made is not None:
            st.session_state[NEW_TOKEN] = made.token
            st.rerun()


def _key(token: TokenView) -> None:
    """What it may, until when, when it was used, and the way to end it."""
    zone = reading.zone()
    until = "without end"
    if token.expires_at is not None:
        word = "ended" if token.is_expired(datetime.now(UTC)) else "until"
        until = f"{word} {quantities.moment(token.expires_at.timestamp(), zone)}"
    used = "never used"
    if token.last_used_at is not None:
        used = f"last used {quantities.moment(token.last_used_at.timestamp(), zone)}"
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{escaped(token.name)}** · {', '.join(token.scopes)} · {until} · {used}")
        if st.button("Revoke", key=f"revoke-{token.id}"):
            actions.do(
                "Revoked. It opens nothing any more.", lambda session, who: tokens.revoke(session, who, token.id)
            )


def everybody(who: Viewer) -> None:
    """For admins: who is here, what they may do, and the change of one of them."""
    if not (people.has_sign_in() and who.may("admin")):
        return
    with reading.database().read() as session:
        found = accounts.accounts(session, who)
    st.header("Accounts", anchor=False)
    others = {account.handle: account for account in found if account.id != who.account_id}
    st.dataframe([_line(account) for account in found], hide_index=True)
    if not others:
        st.caption("Nobody else has signed in yet.")
        return
    handle = st.selectbox("Change", list(others), key="whom", width=320)
    _change(others[handle])


def _line(account: AccountView) -> dict[str, object]:
    return {
        "account": account.handle,
        "role": account.role,
        "let in": "yes" if account.active else "no",
        "entries": account.entries,
        "entries a day": account.entries_per_day,
        "device-hours a week": account.device_hours_per_week,
        "signs in through": account.provider,
    }


def _change(account: AccountView) -> None:
    """Role, quota, and whether the account is let in."""
    roles: list[Role] = list(MAY)
    with st.form("change-account", border=False), st.container(horizontal=True, vertical_alignment="bottom"):
        role = st.selectbox("Role", roles, index=roles.index(account.role), key=f"role-{account.id}", width=160)
        entries = st.number_input(
            "Entries a day", 0, accounts.MOST_PER_DAY, account.entries_per_day, key=f"entries-{account.id}",
            placeholder="as everybody", width=180,
        )  # fmt: skip
        hours = st.number_input(
            "Device-hours a week", 0.0, accounts.MOST_HOURS, account.device_hours_per_week, key=f"hours-{account.id}",
            placeholder="as everybody", width=180,
        )  # fmt: skip
        changed = st.form_submit_button("Save", key="save-account")
    if changed:

        def change(session: Session, who: Viewer) -> None:
            accounts.set_role(session, who, account.id, role)
            accounts.set_quota(session, who, account.id, entries, hours)

        actions.do(f"{account.handle} is changed.", change)
    switch, label = (accounts.switch_off, "Switch off") if account.active else (accounts.switch_on, "Switch on")
    if st.button(label, key="switch-account"):
        actions.do(f"{account.handle}: {label.lower()}, done.", lambda session, who: switch(session, who, account.id))
