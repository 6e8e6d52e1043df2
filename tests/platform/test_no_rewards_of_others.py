"""An entry brings an algorithm with numbers, and never a reward: what a track trains on is the track's alone."""

from __future__ import annotations

import pytest
from played import MY_RULE, tiny
from pydantic import ValidationError

from dare.catalog import backbones
from dare.spec import AlgorithmSpec
from dare_platform.tracks import tracks
from dare_platform.uploads import read_builtin, read_upload


@pytest.mark.parametrize("value", ["./mine.py:short", "package.rewards:short", "correct", "{correct: 2}"])
def test_an_entry_that_names_a_reward_is_refused(value: str) -> None:
    for report in (
        read_upload("my_rule.py", MY_RULE.encode(), f"reward: {value}\n", tiny(), ["llada-tiny"]),
        read_builtin("bgpo", f"reward: {value}\n", tiny(), ["llada-tiny"]),
    ):
        assert report.submission is None
        (problem,) = report.problems
        assert "unknown hyperparameter `reward`" in problem.text or "nothing nested" in problem.text


@pytest.mark.parametrize("name", tracks())
def test_the_jobs_of_a_track_reward_with_the_task_alone(name: str) -> None:
    track = tracks()[name]
    entry = AlgorithmSpec(name="mine", source="entry", hyperparameters={"reward": "./mine.py:short"})
    ref = backbones()["llada-tiny"].ref
    for backbone in track.backbones:
        for trains_on in ("prompts", "demonstrations"):
            job = track.train_job(ref.model_copy(update={"name": backbone}), entry, trains_on, seed=0)
            assert job.train is not None
            assert job.train.reward is None


def test_the_rules_of_a_track_have_no_place_for_a_reward() -> None:
    track = tiny()
    rules = track.model_dump(mode="json")
    backbone = next(iter(rules["backbones"]))
    rules["backbones"][backbone]["prompts"]["reward"] = {"parts": [{"name": "./mine.py:short"}]}
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        type(track).model_validate(rules)
