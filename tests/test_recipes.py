"""Recipes compose into whole runs, say what was published, and name what they do not know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tiny import OFFLINE, rollout_sampling, tiny
from typer.testing import CliRunner

from dare import recipe
from dare.__main__ import app
from dare.algorithm import load_algorithm
from dare.catalog import algorithms
from dare.commands.recipe import backbone_of, base_of
from dare.data import load_data
from dare.executor import Executor
from dare.family import load_family
from dare.recipe import RecipeError, compose
from dare.sampling_config import SamplingConfig
from dare.source import read_source
from dare.spec import Budget, LoraSettings, TrainSettings
from dare.tasks import task_names

PLACES = [
    f"{track}/{backbone}/{task}"
    for track in recipe.track_names()
    for backbone in recipe.backbone_names()
    for task in recipe.task_names()
]

# What papers and their repositories state, method by method: each row is a place, a method and some of its values.
PUBLISHED = [
    ("llada-8b-instruct/gsm8k", "d1", {"learning_rate": 3e-6, "group_size": 6, "inner_epochs": 12, "gradient_clip": 0.2,
     "weight_decay": 0.1, "betas": (0.9, 0.99), "lora.rank": 128, "lora.alpha": 64, "gen_length": 256,
     "block_length": 32, "steps_per_block": 16, "temperature": 0.9, "clip_low": 0.5, "clip_high": 0.5, "kl_coef": 0.04,
     "prompt_mask": 0.15, "advantage": "centred"}),
    ("llada-8b-instruct/sudoku", "d1", {"inner_epochs": 8}),
    ("llada-8b-instruct/countdown", "d1", {"inner_epochs": 8}),
    ("dream-7b-instruct/code", "coupled_grpo", {"learning_rate": 1e-6, "schedule": "cosine", "group_size": 10,
     "inner_epochs": 2, "kl_coef": 0.01, "clip_low": 0.5, "lora": None, "temperature": 1.0, "gen_length": 256,
     "steps_per_block": 32, "advantage": "rloo"}),
    ("llada-8b-instruct/math", "cj_grpo", {"gen_length": 128, "block_length": 64, "steps_per_block": 16,
     "temperature": 1.0, "clip_low": 0.5, "kl_coef": 0.04, "inner_epochs": 12, "eos_policy": "eoser",
     "advantage": "centred"}),
    ("llada-8b-instruct/gsm8k", "spg", {"inner_epochs": 4, "group_size": 6, "beta": 1.5, "omega": 0.5, "mc_samples": 2,
     "gradient_clip": 0.2, "temperature": 0.9}),
    ("llada-8b-instruct/sudoku", "spg", {"beta": 1.0, "temperature": 0.3}),
    ("llada-8b-instruct/math", "bgpo", {"learning_rate": 5e-7, "mc_samples": 16, "prompts_per_step": 16,
     "optimiser_steps": 700, "gen_length": 512, "steps_per_block": 16}),
    ("llada-8b-instruct/countdown", "bgpo", {"optimiser_steps": 560, "gen_length": 256}),
    ("llada-8b-instruct/sudoku", "bgpo", {"optimiser_steps": 400}),
    ("llada-8b-instruct/code", "bgpo", {"optimiser_steps": 560, "steps_per_block": 32}),
    ("llada-8b-instruct/gsm8k", "espo", {"group_size": 6, "inner_epochs": 8, "kl_coef": 1e-3, "clip_low": 0.2,
     "temperature": 1.0, "steps_per_block": 32}),
    ("llada-8b-instruct/math", "espo", {"group_size": 16}),
    ("llada-8b-instruct/code", "espo", {"group_size": 10, "gradient_clip": 0.8, "kl_coef": 1e-2}),
    ("llada-8b-instruct/countdown", "espo", {"clip_low": 0.0, "clip_high": 0.0, "kl_coef": 3e-3,
     "steps_per_block": 16}),
    ("llada-8b-instruct/sudoku", "espo", {"kl_coef": 1e-2, "steps_per_block": 16}),
    ("llada2.1-mini/math", "ebpo", {"mc_samples": 16, "block_length": 32, "temperature": 0.6, "gen_length": 2048}),
    ("sdar-8b-chat/math", "ebpo", {"block_length": 4, "top_k": 50, "temperature": 1.0, "gen_length": 2048}),
    ("sdar-8b-chat/math", "tracerl", {"learning_rate": 1e-6, "prompts_per_step": 64, "group_size": 16, "threshold": 0.9,
     "temperature": 1.0, "kl_coef": 0.01, "clip_low": 0.2}),
    ("llada-1.5/gsm8k", "vrpo", {"beta": 0.2, "mc_samples": 8, "prompts_per_step": 64, "learning_rate": 5e-7}),
    ("llada2.0-mini/gsm8k", "dpo", {"beta": 0.1}),
    ("llada-8b-instruct/gsm8k", "just_grpo", {"learning_rate": 5e-6, "weight_decay": 0.0, "prompts_per_step": 64,
     "group_size": 16, "optimiser_steps": 125, "score_temperature": True, "temperature": 1.0, "gen_length": 256,
     "kl_coef": 0.0}),
    ("llada-8b-instruct/math", "mdpo", {"learning_rate": 7e-7, "group_size": 8, "temperature": 0.4, "gen_length": 512,
     "block_length": 512, "steps_per_block": 128, "kl_coef": 0.02, "train_steps": 8, "inner_epochs": 1}),
    ("llada-8b-instruct/gsm8k", "d_tree_rpo", {"learning_rate": 3e-5, "inner_epochs": 12, "clip_low": 0.4,
     "kl_coef": 0.01, "gradient_clip": 0.2, "temperature": 0.9, "steps_per_block": 16, "distillation": 3e-3}),
    ("llada-8b-instruct/gsm8k", "sft", {"learning_rate": 1e-5, "lora.rank": 128, "lora.alpha": 256,
     "prompts_per_step": 8}),
    ("llada2.0-mini/gsm8k", "sft", {"learning_rate": 5e-5, "lora": None}),
]  # fmt: skip


def value(composed: recipe.Recipe, name: str) -> object:
    """A hyperparameter, or a field of the settings, of their adapters, of the decoder or the budget."""
    train = composed.train
    if name in train.algorithm.hyperparameters:
        return train.algorithm.hyperparameters[name]
    head, _, tail = name.partition(".")
    part = next(part for part in (train.settings, train.sampling, train.budget) if head in type(part).model_fields)
    return getattr(train.settings.lora, tail) if tail else getattr(part, head)


@pytest.mark.parametrize("algorithm", sorted(algorithms()))
def test_every_supported_recipe_is_a_whole_run(algorithm: str) -> None:
    supported = [
        place
        for place in PLACES
        if recipe.supported(algorithms()[algorithm], place.split("/")[1]).level != "unsupported"
    ]
    assert supported
    for place in supported:
        train = compose(place, algorithm).train
        assert train.settings.group_size * train.settings.prompts_per_step >= 16
        assert train.sampling.gen_length % train.sampling.block_length == 0


@pytest.mark.parametrize(
    ("place", "algorithm", "stated"), PUBLISHED, ids=lambda given: given if isinstance(given, str) else ""
)
def test_published_values_are_those_that_were_published(place: str, algorithm: str, stated: dict[str, object]) -> None:
    composed = compose(f"published/{place}", algorithm)
    assert {name: value(composed, name) for name in stated} == stated


@pytest.mark.parametrize("place", [place for place in PLACES if place.startswith("matched/")])
def test_matched_recipes_differ_in_the_method_only(place: str) -> None:
    trains = [compose(place, name).train for name, source in algorithms().items() if source.trains_on == "prompts"]
    assert len({train.settings for train in trains}) == 1
    assert len({train.sampling for train in trains}) == 1
    assert len({train.budget for train in trains}) == 1
    for train in trains:
        given = train.algorithm.hyperparameters
        assert given.get("kl_coef", 0.0) == 0.0, train.algorithm.name
        assert given.get("advantage", "grpo") == "grpo", train.algorithm.name
        assert 2 * given["pairs"] == 4 if "pairs" in given else given.get("mc_samples", 4) == 4


def test_a_hyperparameter_that_is_said_of_all_methods_exists_in_one() -> None:
    known = {field.name for source in algorithms().values() for field in source.hyperparameters}
    for track in recipe.track_names():
        for file in sorted(recipe._root().glob(f"{track}/*.yaml")):
            given = yaml.safe_load(file.read_text())
            for part in ("defaults", "insists"):
                assert set((given.get(part) or {}).get("hyperparameters", {})) <= known, file


@pytest.mark.parametrize("backbone", recipe.backbone_names())
def test_the_blocks_of_a_block_family_are_its_own(backbone: str) -> None:
    own = {"sdar": 4, "llada2": 32}.get(recipe.family_of(backbone))
    blocks = {
        compose(f"{track}/{backbone}/math", name).train.sampling.block_length
        for track in recipe.track_names()
        for name in algorithms()
    }
    assert own is None or blocks == {own}


@pytest.mark.parametrize(
    ("reference", "algorithm", "sentence"),
    [
        ("publish/llada-1.5/math", "d1", "there is no recipe for track 'publish'. Did you mean `published`?"),
        ("published/llada-1.6/math", "d1", "there is no recipe for backbone 'llada-1.6'. Did you mean `llada-1.5`?"),
        ("published/llada-1.5/maths", "d1", "there is no recipe for task 'maths'. Did you mean `math`?"),
        ("published/llada-1.5/math", "bgop", "There is no built-in algorithm `bgop`. Did you mean `bgpo`?"),
        ("published", "d1", "recipe 'published' is not of the form TRACK/BACKBONE/TASK; `dare recipe list` has them"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(reference: str, algorithm: str, sentence: str) -> None:
    with pytest.raises(RecipeError) as caught:
        compose(reference, algorithm)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ({"settings": {"learning_rat": 1.0}}, "settings has no `learning_rat`. Did you mean `learning_rate`?"),
        ({"sampling": {"step": 4}}, "sampling has no `step`. Did you mean `steps`?"),
        ({"budgets": {}}, "unknown key `budgets`. Did you mean `budget`?"),
    ],
)
def test_an_unknown_key_gets_the_nearest_one(part: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecipeError, match=r"^here: ") as caught:
        recipe._valid(recipe.Part, part, "here")
    assert sentence in str(caught.value)


def test_a_place_names_a_task_or_method_that_is_not_there() -> None:
    with pytest.raises(RecipeError, match=r"unknown algorithm `bgop`. Did you mean `bgpo`"):
        recipe._checked(recipe.Place(algorithms={"bgop": recipe.AlgorithmPart()}), "here")
    with pytest.raises(RecipeError, match=r"unknown task `sudok`. Did you mean `sudoku`"):
        recipe._checked(recipe.Place(tasks={"sudok": recipe.Part()}), "here")


def test_a_pair_that_cannot_be_is_refused_with_the_reason() -> None:
    source = replace(algorithms()["d1"], record=frozenset({"dreams"}))
    with pytest.raises(RecipeError, match=r"^d1 cannot train sdar-8b-chat: it needs dreams of every rollout"):
        compose("published/sdar-8b-chat/math", source)


def test_a_method_of_ones_own_has_everything_but_a_layer_for_itself() -> None:
    source = read_source(Path("examples/submission/algorithm.py").read_bytes(), "gentle").algorithm
    assert source is not None
    composed = compose("published/llada-8b-instruct/sudoku", source)
    assert composed.train.algorithm.source == "entry"
    assert composed.train.settings == compose("published/llada-8b-instruct/sudoku", "gdpo").train.settings


def test_what_is_shown_is_yaml_of_the_whole_run_with_its_origins() -> None:
    shown = CliRunner().invoke(app, ["recipe", "show", "published", "llada-8b-instruct", "sudoku", "d1"])
    assert shown.exit_code == 0
    read = yaml.safe_load(shown.stdout)
    train = compose("published/llada-8b-instruct/sudoku", "d1").train
    assert TrainSettings(**read["settings"]) == train.settings
    assert SamplingConfig(**read["sampling"]) == train.sampling
    assert Budget(**read["budget"]) == train.budget
    assert read["hyperparameters"] == train.algorithm.hyperparameters
    lines = {line.partition(":")[0].strip(): line.partition("  # ")[2].strip() for line in shown.stdout.splitlines()}
    assert lines["inner_epochs"] == "d1 on sudoku, published"
    assert lines["prompts_per_step"] == "published"
    assert lines["minibatches"] == "default"


def test_every_recipe_part_is_listed() -> None:
    listed = CliRunner().invoke(app, ["recipe", "list"])
    assert listed.exit_code == 0
    for name in [*recipe.track_names(), *recipe.backbone_names(), *recipe.task_names(), *algorithms()]:
        assert name in listed.stderr


def test_a_recipe_for_a_backbone_that_is_not_here_says_how_to_get_it(tmp_path: Path) -> None:
    arguments = ["train", "--recipe", "published/llada-8b-instruct/sudoku", "--algorithm", "d1", "--out", str(tmp_path)]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2
    assert "dare backbone add GSAI-ML/LLaDA-8B-Instruct --name llada-8b-instruct" in refused.stderr


def test_training_without_a_recipe_is_the_quick_look_that_it_was() -> None:
    base = base_of(None, "bgpo")
    assert (base.data, base.sampling, base.hyperparameters) == ("prompts:sudoku", None, {})
    assert Budget(**base.budget).optimiser_steps == 30
    assert TrainSettings(**base.settings).inner_epochs == 2


def test_training_starts_from_every_value_of_its_recipe() -> None:
    train = compose("matched/sdar-4b-chat/math", "ebpo").train
    base = base_of("matched/sdar-4b-chat/math", "ebpo")
    assert base.sampling is not None
    assert TrainSettings(**base.settings) == train.settings
    assert SamplingConfig(**base.sampling) == train.sampling
    assert Budget(**base.budget) == train.budget
    assert (base.data, base.hyperparameters) == (train.data, train.algorithm.hyperparameters)
    assert backbone_of("matched/sdar-4b-chat/math", "sdar-tiny").name == "sdar-tiny"


@pytest.mark.parametrize("backbone", recipe.backbone_names())
def test_adapters_go_to_layers_that_the_family_has(backbone: str) -> None:
    known = set(load_family(recipe.family_of(backbone)).lora_targets)
    for track in recipe.track_names():
        for name in algorithms():
            lora = compose(f"{track}/{backbone}/math", name).train.settings.lora
            assert lora is None or set(lora.targets or ()) <= known


@pytest.mark.parametrize("algorithm", sorted(algorithms()))
def test_settings_go_with_the_sampler_that_the_method_asks_for(algorithm: str) -> None:
    for place in PLACES:
        train = compose(place, algorithm).train
        asked = load_algorithm(train.algorithm).rollout()
        if asked is not None and asked.sampler == "left_to_right":
            assert train.settings.score_temperature or train.sampling.temperature == 1.0, place
        if asked is not None and asked.tree is not None:
            assert train.settings.prompts_per_step * train.settings.group_size % asked.tree.leaves == 0, place


@pytest.mark.parametrize("place", PLACES)
def test_data_are_of_a_kind_that_training_reads(place: str) -> None:
    for name in ("d1", "sft", "vrpo"):
        composed = compose(place, name)
        kind, _, rest = composed.train.data.partition(":")
        assert kind in ("prompts", "file")
        known = kind != "prompts" or rest in task_names()
        assert known == (recipe.missing_task(composed) is None)


@pytest.mark.full
@pytest.mark.parametrize(
    ("family", "backbone", "algorithm"),
    [("llada", "llada-8b-instruct", "d1"), ("sdar", "sdar-8b-chat", "ebpo"), ("llada", "llada-1.5", "vrpo")],
)
def test_a_recipe_shrunk_to_a_tiny_backbone_makes_a_step(
    family: str, backbone: str, algorithm: str, tmp_path: Path
) -> None:
    train = compose(f"published/{backbone}/sudoku", algorithm).train
    small = {"prompts_per_step": 2, "group_size": 3, "inner_epochs": 2, "dtype": "float32"}
    given = train.settings.model_dump() | small
    if train.settings.lora is not None:
        given["lora"] = LoraSettings(rank=4)
    executor = Executor(
        backbone=tiny(family),
        algorithm=load_algorithm(train.algorithm),
        data=load_data(OFFLINE.get(algorithm, "prompts:sudoku"), tmp_path),
        settings=TrainSettings.model_validate(given),
        sampling=rollout_sampling(family),
        budget=Budget(optimiser_steps=1, wall_seconds=60),
        seed=0,
    )
    assert executor.step().metrics["forwards_per_completion"] > 0
