"""Tracks are frozen files: a rule that changes is another version, and one rule stands in one place."""

from __future__ import annotations

import pytest

from dare import recipe
from dare.catalog import algorithms, backbones
from dare_platform.database import Database
from dare_platform.errors import RegistryError
from dare_platform.registry import register_track
from dare_platform.tracks import TrackFileError, load_track, parse_track, slugs_here, tracks

FROZEN = {
    "matched 1.0": "6e6970aed06c44e98046b0486887305e518ed2b49becb558fc78d6a24c6fffa6",
    "tiny 1.0": "5a52f855963f4b3d561c15e9f6aec611d5e81e5bf3cb1a3e6051961651906b16",
}
MATCHED = load_track("matched")
FILE = """
{track: t, version: "1.0", state: open, title: T, summary: s, proves: p, does_not_prove: d, device: gpu, seeds: [0],
 seeds_required: 1, tasks: [{task: gsm8k, role: ranked}],
 recipes: {track: matched, task: gsm8k, backbones: [llada-8b-instruct]}}
"""


def test_the_rules_of_a_shipped_version_never_change() -> None:
    assert {name: track.digest() for name, track in tracks().items()} == FROZEN, "a changed rule needs a new version"


@pytest.mark.parametrize("backbone", MATCHED.backbones)
@pytest.mark.parametrize("algorithm", algorithms())
def test_the_matched_track_trains_every_method_as_its_recipe_does(algorithm: str, backbone: str) -> None:
    source = algorithms()[algorithm]
    if recipe.supported(source, backbone).level == "unsupported":
        return
    rules, train = MATCHED.rules_of(backbone), recipe.compose(f"matched/{backbone}/gsm8k", algorithm).train
    of_kind = rules.recipe_for(source.trains_on)
    assert of_kind is not None
    assert (of_kind.data, of_kind.settings, of_kind.budget) == (train.data, train.settings, train.budget)
    if source.trains_on == "prompts":
        assert rules.rollout == train.sampling


def test_a_track_is_composed_from_the_recipes_that_it_names() -> None:
    assert parse_track(FILE, "t.yaml").rules_of("llada-8b-instruct") == MATCHED.rules_of("llada-8b-instruct")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("llada-8b-instruct", "llada-9b", "t.yaml: recipes: there is no recipe for backbone 'llada-9b'"),
        ("task: gsm8k, backbones", "task: gsm9k, backbones", "there is no recipe for task 'gsm9k'"),
        ("{track: matched", "{tracks: matched", "t.yaml: track"),
    ],
)
def test_recipes_that_there_are_not_are_named(old: str, new: str, words: str) -> None:
    with pytest.raises(TrackFileError, match=words):
        parse_track(FILE.replace(old, new), "t.yaml")


def test_tracks_of_backbones_that_are_here_come_first() -> None:
    assert not set(MATCHED.backbones) & set(backbones()), "this test is of a machine without published weights"
    assert slugs_here() == ("tiny", "matched")


def test_a_published_backbone_that_is_not_here_waits_and_an_invented_one_is_refused(sqlite: Database) -> None:
    with sqlite.write() as session:
        register_track(session, MATCHED)
    named = {"llada-9b": MATCHED.rules_of("llada2.0-mini")}
    invented = MATCHED.model_copy(update={"track": "other", "backbones": named})
    with pytest.raises(RegistryError, match="names backbone 'llada-9b'"), sqlite.write() as session:
        register_track(session, invented)
