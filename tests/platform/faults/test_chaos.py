"""A short round of what `python -m studies.chaos` does for longer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from aftermath import look
from chaos import lay_out, play
from servers import PostgresServer, RedisServer

from dare_platform.database import migrate
from dare_platform.settings import Settings

pytestmark = pytest.mark.full


@pytest.fixture
def services() -> Iterator[tuple[PostgresServer, RedisServer]]:
    postgres = PostgresServer(durable=True)
    redis = RedisServer()
    yield postgres, redis
    redis.remove()
    postgres.remove()


def test_whatever_is_killed_every_run_has_one_result_and_nothing_is_left(
    services: tuple[PostgresServer, RedisServer], tmp_path: Path
) -> None:
    postgres, redis = services
    postgres.administer("CREATE DATABASE chaos")
    settings = Settings(home=tmp_path / "home", database_url=postgres.database("chaos"))
    migrate(settings)
    ground = lay_out(settings, postgres, redis, runs=24, workers=3, mode="good:8:0.1")
    played = play(ground, seed=0, pause_seconds=0.7, longest_seconds=90)
    found = look(ground)
    assert (played.unfinished, found.wrong) == (0, ())
    assert found.succeeded + sum(found.failed.values()) == 24
    assert sum(played.disturbed.values()) > 5
