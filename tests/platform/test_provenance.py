"""A result that does not say how it was made is refused, whatever else is right about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_runner import PROVENANCE, USAGE, work, write_result
from world import World, train_job

from dare.spec import BackboneRef
from dare_platform.errors import OutputError
from dare_platform.outputs import read_outputs, read_result
from dare_platform.provenance import COUNTS, SAYS

WORLD = World("", "", "", BackboneRef(name="b", family="llada", revision="r", weights_sha256="", tokenizer_sha256=""))
JOB = train_job(WORLD)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    (tmp_path / "job.json").write_text(JOB.model_dump_json())
    work(tmp_path)
    return tmp_path


def accept(directory: Path, **changes: object) -> None:
    artifacts = json.loads((directory / "result.json").read_text())["artifacts"]
    write_result(directory, artifacts=artifacts, **changes)
    read_outputs(directory, JOB, read_result(directory, JOB), {})


@pytest.mark.parametrize("name", SAYS["train"])
@pytest.mark.parametrize("said", [None, "  "])
def test_a_training_that_does_not_say_what_it_ran_on_is_refused_by_name(
    trained: Path, name: str, said: str | None
) -> None:
    accept(trained)
    rest = {key: value for key, value in PROVENANCE.items() if key != name}
    with pytest.raises(OutputError, match=f"does not say {name}: nobody could repeat the run"):
        accept(trained, provenance=rest if said is None else rest | {name: said})


@pytest.mark.parametrize("name", COUNTS["train"])
def test_a_clock_or_counter_at_zero_was_not_measured(trained: Path, name: str) -> None:
    with pytest.raises(OutputError, match=f"does not say usage.{name}"):
        accept(trained, usage=USAGE | {name: 0})
