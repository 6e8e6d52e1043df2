"""What the site needs to let people sign in: read from the environment, handed to Streamlit in a file of its own.

Streamlit reads the client's secret from a file only. It is written into a folder that nobody else may enter, when the
server starts, and is gone when the server ends.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from dare_platform.errors import SettingsError
from dare_platform.settings import with_files

DISCOVERY = "/.well-known/openid-configuration"
CALLBACK = "/oauth2callback"
SHORTEST_SECRET = 32


@dataclass(frozen=True)
class Provider:
    """An OpenID Connect provider, and who we are to it."""

    metadata_url: str
    client_id: str
    client_secret: str = field(repr=False)
    cookie_secret: str = field(repr=False)
    """Signs the cookie that says who is signed in."""
    redirect_uri: str

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> Provider:
        """SettingsError names the variable that is missing or cannot be. Each can be given as a file, `..._FILE`."""
        env = with_files(os.environ if environment is None else environment)

        def needed(name: str) -> str:
            if not env.get(name):
                raise SettingsError(f"DARE_SIGN_IN is oidc, which needs {name}")
            return env[name]

        issuer, metadata = env.get("DARE_OIDC_ISSUER"), env.get("DARE_OIDC_METADATA_URL")
        if not metadata:
            metadata = needed("DARE_OIDC_ISSUER").rstrip("/") + DISCOVERY
        _encrypted("DARE_OIDC_ISSUER" if issuer else "DARE_OIDC_METADATA_URL", metadata)
        site = needed("DARE_PUBLIC_URL").rstrip("/")
        _encrypted("DARE_PUBLIC_URL", site)
        cookie = needed("DARE_OIDC_COOKIE_SECRET")
        if len(cookie) < SHORTEST_SECRET:
            raise SettingsError(f"DARE_OIDC_COOKIE_SECRET is shorter than {SHORTEST_SECRET} characters")
        return Provider(
            metadata_url=metadata,
            client_id=needed("DARE_OIDC_CLIENT_ID"),
            client_secret=needed("DARE_OIDC_CLIENT_SECRET"),
            cookie_secret=cookie,
            redirect_uri=site + CALLBACK,
        )

    def toml(self) -> str:
        """The section that Streamlit reads. A JSON string is a TOML string."""
        pairs = {
            "redirect_uri": self.redirect_uri,
            "cookie_secret": self.cookie_secret,
            "client_id": self.client_id,
            "client_secret": self.client_secret,
            "server_metadata_url": self.metadata_url,
        }
        return "[auth]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in pairs.items())


def _encrypted(name: str, address: str) -> None:
    """https, or this machine: a code that travels in the open is somebody else's account."""
    parts = urlsplit(address)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")):
        return
    raise SettingsError(f"{name} is {address!r}; it must begin with https://")


@contextmanager
def secrets_file(provider: Provider | None) -> Iterator[list[str]]:
    """Paths for Streamlit's `secrets.files`; none without a provider, so that no other file is read either."""
    if provider is None:
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="dare-site-") as folder:  # mode 0700
        path = Path(folder) / "secrets.toml"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(provider.toml())
        yield [str(path)]
