"""One mail through the server that the operator named: `smtp://[user:password@]host[:port]`, or `smtps://`."""

from __future__ import annotations

import re
import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate
from urllib.parse import unquote, urlsplit

from dare_platform.errors import PlatformError

SECONDS = 15.0


class NotMailedError(PlatformError):
    """The mail server did not take it. The sentence says how."""


def is_mail_address(text: str) -> bool:
    """Whether a text is one plain address: no name beside it, no second one, no control character."""
    return re.fullmatch(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,190}", text) is not None


def send(server: str, sender: str, to: str, subject: str, text: str, delivery: str) -> None:
    """Send one mail. The delivery's id is its Message-ID, so that one that is sent twice is seen once."""
    parts = urlsplit(server)
    mail = EmailMessage()
    mail["From"], mail["To"] = sender, to
    mail["Subject"] = " ".join(subject.split())
    mail["Date"] = formatdate(usegmt=True)
    mail["Message-ID"] = f"<{delivery}@{sender.rpartition('@')[2] or 'localhost'}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text)
    try:
        with _session(parts.scheme, parts.hostname or "localhost", parts.port) as session:
            if parts.username:
                session.login(unquote(parts.username), unquote(parts.password or ""))
            session.send_message(mail)
    except (OSError, smtplib.SMTPException) as error:
        raise NotMailedError(f"the mail server did not take it: {error or type(error).__name__}") from error


def _session(scheme: str, host: str, port: int | None) -> smtplib.SMTP:
    """An open session, encrypted where the server can."""
    if scheme == "smtps":
        return smtplib.SMTP_SSL(host, port or 465, timeout=SECONDS, context=ssl.create_default_context())
    session = smtplib.SMTP(host, port or 25, timeout=SECONDS)
    session.ehlo()
    if session.has_extn("starttls"):
        session.starttls(context=ssl.create_default_context())
        session.ehlo()
    return session
