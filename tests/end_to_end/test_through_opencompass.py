"""The evaluation stage of a run goes through OpenCompass when its track says so, inside the isolation of every run."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import alive, built_in, home_with, run_of, small_track, submit
from sqlalchemy import select

from dare.spec import JobSpec
from dare_platform.database import open_database
from dare_platform.models import Attempt, Prediction, Result, ScoreItem
from dare_platform.tracks import Track
from dare_platform.worker import Worker

pytestmark = pytest.mark.full
STOCK = "opencompass-0.5.4"


def test_a_track_can_have_its_runs_evaluated_through_opencompass(tmp_path: Path) -> None:
    rules = Track.model_validate(
        small_track(name="asked-by-opencompass").model_dump()
        | {"protocol": "tiny", "through": "opencompass", "further_scorers": (STOCK,)}
    )
    settings = home_with(tmp_path / "home", rules)
    with open_database(settings) as database:
        entry = submit(database, built_in(rules, "bgpo")).entry_id
        Worker(settings, ["sdar"], device="cpu").run(until_idle=True)
        run = run_of(database, entry, "evaluate")
        assert run.state == "succeeded", run.sentence
        job = JobSpec.model_validate_json(run.job_json)
        assert job.evaluate is not None
        assert job.evaluate.through == "opencompass"
        with database.read() as session:
            results = list(session.execute(select(Result).where(Result.run_id == run.id)).scalars())
            answers = session.execute(select(Prediction.nfe).where(Prediction.run_id == run.id)).scalars().all()
            said = list(session.execute(select(ScoreItem).where(ScoreItem.run_id == run.id)).scalars())
            attempt = session.execute(select(Attempt).where(Attempt.run_id == run.id)).scalar_one()
    assert {one.scorer for one in results} == {"dare-1", STOCK}
    assert all(one.n == 8 for one in results if one.decoding == "greedy")
    assert len(answers) == 8 * 2 + 8  # the ranked task has one sampled answer an item, the other none
    assert min(answers) > 0
    ours, theirs = (
        {(one.task_version_id, one.item_id, one.sample): one.score for one in said if one.scorer == name}
        for name in ("dare-1", STOCK)
    )
    assert ours == theirs  # our own judge is its evaluator for tasks that it does not have
    assert '"opencompass": "0.5.4"' in attempt.versions_json
    assert not alive([run.id])
