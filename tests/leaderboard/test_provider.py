"""What signing in needs: every variable is named when it is missing, and the secrets lie where nobody else reads."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest

from dare_platform.errors import SettingsError
from leaderboard import __main__ as command
from leaderboard.sign_in import Provider, secrets_file

WHOLE = {
    "DARE_OIDC_ISSUER": "https://id.example/",
    "DARE_OIDC_CLIENT_ID": "dare",
    "DARE_OIDC_CLIENT_SECRET": 'with "quotes" and \\ a backslash',
    "DARE_OIDC_COOKIE_SECRET": "c" * 32,
    "DARE_PUBLIC_URL": "https://dare.example/",
}


@pytest.mark.parametrize("missing", list(WHOLE))
def test_a_missing_variable_is_named(missing: str) -> None:
    with pytest.raises(SettingsError, match=f"needs {missing}"):
        Provider.from_environment({name: value for name, value in WHOLE.items() if name != missing})


@pytest.mark.parametrize("name", ["DARE_OIDC_ISSUER", "DARE_PUBLIC_URL"])
def test_nobody_signs_in_without_encryption_except_on_this_machine(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is .* must begin with https"):
        Provider.from_environment(WHOLE | {name: "http://id.example"})
    Provider.from_environment(WHOLE | {name: "http://127.0.0.1:9400"})


def test_a_short_cookie_secret_is_refused_and_not_repeated() -> None:
    with pytest.raises(SettingsError, match="shorter than 32 characters") as refused:
        Provider.from_environment(WHOLE | {"DARE_OIDC_COOKIE_SECRET": "short-canary"})
    assert "short-canary" not in str(refused.value)
    assert "c" * 32 not in repr(Provider.from_environment(WHOLE))


def test_the_secrets_are_in_a_file_of_ones_own_that_is_gone_afterwards(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(WHOLE["DARE_OIDC_CLIENT_SECRET"])
    plain = {name: value for name, value in WHOLE.items() if name != "DARE_OIDC_CLIENT_SECRET"}
    provider = Provider.from_environment(plain | {"DARE_OIDC_CLIENT_SECRET_FILE": str(secret)})
    with secrets_file(provider) as (path,):
        found = Path(path)
        assert stat.S_IMODE(found.stat().st_mode) == 0o600
        assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700
        assert tomllib.loads(found.read_text())["auth"] == {
            "redirect_uri": "https://dare.example/oauth2callback",
            "cookie_secret": "c" * 32,
            "client_id": "dare",
            "client_secret": WHOLE["DARE_OIDC_CLIENT_SECRET"],
            "server_metadata_url": "https://id.example/.well-known/openid-configuration",
        }
    assert not found.parent.exists()


def test_without_signing_in_no_file_of_secrets_is_read() -> None:
    with secrets_file(None) as files:
        assert files == []


def test_the_site_does_not_start_half_set_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DARE_SIGN_IN", "oidc")
    monkeypatch.delenv("DARE_OIDC_ISSUER", raising=False)
    monkeypatch.setattr("sys.argv", ["leaderboard"])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert "leaderboard: DARE_SIGN_IN is oidc, which needs DARE_OIDC_ISSUER" in capsys.readouterr().err
