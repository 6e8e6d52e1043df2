"""The API does what its own OpenAPI document says, for requests that fit it and for requests that do not."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from played import built_in, register, work_off
from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from dare_platform import entries
from dare_platform.api import Door, alone
from dare_platform.database import Database
from dare_platform.settings import Settings
from dare_platform.viewer import LOCAL

BASE = "http://127.0.0.1:8501"
CHECKS = [
    checks.not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def app(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The API of a place with finished entries, for its local account, which may do everything."""
    home = tmp_path_factory.mktemp("api")
    shutil.copy(sqlite_template, home / "dare.sqlite")
    chosen = Settings.from_environment({"DARE_HOME": str(home)})
    with Database(chosen.database_url) as database, database.write() as session:
        register(session)
        for name in ("untouched", "bgpo"):
            entries.submit(session, LOCAL, built_in(name), name)
        work_off(session)
    with Door(chosen, is_local=True) as door:
        yield alone(door)


@pytest.mark.full
@pytest.mark.parametrize("mode", GenerationMode)
def test_every_route_answers_as_it_is_described(app: Any, mode: GenerationMode) -> None:
    """`mode`: requests that fit the document, or that break it in one place."""
    described = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app)
    for found in described.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        def as_described(case: Any) -> None:
            case.call_and_validate(base_url=f"{BASE}/api", checks=CHECKS)

        if mode is GenerationMode.POSITIVE or operation.query or operation.body:
            as_described()


def test_the_document_says_what_a_reader_needs(app: Any) -> None:
    document = TestClient(app, base_url=BASE).get("/api/v1/openapi.json").json()
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    tags = {tag["name"] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], (method, path)
            assert set(operation["tags"]) <= tags
            assert {"401", "403", "404", "422", "503"} <= set(operation["responses"])
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert set(answer["content"]) == {"application/problem+json"}, (path, status)
    assert re.search("dare_", document["info"]["description"])
    assert document["components"]["schemas"]["SubmitRequest"]["examples"]
