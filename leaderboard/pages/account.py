"""Account: who one is here, what one may still ask for, keys for programs, and how one is told that something ended."""

from __future__ import annotations

import streamlit as st

from dare_platform import subscriptions
from dare_platform.models import Channel
from dare_platform.subscriptions import SubscriptionView
from dare_platform.verdict import escaped
from dare_platform.viewer import Viewer
from leaderboard import actions, administration, people, quantities, reading, texts
from leaderboard.plain_tables import Text, plain_table

NEW_SECRET = "new_secret"
"""Key of a webhook's secret that the next drawing of this page shows once."""
WAYS: dict[str, Channel] = {"webhook": "webhook", "mail": "mail"}
WHEN = ("whole entry", "each run")


def page() -> None:
    """Who one is, then what belongs to this account."""
    reading.title("Account")
    who = people.viewer()
    if not _who(who):
        return
    actions.say()
    administration.quota(who)
    _messages(who)
    administration.keys(who)
    administration.everybody(who)


def _who(who: Viewer) -> bool:
    """The title and the way in or out; whether there is an account to show."""
    person = people.person()
    if person is None and people.has_sign_in():
        st.title("Sign in", anchor=False)
        st.markdown(texts.WHY_SIGN_IN)
        people.sign_in_button("sign-in")
        return False
    if who.account_id is None:
        st.title("Account", anchor=False)
        st.markdown(texts.READING_ONLY if person is None else texts.role_lacks(person.role, person.active))
        if person is not None:
            _sign_out()
        return False
    if person is None:
        st.title("Messages and tokens", anchor=False)
        return True
    st.title(escaped(person.handle), anchor=False)
    mail = f" · {person.email}" if person.email else ""
    st.caption(escaped(f"{person.role}{mail} · signed in through {person.issuer} as {person.subject}"))
    reason = people.why_not(who, "submit")
    if reason is not None:
        st.markdown(reason)
    _sign_out()
    return reason is None


def _sign_out() -> None:
    if st.button("Sign out", key="sign-out"):
        st.session_state.pop(people.KNOWN, None)
        st.logout()


def _messages(who: Viewer) -> None:
    """How one is told, what did not arrive, and one more wish."""
    st.header("Tell me when it has ended", anchor=False)
    st.caption(texts.MESSAGES)
    with reading.database().read() as session:
        found = subscriptions.subscriptions_of(session, who)
    if not found:
        st.markdown(texts.NO_MESSAGES)
    for wish in found:
        _wish(wish)
    if secret := st.session_state.pop(NEW_SECRET, None):
        st.markdown(f"**The webhook's secret.** {texts.SHOWN_ONCE}")
        st.code(secret, language=None, wrap_lines=True)
    _new_wish()


def _wish(wish: SubscriptionView) -> None:
    """Where it goes, how it went, and the way to end it."""
    when = "each run" if wish.each_run else "whole entry"
    target = wish.target.replace("`", "%60")
    went = [f"{quantities.count(wish.sent)} arrived"]
    went += [f"{quantities.count(wish.waiting)} to be sent"] if wish.waiting else []
    went += [f"{quantities.count(wish.failed)} given up"] if wish.failed else []
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{wish.channel}** · `{target}` · {when} · {', '.join(went)}")
        if st.button("End it", key=f"end-{wish.id}"):
            actions.end_subscription(wish.id)
    if wish.failures:
        rows = [
            (
                Text(failure.entry_name),
                Text(failure.problem),
                Text(quantities.count(failure.tries), number=True),
                Text("given up" if failure.given_up else "tried again", mark="attention" if failure.given_up else ""),
            )
            for failure in wish.failures
        ]
        st.html(plain_table(("Entry", "What happened", "Tries", ""), rows, "Messages that have not arrived"))


def _new_wish() -> None:
    """The form; a mail goes to the address that one signs in with, where people sign in."""
    chosen = reading.settings()
    ways = tuple(WAYS) if chosen.smtp_url else ("webhook",)
    with st.form("new-message", border=False):
        way = "webhook"
        if len(ways) > 1:
            way = st.segmented_control("By", ways, default="webhook", required=True, key="way")
        person = people.person()
        to_oneself = " (a mail goes to yours)" if person is not None else ""
        label = f"Address{to_oneself}" if len(ways) > 1 else "Address of the webhook"
        target = st.text_input(label, key="target", max_chars=500, placeholder="https://example.org/dare", width=520)
        when = st.segmented_control("One message for", WHEN, default=WHEN[0], required=True, key="when")
        sent = st.form_submit_button("Tell me", key="tell")
    if not chosen.smtp_url:
        st.caption(texts.NO_MAIL)
    if sent:
        mail = person.email if person is not None and way == "mail" else None
        made = actions.subscribe(WAYS[way], mail or target, each_run=when == WHEN[1])
        if made is not None:
            st.session_state[NEW_SECRET] = made.secret
            st.rerun()
