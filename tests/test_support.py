"""What runs where is derived from what a method reads and a sampler records, and says the same everywhere."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import rollout_sampling, tiny

from dare.algorithm import Algorithm, load_algorithm
from dare.catalog import algorithms, backbones, families, support_of
from dare.data import DemonstrationData
from dare.executor import Executor, MismatchError
from dare.family import load_family
from dare.spec import AlgorithmSpec, Budget, TrainSettings
from dare.support import not_recorded, support
from dare.tasks import Demonstration
from dare_platform.tracks import NoTrainingDataError, tracks
from leaderboard.forms import refused_backbones

RECORDS = st.frozensets(st.sampled_from(["step_map", "x0", "confidence", "tree"]))
KINDS = st.sampled_from(["masked", "block"])


@given(record=RECORDS, records=RECORDS, published=st.frozensets(KINDS), kind=KINDS)
def test_a_pair_is_refused_exactly_when_something_is_not_recorded(
    record: frozenset[str], records: frozenset[str], published: frozenset[str], kind: str
) -> None:
    found = support(record, published, kind, records)
    assert (found.level == "unsupported") == (not record <= records)
    assert all(name in found.reason for name in record - records)
    if record <= records:
        assert found.reason == ""
        assert (found.level == "published") == (kind in published)


def test_the_reason_names_what_is_needed_and_what_there_is() -> None:
    assert not_recorded({"tree"}, {"x0", "step_map"}) == (
        "needs tree of every rollout; the sampler of this backbone records step_map, x0"
    )
    assert not_recorded({"tree"}, set()) == "needs tree of every rollout; the sampler of this backbone records nothing"
    assert not_recorded(set(), set()) is None


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_what_is_read_of_a_file_is_what_its_class_says(name: str) -> None:
    source, loaded = algorithms()[name], type(load_algorithm(AlgorithmSpec(name=name)))
    assert (source.record, source.published_for) == (loaded.record, loaded.published_for)


@pytest.mark.parametrize("name", sorted(families()))
def test_what_is_read_of_a_family_is_what_it_says(name: str) -> None:
    said, loaded = families()[name], load_family(name)
    assert (said.kind, said.records) == (loaded.kind, loaded.records)


def test_every_method_runs_on_some_family_that_its_authors_used() -> None:
    for source in algorithms().values():
        assert "published" in {support_of(source, family).level for family in families()}, source.name


def test_the_executor_refuses_with_the_same_reason() -> None:
    class WantsMore(Algorithm):
        trains_on = "demonstrations"
        record = frozenset({"dreams"})

    backbone = tiny("sdar")
    reason = not_recorded(WantsMore.record, backbone.records)
    assert reason is not None
    with pytest.raises(MismatchError, match=f"^the algorithm {reason}$"):
        Executor(
            backbone=backbone,
            algorithm=WantsMore(),
            data=DemonstrationData([Demonstration("S0321003004002100", "4321123434122143")]),
            settings=TrainSettings(learning_rate=1e-3),
            sampling=rollout_sampling("sdar"),
            budget=Budget(optimiser_steps=1, wall_seconds=60),
            seed=0,
        )


def test_the_form_says_why_a_method_without_its_data_cannot_be_chosen() -> None:
    track = tracks()["tiny 1.0"]
    refused = refused_backbones(track, algorithms()["vrpo"])
    assert refused == {
        name: f"`VRPO` trains on preferences; track tiny 1.0 has none for {name}." for name in track.backbones
    }
    assert refused_backbones(track, algorithms()["sft"]) == {}


def test_a_track_makes_no_training_run_from_data_that_it_does_not_have() -> None:
    track = tracks()["tiny 1.0"]
    ref = backbones()["sdar-tiny"].ref
    with pytest.raises(
        NoTrainingDataError, match=r"`dpo` trains on preferences; track tiny 1.0 has none for sdar-tiny"
    ):
        track.train_job(ref, AlgorithmSpec(name="dpo"), "preferences", seed=0)
    prompts = track.train_job(ref, AlgorithmSpec(name="d1"), "prompts", seed=0).train
    demonstrations = track.train_job(ref, AlgorithmSpec(name="sft"), "demonstrations", seed=0).train
    assert prompts is not None
    assert demonstrations is not None
    assert (prompts.data, demonstrations.data) == ("prompts:sudoku", "corpus:sudoku/clean")


def test_support_and_recipes_are_known_without_torch() -> None:
    code = "import sys; from dare import recipe; recipe.compose('matched/sdar-4b-chat/math', 'ebpo')"
    code += "; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
