"""`dare tokens`, `dare accounts`: keys for programs, and who may do what here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from dare_platform.cli.output import AsJson, Sentences, reading, say, show, table, write, write_json, writing

if TYPE_CHECKING:
    from datetime import datetime

    from dare_platform.models import Role
    from dare_platform.viewer import Scope

ENDLESS = "never"
tokens = typer.Typer(cls=Sentences, no_args_is_help=True, help="Keys for programs: made, listed and revoked.")
accounts = typer.Typer(cls=Sentences, no_args_is_help=True, help="Who may do what here. For admins.")
Who = Annotated[str, typer.Argument(metavar="ACCOUNT", help="Its handle or id; `dare accounts list` has them.")]


def add_to(app: typer.Typer, panel: str) -> None:
    """Register the commands."""
    tokens.command()(revoke)
    tokens.command("list")(list_tokens)
    tokens.command("new")(new_token)
    commands: tuple[Callable[..., None], ...] = (role, off, on, erase, quota)
    for command in commands:
        accounts.command()(command)
    accounts.command("list")(list_accounts)
    app.add_typer(tokens, name="tokens", rich_help_panel=panel)
    app.add_typer(accounts, name="accounts", rich_help_panel=panel)


def list_tokens(as_json: AsJson = False) -> None:
    """List your tokens: what each may do, until when, and when it was last used."""
    from dare_platform.tokens import tokens_of
    from dare_platform.viewer import LOCAL

    with reading() as session:
        found = tokens_of(session, LOCAL)
    if as_json:
        write_json([{"id": one.id, "name": one.name, "scopes": one.scopes, "expires_at": _said(one.expires_at),
                     "last_used_at": _said(one.last_used_at)} for one in found])  # fmt: skip
        return
    if not found:
        say("No token yet. Make one: dare tokens new laptop")
        return
    rows = [(t.id, t.name, ", ".join(t.scopes), _said(t.expires_at), _said(t.last_used_at)) for t in found]
    show(table("id", "name", "may", "until", "last used", rows=rows))


def new_token(
    name: Annotated[str, typer.Argument(help="For you, to know it again: `laptop`.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="read, submit, operate or admin; repeatable. read and submit by default.")
    ] = None,
    days: Annotated[float, typer.Option(help="How long it lives; 0 without end.")] = 90.0,
    as_json: AsJson = False,
) -> None:
    """Make a token. It goes to standard output, once: keep it in a file that only you can read.

    `dare tokens new laptop > ~/.dare-token` · then `DARE_TOKEN_FILE=~/.dare-token dare --server https://HOST queue`
    """
    from dare_platform.tokens import issue
    from dare_platform.viewer import LOCAL

    scopes: list[Scope] = list(scope or ("read", "submit"))  # type: ignore[arg-type]  # checked by name in `issue`
    with writing() as session:
        made = issue(session, LOCAL, name, scopes, days or None)
    if as_json:
        write_json(made)
        return
    say("Keep this token: it is not shown again.")
    write(made.token)


def revoke(id: Annotated[str, typer.Argument(help="Of `dare tokens list`.")]) -> None:
    """End a token at once."""
    from dare_platform import tokens as platform_tokens
    from dare_platform.viewer import LOCAL

    with writing() as session:
        platform_tokens.revoke(session, LOCAL, id)
    say("Revoked. It opens nothing any more.")


def list_accounts(as_json: AsJson = False) -> None:
    """List all accounts: role, whether they are let in, how many entries, and limits of their own."""
    from dare_platform import accounts as platform_accounts
    from dare_platform.viewer import LOCAL

    with reading() as session:
        found = platform_accounts.accounts(session, LOCAL)
    if as_json:
        fields = ("id", "handle", "role", "active", "provider", "subject", "email", "entries", "entries_per_day",
                  "device_hours_per_week")  # fmt: skip
        write_json([{name: getattr(one, name) for name in fields} for one in found])
        return
    rows = [
        (a.handle, a.role, "" if a.active else "off", a.provider, a.entries, _limit(a.entries_per_day),
         _limit(a.device_hours_per_week))
        for a in found
    ]  # fmt: skip
    show(table("handle", "role", "", "signs in through", "entries:", "a day:", "hours a week:", rows=rows))


def role(
    account: Who, new: Annotated[str, typer.Argument(metavar="ROLE", help="viewer, submitter, operator or admin.")]
) -> None:
    """Let an account do more, or less: `dare accounts role ada operator`."""
    from dare_platform.accounts import set_role
    from dare_platform.cli.output import USAGE, refuse
    from dare_platform.viewer import LOCAL, MAY

    known: dict[str, Role] = {name: name for name in MAY}
    if new not in known:
        refuse(f"there is no role {new!r}; there are: {', '.join(known)}", USAGE)
    with writing() as session:
        set_role(session, LOCAL, account, known[new])
    say(f"{account} is {new}.")


def off(account: Who) -> None:
    """Let nobody in as this account, by sign-in or token. Its entries and runs stay."""
    from dare_platform.accounts import switch_off
    from dare_platform.viewer import LOCAL

    with writing() as session:
        switch_off(session, LOCAL, account)
    say(f"{account} is switched off.")


def on(account: Who) -> None:
    """Let the account in again."""
    from dare_platform.accounts import switch_on
    from dare_platform.viewer import LOCAL

    with writing() as session:
        switch_on(session, LOCAL, account)
    say(f"{account} is switched on.")


def erase(
    account: Who, yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it is only said.")] = False
) -> None:
    """Forget who an account was. Its entries stay, without a name. This cannot be undone."""
    from dare_platform import accounts as platform_accounts
    from dare_platform.viewer import LOCAL

    if not yes:
        say(f"{account} would lose handle, mail address, identity, tokens and subscriptions. Say --yes to do it.")
        return
    with writing() as session:
        platform_accounts.erase(session, LOCAL, account)
    say("Erased.")


def quota(
    account: Who,
    entries: Annotated[int | None, typer.Option(help="Entries in 24 hours; the installation's by default.")] = None,
    hours: Annotated[float | None, typer.Option(help="Device-hours in 7 days; the installation's by default.")] = None,
) -> None:
    """Give an account limits of its own, or back the installation's.

    `dare accounts quota ada --entries 20 --hours 40` · `dare accounts quota ada`
    """
    from dare_platform.accounts import set_quota
    from dare_platform.viewer import LOCAL

    with writing() as session:
        set_quota(session, LOCAL, account, entries, hours)
    say("Set.")


def _said(at: datetime | None) -> str:
    return ENDLESS if at is None else f"{at:%Y-%m-%d %H:%M} UTC"


def _limit(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
