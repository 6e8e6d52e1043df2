"""Tracks: what is held fixed in a comparison, read from one versioned, hashed YAML file each.

A track turns an entry into jobs: one training run per backbone and seed, and one evaluation run after it.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated, ClassVar, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from dare import protocols, recipe
from dare.catalog import backbones, load_source
from dare.frozen import Frozen, Grown
from dare.sampling_config import SamplingConfig
from dare.spec import AlgorithmSpec, BackboneRef, Budget, EvaluateSpec, JobSpec, TaskProtocol, TrainSettings, TrainSpec
from dare.tasks import load_task

Role = Literal["ranked", "shown", "transfer"]


class UnknownTrackError(ValueError):
    """No track file of that name and version."""


class NoTrainingDataError(ValueError):
    """A track has no data of the kind that an algorithm trains on."""


class TrackFileError(ValueError):
    """A track file does not say what a track must say."""


class Recipe(Frozen):
    """How one kind of training data is used on one backbone."""

    data: str
    settings: TrainSettings
    budget: Budget


class BackboneRules(Grown):
    """Everything that a track fixes for one backbone."""

    added: ClassVar[frozenset[str]] = frozenset({"preferences"})

    rollout: SamplingConfig
    """Behaviour policy of RL, and of the sampled evaluation."""
    greedy: SamplingConfig
    prompts: Recipe
    demonstrations: Recipe
    preferences: Recipe | None = None
    samples: Annotated[int, Field(ge=0)] = 4
    """Sampled completions per item of a ranked task, besides the greedy one. Other tasks are decoded greedily only."""
    sample_temperature: Annotated[float, Field(gt=0)] = 1.0

    def recipe_for(self, trains_on: str) -> Recipe | None:
        """How what an algorithm trains on is used; None where the track has no such data."""
        kinds = {"prompts": self.prompts, "demonstrations": self.demonstrations, "preferences": self.preferences}
        return kinds.get(trains_on)


class Recipes(Frozen):
    """Where the rules of a track's backbones stand, so that they stand once: among the recipes of `dare recipe`."""

    track: str
    task: str
    """Whose training data every method trains on."""
    backbones: tuple[str, ...]
    samples: int = 0


class TaskRules(Frozen):
    """One column of the board."""

    task: str
    role: Role
    """ranked: in the mean gain. shown: a column outside it. transfer: shown where its data is at hand."""
    limit: Annotated[int, Field(gt=0)] | None = None


class Example(Frozen):
    """What an entry may or may not do, with a few lines of example."""

    rule: str
    example: str


class Track(Grown):
    """A ruleset. `digest()` is the hash that the board and the rules page show."""

    added: ClassVar[frozenset[str]] = frozenset({"scorer", "further_scorers", "protocol", "through", "recipes"})

    track: str
    version: str
    state: Literal["draft", "open", "closed"]
    title: str
    summary: str
    proves: str
    does_not_prove: str
    verdict_override: str | None = None
    """A sentence that stands on the board instead of a verdict, for tracks that cannot rank."""
    device: Literal["cpu", "gpu"]
    seeds: tuple[int, ...]
    seeds_required: Annotated[int, Field(ge=1)]
    open_settings: tuple[str, ...] = ()
    """Fields of TrainSettings that an entry may set."""
    scorer: str = TaskProtocol.model_fields["scorer"].default
    """Whose word the board shows."""
    further_scorers: tuple[str, ...] = ()
    """Who else scores the same stored answers."""
    protocol: str | None = None
    """A named protocol by which every task is asked (`dare protocol list`); None: the task's own prompt, decoded by
    `greedy`."""
    through: Literal["decoder", "opencompass"] | None = None
    """Who asks; None: whom the protocol names, and without one our own decoder."""
    tasks: tuple[TaskRules, ...]
    backbones: dict[str, BackboneRules]
    """Composed from `recipes` where the file names them: what is hashed are the rules themselves."""
    recipes: Recipes | None = None
    allowed: tuple[Example, ...] = ()
    not_allowed: tuple[Example, ...] = ()
    fixed_because: dict[str, str] = Field(default_factory=dict)
    """Setting -> why it has its value, for the rules page."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.seeds_required > len(self.seeds):
            raise ValueError(f"seeds_required is {self.seeds_required} but only {len(self.seeds)} seeds are listed")
        if self.protocol is not None and self.protocol not in protocols.protocol_names():
            raise ValueError(f"protocol is {self.protocol!r}; known: {', '.join(protocols.protocol_names())}")
        unknown = set(self.open_settings) - set(TrainSettings.model_fields)
        if unknown:
            raise ValueError(f"open_settings names {sorted(unknown)[0]!r}, which is no training setting")
        if not any(task.role == "ranked" for task in self.tasks):
            raise ValueError("a track needs at least one ranked task")
        return self

    @property
    def name(self) -> str:
        """`tiny 1.0`."""
        return f"{self.track} {self.version}"

    def rules_of(self, backbone: str) -> BackboneRules:
        """The rules of one backbone; UnknownTrackError names those that the track has."""
        if backbone not in self.backbones:
            raise UnknownTrackError(
                f"track {self.name} has no backbone {backbone!r}; it has: {', '.join(self.backbones)}"
            )
        return self.backbones[backbone]

    def without_data(self, algorithm: str, trains_on: str, backbone: str) -> str | None:
        """Why an algorithm cannot be trained here: a sentence, or None where its kind of data is at hand."""
        if self.rules_of(backbone).recipe_for(trains_on) is not None:
            return None
        return f"`{algorithm}` trains on {trains_on}; track {self.name} has none for {backbone}."

    @property
    def evaluates_through(self) -> Literal["decoder", "opencompass"]:
        """Who asks the tasks."""
        return self.through or (protocols.through_of(self.protocol) if self.protocol else "decoder")

    def protocols(self, backbone: str, with_data: bool) -> tuple[TaskProtocol, ...]:
        """Evaluation protocols of one backbone. Transfer tasks only where their data is at hand."""
        rules = self.rules_of(backbone)
        columns = [column for column in self.tasks if with_data or column.role != "transfer"]
        return tuple(self._protocol(rules, column, backbone) for column in columns)

    def _protocol(self, rules: BackboneRules, column: TaskRules, backbone: str) -> TaskProtocol:
        samples = rules.samples if column.role == "ranked" else 0
        if self.protocol is None:
            return TaskProtocol(
                task=column.task,
                task_version=load_task(column.task).version,
                limit=column.limit,
                sampling=rules.greedy,
                samples=samples,
                sample_temperature=rules.sample_temperature,
                sample_steps_per_block=rules.rollout.steps_per_block,
                scorer=self.scorer,
                further_scorers=self.further_scorers,
            )
        family = backbones()[backbone].family
        asked = protocols.compose(
            self.protocol,
            column.task,
            family,
            rules.greedy,
            through=self.through,
            limit=column.limit,
            samples=samples,
        )
        return asked.protocol.model_copy(update={"scorer": self.scorer, "further_scorers": self.further_scorers})

    def train_job(self, backbone: BackboneRef, algorithm: AlgorithmSpec, trains_on: str, seed: int) -> JobSpec:
        """The training run of one entry on one backbone with one seed; NoTrainingDataError where it cannot be."""
        rules = self.rules_of(backbone.name)
        recipe = rules.recipe_for(trains_on)
        if recipe is None:
            raise NoTrainingDataError(self.without_data(algorithm.name, trains_on, backbone.name))
        return JobSpec(
            kind="train",
            seed=seed,
            backbone=backbone,
            train=TrainSpec(
                algorithm=algorithm,
                data=recipe.data,
                settings=recipe.settings,
                sampling=rules.rollout,
                budget=recipe.budget,
            ),
        )

    def evaluate_job(self, backbone: BackboneRef, seed: int, trained: bool, with_data: bool) -> JobSpec:
        """The evaluation of one policy: of a trained one, or of the untouched backbone."""
        return JobSpec(
            kind="evaluate",
            seed=seed,
            backbone=backbone,
            evaluate=EvaluateSpec(
                protocols=self.protocols(backbone.name, with_data),
                trained=trained,
                through=self.evaluates_through,
            ),
        )


def parse_track(text: str, name: str) -> Track:
    """A track from YAML; TrackFileError says which key of which file is wrong."""
    try:
        content = yaml.safe_load(text)
        if isinstance(content, dict) and "recipes" in content:
            content = {**content, "backbones": _composed(Recipes.model_validate(content["recipes"]))}
        return Track.model_validate(content)
    except recipe.RecipeError as error:
        raise TrackFileError(f"track file {name}: recipes: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise TrackFileError(f"track file {name}: {where}: {first['msg']}") from error


def _composed(named: Recipes) -> dict[str, BackboneRules]:
    """The rules of each backbone. One method of each kind of data speaks for all: the recipes treat them alike."""

    def of(backbone: str, algorithm: str) -> recipe.Recipe:
        return recipe.compose(f"{named.track}/{backbone}/{named.task}", algorithm)

    def part(composed: recipe.Recipe) -> Recipe:
        train = composed.train
        return Recipe(data=train.data, settings=train.settings, budget=train.budget)

    return {
        name: BackboneRules(
            rollout=of(name, "d1").train.sampling,
            greedy=of(name, "d1").train.sampling.model_copy(update={"temperature": 0.0}),
            prompts=part(of(name, "d1")),
            demonstrations=part(of(name, "sft")),
            preferences=part(of(name, "dpo")) if _trains(name, "dpo") else None,
            samples=named.samples,
        )
        for name in named.backbones
    }


def _trains(backbone: str, algorithm: str) -> bool:
    return recipe.supported(load_source(algorithm), backbone).level != "unsupported"


def slugs_here() -> tuple[str, ...]:
    """Tracks by slug, those first whose backbones are on this machine: a page opens on something that can be filled."""
    here = backbones()
    found = {track.track: any(name in here for name in track.backbones) for track in tracks().values()}
    return tuple(sorted(found, key=lambda slug: not found[slug]))


@cache
def tracks() -> dict[str, Track]:
    """All shipped tracks by `name` (`tiny 1.0`), newest version of a track last."""
    files = sorted(resources.files("dare_platform").joinpath("track_files").iterdir(), key=lambda file: file.name)
    parsed = [parse_track(file.read_text(), file.name) for file in files if file.name.endswith(".yaml")]
    return {track.name: track for track in parsed}


def load_track(track: str, version: str | None = None) -> Track:
    """A track by slug, newest version unless one is given."""
    matching = [t for t in tracks().values() if t.track == track and version in (None, t.version)]
    if not matching:
        raise UnknownTrackError(
            f"there is no track {track!r} {version or ''}; known: {', '.join(tracks())}".replace("  ", " ")
        )
    return matching[-1]


def track_named(name: str) -> Track:
    """A track by `tiny`, `tiny 1.0` or `tiny@1.0`."""
    slug, _, version = name.replace("@", " ").partition(" ")
    return load_track(slug, version or None)
