"""One POST to an address that somebody gave us: signed, bounded in time, and never into our own network.

The host is resolved once, every address that it has must be public, and the connection goes to the address that was
looked at, so that a name that answers otherwise a second later leads nowhere. Redirects are not followed.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from dare_platform.errors import PlatformError
from dare_platform.host import software_version

STEP_SECONDS = 5.0
"""For connecting and for every read."""
ALL_SECONDS = 15.0
"""For everything together: a receiver that answers byte by byte is cut off."""


class AddressError(PlatformError):
    """An address that nothing is posted to. The sentence says why."""


class NotTakenError(PlatformError):
    """The receiver did not take the message. The sentence says how."""


@dataclass(frozen=True)
class Receiver:
    """An address that has been looked at."""

    scheme: str
    host: str
    port: int
    path: str
    address: str
    """What the host resolved to, and what is connected to."""


def receiver(url: str, allowed: Sequence[str] = ()) -> Receiver:
    """Where a URL leads. AddressError for what is not public https, unless its host is among `allowed`."""
    scheme, host, port, path = parts_of(url, allowed)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotTakenError(f"{host} has no address: {error}") from error
    addresses = [str(entry[4][0]) for entry in found]
    if host not in allowed:
        private = [address for address in addresses if not is_public(address)]
        if private:
            raise AddressError(f"{host} leads to {private[0]}, which is not a public address; an operator may allow it")
    return Receiver(scheme, host, port, path, addresses[0])


def parts_of(url: str, allowed: Sequence[str] = ()) -> tuple[str, str, int, str]:
    """Scheme, host, port and path of an address that may be given, before anything is looked up."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise AddressError(f"{url!r} is no address: {error}") from error
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host or any(not 32 < ord(mark) < 127 for mark in url):
        raise AddressError(f"{url!r} is no address; write https://HOST/PATH")
    if parts.username or parts.password:
        raise AddressError("an address with a password is kept nowhere; the receiver knows us by the signature")
    if parts.scheme == "http" and host not in allowed:
        raise AddressError(f"{url!r} is not encrypted; write https://")
    query = f"?{parts.query}" if parts.query else ""
    return parts.scheme, host, port or (443 if parts.scheme == "https" else 80), (parts.path or "/") + query


def is_public(text: str) -> bool:
    """Whether an address belongs to the whole world: not this machine, not its network, not a tunnel back into it."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is not None and not is_public(str(inner)):
            return False
        if address in ipaddress.ip_network("64:ff9b::/96"):
            return is_public(str(ipaddress.ip_address(address.packed[-4:])))
    return address.is_global and not address.is_multicast


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 over `timestamp.body`: what a receiver computes again to know that a message is ours and is new."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def post(url: str, secret: str, message: Mapping[str, Any], timestamp: str, allowed: Sequence[str] = ()) -> None:
    """Send one message. NotTakenError unless the receiver answers 2xx."""
    to = receiver(url, allowed)
    body = json.dumps(message, ensure_ascii=False).encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"dare/{software_version()}",
        "X-DARE-Delivery": str(message["delivery"]),
        "X-DARE-Event": str(message["event"]),
        "X-DARE-Timestamp": timestamp,
        "X-DARE-Signature": f"sha256={signature(secret, timestamp, body)}",
    }
    connection = _connection(to)
    try:
        status = _answer(connection, to, body, headers)
    except (OSError, HTTPException) as error:
        raise NotTakenError(f"{to.host} did not take it: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if not 200 <= status < 300:
        moved = "; redirects are not followed" if 300 <= status < 400 else ""
        raise NotTakenError(f"{to.host} answered {status}{moved}")


def _connection(to: Receiver) -> HTTPConnection:
    if to.scheme == "https":
        return HTTPSConnection(to.host, to.port, timeout=STEP_SECONDS, context=ssl.create_default_context())
    return HTTPConnection(to.host, to.port, timeout=STEP_SECONDS)


def _answer(connection: HTTPConnection, to: Receiver, body: bytes, headers: Mapping[str, str]) -> int:
    """Status of the answer; its body is nobody's concern."""
    connection.sock = socket.create_connection((to.address, to.port), timeout=STEP_SECONDS)
    cut = threading.Timer(ALL_SECONDS, _cut, [connection])
    cut.daemon = True
    cut.start()
    try:
        if to.scheme == "https":
            connection.sock = ssl.create_default_context().wrap_socket(connection.sock, server_hostname=to.host)
        connection.request("POST", to.path, body, dict(headers))
        return connection.getresponse().status
    finally:
        cut.cancel()


def _cut(connection: HTTPConnection) -> None:
    if connection.sock is not None:
        with suppress(OSError):  # it is over already
            connection.sock.shutdown(socket.SHUT_RDWR)
