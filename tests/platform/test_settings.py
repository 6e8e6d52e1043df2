"""Settings come from the environment; a wrong one is named in one sentence, without its secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from dare_platform.errors import SettingsError
from dare_platform.settings import Settings


def test_the_defaults_need_no_environment() -> None:
    settings = Settings.from_environment({})
    assert settings.home == Path.cwd() / ".dare"
    assert settings.database_url == f"sqlite:///{settings.home}/dare.sqlite"
    assert (settings.broker_url, settings.data, settings.lease_seconds) == (None, None, 60)
    assert settings.heartbeat_seconds == 15


def test_postgresql_urls_get_our_driver() -> None:
    settings = Settings.from_environment({"DARE_DATABASE_URL": "postgresql://dare@host/dare"})
    assert settings.database_url == "postgresql+psycopg://dare@host/dare"


def test_admins_and_quotas_are_read() -> None:
    given = {"DARE_ADMINS": "https://a.example 1, https://b.example two words", "DARE_QUOTA_ENTRIES_PER_DAY": "5"}
    settings = Settings.from_environment(given)
    assert settings.admins == (("https://a.example", "1"), ("https://b.example", "two words"))
    assert (settings.quota.entries_per_day, settings.quota.device_hours_per_week) == (5, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DARE_DATABASE_URL", "mysql://user:canary@host/db"),
        ("DARE_DATABASE_URL", "sqlite:///:memory:"),
        ("DARE_BROKER_URL", "http://user:canary@host"),
        ("DARE_DATA", "/no/such/folder"),
        ("DARE_LEASE_SECONDS", "soon"),
        ("DARE_LEASE_SECONDS", "0"),
        ("DARE_POLL_SECONDS", "-1"),
        ("DARE_POLL_SECONDS", "inf"),
        ("DARE_LIMIT_MEMORY_MIB", "nan"),
        ("DARE_QUOTA_ENTRIES_PER_DAY", "many"),
        ("DARE_QUOTA_ENTRIES_PER_DAY", "-1"),
        ("DARE_QUOTA_DEVICE_HOURS_PER_WEEK", "nan"),
        ("DARE_ADMINS", "https://id.example"),
        ("DARE_METRICS_PORT", "70000"),
    ],
)
def test_a_wrong_value_is_named_in_one_sentence(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name) as refusal:
        Settings.from_environment({name: value})
    assert "canary" not in str(refusal.value)
    assert "\n" not in str(refusal.value)
