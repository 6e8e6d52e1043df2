"""A job that trains gets the files of its training split, and no test split lies where its environment leads."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from test_job_directory import WORLD, claim_of
from world import train_job

from dare.data import load_data_set
from dare.data.training_files import write_training_files
from dare.spec import JobSpec
from dare.tasks import MissingDataError, Task, UnknownSplitError, load_task, task_names
from dare_platform.container_profile import Engine, Ground, create_request
from dare_platform.errors import JobDirectoryError
from dare_platform.job_directory import write_job_directory
from dare_platform.launcher import Order
from dare_platform.process_launcher import ProcessLauncher
from dare_platform.settings import Settings

TRAINED_ON = ("gsm8k", "mbpp")
PROBE = """
import json, os, sys
from pathlib import Path
from dare.tasks import MissingDataError, load_task, task_names

folder, found = Path(os.environ["DARE_DATA"]), []
for task in map(load_task, task_names()):
    if task.needs_data:
        try:
            found.append([task.name, len(task.items("test", folder))])
        except MissingDataError:
            continue
task = load_task(sys.argv[1])
print(json.dumps([found, len(task.items("train", folder)), dict(os.environ)]))
"""


def splits_from_files(task: Task) -> bool:
    """Whether its training split is read from published files."""
    try:
        task.items("train", None)
    except MissingDataError:
        return True
    except UnknownSplitError:
        return False
    return False


def test_every_task_that_trains_on_published_files_says_which() -> None:
    tasks = [load_task(name) for name in task_names()]
    assert {task.name for task in tasks if splits_from_files(task)} == set(TRAINED_ON)
    assert {task.name for task in tasks if task.training_files} == set(TRAINED_ON)


def job_on(task: str) -> JobSpec:
    job = train_job(WORLD)
    assert job.train is not None
    return job.model_copy(update={"train": job.train.model_copy(update={"data": f"prompts:{task}"})})


@pytest.fixture
def published(shared: Path) -> Path:
    return shared / "data"


@pytest.mark.shared
@pytest.mark.parametrize("name", TRAINED_ON)
def test_a_training_split_reads_the_same_from_its_own_files_alone(published: Path, tmp_path: Path, name: str) -> None:
    task = load_task(name)
    assert write_training_files(f"prompts:{name}", published, tmp_path) == tuple(task.training_files)
    whole = load_data_set(f"prompts:{name}", tmp_path, published)
    alone = load_data_set(f"prompts:{name}", tmp_path, tmp_path)
    assert alone.manifest() == whole.manifest()
    assert len(alone.examples) > 300
    with pytest.raises(MissingDataError):
        task.items("test", tmp_path)


@pytest.mark.shared
@pytest.mark.parametrize("name", TRAINED_ON)
def test_no_test_item_is_in_the_directory_of_a_job_that_trains(published: Path, tmp_path: Path, name: str) -> None:
    settings = Settings(home=tmp_path, database_url="", data=published)
    directory = write_job_directory(settings, claim_of(job_on(name)), ())
    files = [file for file in directory.rglob("*") if file.is_file()]
    assert {str(file.relative_to(directory)) for file in files} == {
        "job.json",
        *(f"data/{path}" for path in load_task(name).training_files),
    }
    asked = "question" if name == "gsm8k" else "text"
    lines = [line for file in files if file.name != "job.json" for line in file.read_text().split("\n") if line]
    given = {json.loads(line)[asked] for line in lines}
    trained, tested = ({item.row[asked] for item in load_task(name).items(s, published)} for s in ("train", "test"))
    assert given == trained
    assert not given & (tested - trained)
    assert len(tested - trained) > 300


@pytest.mark.shared
@pytest.mark.parametrize("name", TRAINED_ON)
def test_what_a_training_job_finds_by_its_environment_holds_no_test_split(
    published: Path, tmp_path: Path, name: str
) -> None:
    settings = Settings(home=tmp_path, database_url="", data=published)
    settings = replace(settings, limits=replace(settings.limits, free_disk_bytes=1, wall_seconds=60))
    directory = write_job_directory(settings, claim_of(job_on(name)), ())
    launcher = ProcessLauncher(settings, (sys.executable, "-c", PROBE, name))
    run = launcher.start(Order(f"run{os.getpid()}", 1, directory, 60, "train", "llada", 1))
    while launcher.state(run).running:
        time.sleep(0.05)
    found, trained, environment = json.loads(launcher.logs(run))
    launcher.remove(run)
    assert found == []
    assert trained > 300
    tests = {file.sha256 for task in map(load_task, task_names()) for file in task.files} - {None}
    tests -= {hashlib.sha256(content(published)).hexdigest() for content in load_task(name).training_files.values()}
    places = {Path(value) for value in environment.values() if value.startswith("/") and os.pathsep not in value}
    assert directory / "data" in places
    reached = [file for place in places for file in place.rglob("*") if file.is_file()]
    assert not [file for file in reached if hashlib.sha256(file.read_bytes()).hexdigest() in tests]


def test_a_check_and_a_job_on_generated_data_get_an_empty_folder(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, database_url="")
    directory = write_job_directory(settings, claim_of(job_on("sudoku")), ())
    assert list((directory / "data").iterdir()) == []


def test_training_data_that_are_not_here_are_one_sentence(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, database_url="", data=tmp_path)
    with pytest.raises(JobDirectoryError, match=r"training data: task 'gsm8k' needs the file gsm8k/train\.jsonl"):
        write_job_directory(settings, claim_of(job_on("gsm8k")), ())


@pytest.mark.parametrize("kind", ["train", "check"])
def test_nothing_but_its_own_directory_is_mounted_into_a_container_that_runs_an_entry(
    kind: Literal["train", "check"], tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path, database_url="", data=tmp_path / "published")
    directory = tmp_path / "jobs" / "run1" / "1"
    order = Order("run1", 1, directory, 60, kind, "llada", 1)
    ground = Ground(1000, 1000, frozenset({"entry", "data", "home", "tmp", "checkpoint"}))
    made = create_request(settings, order, ground, Engine(cores=2), "sha256:0", {})
    mounts = made["HostConfig"]["Mounts"]
    assert [(mount["Source"], mount["Target"], mount["ReadOnly"]) for mount in mounts] == [
        (str(directory), "/job", False),
        (str(directory / "entry"), "/job/entry", True),
        (str(directory / "data"), "/job/data", True),
    ]
    assert "DARE_DATA=/job/data" in made["Env"]
    assert "published" not in json.dumps(made)
