"""`dare notify`: being told when an entry has ended, and sending what is owed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dare_platform.cli.output import (
    AsJson,
    opened,
    plain,
    say,
    service,
    settings,
    show,
    table,
    write,
    write_json,
)

if TYPE_CHECKING:
    from dare_platform.models import Channel

Entry = Annotated[str | None, typer.Option(help="One entry only; all of yours by default.")]
EachRun = Annotated[bool, typer.Option("--each-run", help="A message for every run, not one for the whole entry.")]

notify = typer.Typer(no_args_is_help=True, help="Be told when an entry of yours has ended: by webhook or by mail.")


def add_to(app: typer.Typer, panel: str) -> None:
    """Register the commands."""
    for command in (webhook, mail, end, send):
        notify.command()(command)
    notify.command("list")(listed)
    app.add_typer(notify, name="notify", rich_help_panel=panel)


def listed(as_json: AsJson = False) -> None:
    """What you are told of, how it went, and what did not arrive."""
    with service() as asked:
        found = asked.subscriptions()
    if as_json:
        write_json(found)
        return
    if not found:
        say("You are told of nothing. `dare notify webhook https://…` or `dare notify mail ADDRESS` changes that.")
        return
    rows = [
        (one.id, one.channel, one.target, one.entry_id or "all", "run" if one.each_run else "entry", one.sent,
         one.waiting, one.failed)
        for one in found
    ]  # fmt: skip
    show(table("id", "by", "to", "entry", "one for each", "sent:", "waiting:", "given up:", rows=rows))
    for one in found:
        for failure in one.failures:
            end = "given up" if failure.given_up else "tried again"
            say(f"{one.target}: {failure.entry_name} ({failure.run_id}): {failure.problem}, {end}")


def webhook(
    address: Annotated[str, typer.Argument(help="https://HOST/PATH; gets JSON by POST.")],
    entry: Entry = None,
    each_run: EachRun = False,
) -> None:
    """Have a message posted. Its secret, with which every message is signed, goes to standard output, once.

    `dare notify webhook https://example.org/dare`

    The header X-DARE-Signature is `sha256=` and the HMAC-SHA256 of `TIMESTAMP.BODY`, with X-DARE-Timestamp before
    the dot. What does not arrive is sent again for about three hours, under the same X-DARE-Delivery.
    """
    secret = _subscribed("webhook", address, entry, each_run)
    assert secret is not None
    say("Keep this secret: it is not shown again.")
    write(secret)


def mail(
    address: Annotated[str, typer.Argument(help="A plain mail address.")],
    entry: Entry = None,
    each_run: EachRun = False,
) -> None:
    """Have a mail sent, through the server that DARE_SMTP_URL names."""
    _subscribed("mail", address, entry, each_run)
    say(f"{plain(address)} is told.")


def _subscribed(channel: Channel, target: str, entry: str | None, each_run: bool) -> str | None:
    with service() as asked:
        return asked.subscribe(channel, target, entry, each_run).secret


def end(id: Annotated[str, typer.Argument(help="Of `dare notify list`.")]) -> None:
    """Be told no more. What has not been sent is not sent."""
    with service() as asked:
        asked.end_subscription(id)
    say("Ended.")


def send() -> None:
    """Send now what is owed to everybody. The control service does so by itself; on a laptop, put it into cron."""
    from dare_platform.deliveries import send_deliveries

    with opened() as database:
        sent = send_deliveries(settings(), database)
    say(f"{sent} {'message' if sent == 1 else 'messages'} sent.")
