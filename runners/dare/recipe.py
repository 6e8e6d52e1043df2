"""Recipes: everything that a run on a real backbone is set to, composed of files that say differences. No torch.

`recipes/families.yaml` names the checkpoints, `recipes/tasks.yaml` data and lengths of each task. A folder is a track:
`recipes/<track>/track.yaml` has its defaults and its algorithms; `<family>.yaml` and `<backbone>.yaml` beside it, where
they exist, what a family or one backbone changes. Later layers win:

    track, family, backbone   defaults
    task                      of tasks.yaml, then of the track, the family, the backbone
    algorithm                 of the track, and on this task
    family, backbone          what it insists on, then the algorithm there, then the algorithm there on this task
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from dare import tasks
from dare.catalog import UnknownAlgorithmError, algorithms, families, load_source, support_of
from dare.frozen import Frozen
from dare.sampling_config import SamplingConfig
from dare.source import AlgorithmSource, check_hyperparameters
from dare.source.problems import nearest
from dare.spec import AlgorithmSpec, Budget, Hyperparameters, TrainSettings, TrainSpec
from dare.support import Support

Known = TypeVar("Known")
Section = Literal["settings", "sampling", "hyperparameters", "budget"]
SECTIONS: tuple[Section, ...] = ("settings", "sampling", "hyperparameters", "budget")
KEYS: Mapping[str, frozenset[str]] = {
    "settings": frozenset(TrainSettings.model_fields),
    # papers state the denoising steps of a completion; a decoder here, those of a block
    "sampling": frozenset(SamplingConfig.model_fields) - {"steps_per_block"} | {"steps"},
    "budget": frozenset(Budget.model_fields),
}


class RecipeError(ValueError):
    """A recipe that is not there, or that does not hold together. One sentence."""


class Part(Frozen):
    """Differences from what earlier layers say."""

    data: dict[Literal["prompts", "demonstrations", "preferences"], str] = Field(default_factory=dict)
    """By what an algorithm trains on."""
    settings: dict[str, Any] = Field(default_factory=dict)
    sampling: dict[str, Any] = Field(default_factory=dict)
    """`steps` are denoising steps of a whole completion; one per token where nobody says."""
    hyperparameters: Hyperparameters = Field(default_factory=dict)
    budget: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known_keys(self) -> Self:
        for section, known in KEYS.items():
            for key in getattr(self, section):
                if key not in known:
                    raise ValueError(f"{section} has no `{key}`.{nearest(key, known)}")
        return self


class AlgorithmPart(Part):
    """What an algorithm is set to, and what is different on some tasks."""

    tasks: dict[str, Part] = Field(default_factory=dict)


class Place(Frozen):
    """What a track, a family or a backbone says."""

    defaults: Part = Part()
    tasks: dict[str, Part] = Field(default_factory=dict)
    insists: Part = Part()
    """What holds whatever an algorithm's own settings are."""
    algorithms: dict[str, AlgorithmPart] = Field(default_factory=dict)


class TrackFile(Place):
    """A track's own file."""

    summary: str


class FamilyPlace(Place):
    """A family in `families.yaml`."""

    checkpoints: dict[str, str]
    """Backbones by the name that recipes use: where each is published."""


class TaskPart(Part):
    """A task in `tasks.yaml`."""

    title: str


@dataclass(frozen=True)
class Recipe:
    """A composed run, and for every value that a layer set, which one: (section, name) -> layer."""

    track: str
    backbone: str
    checkpoint: str
    family: str
    task: str
    support: Support
    train: TrainSpec
    origin: Mapping[tuple[str, str], str]

    @property
    def name(self) -> str:
        """`published/llada-8b-instruct/gsm8k`."""
        return f"{self.track}/{self.backbone}/{self.task}"


def track_names() -> list[str]:
    """The folders of `recipes`."""
    return sorted(path.parent.name for path in _root().glob("*/track.yaml"))


def backbone_names() -> list[str]:
    """All backbones that recipes know, by family."""
    return [name for place in _families().values() for name in place.checkpoints]


def task_names() -> list[str]:
    """All tasks that recipes know, in the order of their file."""
    return list(_tasks())


def track_summary(track: str) -> str:
    """What a track is for."""
    return _track(_chosen("track", track, track_names())).summary


def task_title(task: str) -> str:
    """What a task is, in a few words."""
    return _tasks()[_chosen("task", task, task_names())].title


def checkpoint_of(backbone: str) -> str:
    """Where a backbone is published."""
    return _families()[family_of(backbone)].checkpoints[backbone]


def family_of(backbone: str) -> str:
    """The family of a backbone."""
    _chosen("backbone", backbone, backbone_names())
    return next(family for family, place in _families().items() if backbone in place.checkpoints)


def parse(reference: str) -> tuple[str, str, str]:
    """Track, backbone and task of `published/llada-8b-instruct/gsm8k`, all known."""
    parts = reference.split("/")
    if len(parts) != 3:
        raise RecipeError(f"recipe {reference!r} is not of the form TRACK/BACKBONE/TASK; `dare recipe list` has them")
    track, backbone, task = parts
    return (
        _chosen("track", track, track_names()),
        _chosen("backbone", backbone, backbone_names()),
        _chosen("task", task, task_names()),
    )


def supported(algorithm: AlgorithmSource, backbone: str) -> Support:
    """Whether an algorithm runs on a backbone of the recipes."""
    return support_of(algorithm, family_of(backbone))


def compose(reference: str, algorithm: str | AlgorithmSource) -> Recipe:
    """The whole run of an algorithm by the recipe TRACK/BACKBONE/TASK; a file of one's own has no layer for itself."""
    track, backbone, task = parse(reference)
    try:
        source = load_source(algorithm) if isinstance(algorithm, str) else algorithm
    except UnknownAlgorithmError as error:
        raise RecipeError(str(error)) from error
    pair = supported(source, backbone)
    if pair.level == "unsupported":
        raise RecipeError(f"{source.name} cannot train {backbone}: it {pair.reason}")
    found: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    origin: dict[tuple[str, str], str] = {}
    data = None
    fields = {field.name for field in source.hyperparameters}
    for layer, part, general in _layers(track, backbone, task, source.name):
        if source.trains_on in part.data:
            data = part.data[source.trains_on]
            origin["data", ""] = layer
        for section in SECTIONS:
            for key, value in getattr(part, section).items():
                if section == "hyperparameters" and general and key not in fields:
                    continue
                found[section][key] = value
                origin[section, key] = layer
    if data is None:
        raise RecipeError(f"{reference} has no {source.trains_on}, which {source.name} trains on")
    problems = check_hyperparameters(source, found["hyperparameters"], {}, f"{reference}, {source.name}")
    if problems:
        raise RecipeError(problems[0].text)
    return Recipe(
        track=track,
        backbone=backbone,
        checkpoint=checkpoint_of(backbone),
        family=family_of(backbone),
        task=task,
        support=pair,
        origin=origin,
        train=TrainSpec(
            algorithm=AlgorithmSpec(
                name=source.name,
                source="builtin" if isinstance(algorithm, str) else "entry",
                hyperparameters=source.settled(found["hyperparameters"]),
            ),
            data=data,
            settings=_valid(TrainSettings, found["settings"], f"{reference}, {source.name}"),
            sampling=_valid(SamplingConfig, _per_block(found["sampling"], reference), f"{reference}, {source.name}"),
            budget=_valid(Budget, found["budget"], f"{reference}, {source.name}"),
        ),
    )


def missing_task(recipe: Recipe) -> str | None:
    """A sentence where the data are those of a task that is not here yet."""
    kind, _, rest = recipe.train.data.partition(":")
    task = rest.partition("/")[0]
    if kind not in ("prompts", "corpus") or task in tasks.task_names():
        return None
    return f"task {task!r} is not here yet: give the data with --data, as file:PATH or hub:OWNER/NAME@COMMIT/SPLIT"


def as_yaml(recipe: Recipe) -> str:
    """The whole run as YAML, each value with the layer that it comes from."""
    algorithm, train = recipe.train.algorithm, recipe.train
    lines = [(f"recipe: {recipe.name}", recipe.checkpoint), (f"algorithm: {algorithm.name}", _standing(recipe))]
    lines.append((f"data: {train.data}", recipe.origin["data", ""]))
    sections: dict[Section, Mapping[str, Any]] = {
        "settings": train.settings.model_dump(mode="json"),
        "sampling": train.sampling.model_dump(mode="json"),
        "hyperparameters": algorithm.hyperparameters,
        "budget": train.budget.model_dump(mode="json"),
    }
    for section, values in sections.items():
        lines.append((f"{section}:{'' if values else ' {}'}", ""))
        for key, value in values.items():
            said = "steps" if key == "steps_per_block" else key
            lines.append((f"  {key}: {_scalar(value)}", recipe.origin.get((section, said), "default")))
    width = max(len(text) for text, _ in lines if len(text) < 44)
    return "".join(f"{text:<{width}}  # {origin}\n" if origin else f"{text}\n" for text, origin in lines)


def _standing(recipe: Recipe) -> str:
    kind = families()[recipe.family].kind
    said = "its authors ran it on" if recipe.support.level == "published" else "our extension to"
    return f"{said} {kind} families"


def _scalar(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n").removesuffix("\n...")


def _layers(track: str, backbone: str, task: str, algorithm: str) -> Iterator[tuple[str, Part, bool]]:
    """Everything that has a say, from the weakest to the strongest, and whether it speaks of all algorithms.

    A hyperparameter that is said of all of them holds for those that have it.
    """
    family = family_of(backbone)
    places: list[tuple[str, Place]] = [(track, _track(track)), (family, _families()[family])]
    for name in (family, backbone):
        places += [(f"{name} in {track}", place) for place in (_place(track, name),) if place is not None]
    yield from ((name, place.defaults, True) for name, place in places)
    yield f"task {task}", _tasks()[task], True
    yield from ((f"{task} in {name}", place.tasks[task], True) for name, place in places if task in place.tasks)
    for name, place in places:
        yield name, place.insists, True
        part = place.algorithms.get(algorithm)
        if part is not None:
            yield f"{algorithm}, {name}", part, False
            if task in part.tasks:
                yield f"{algorithm} on {task}, {name}", part.tasks[task], False


def _per_block(sampling: Mapping[str, Any], reference: str) -> dict[str, Any]:
    """Sampling with steps per block instead of steps per completion."""
    given = dict(sampling)
    steps = given.pop("steps", None)
    length, block = given.get("gen_length", 0), given.get("block_length", 0)
    if not length or not block or length % block:
        raise RecipeError(f"{reference}: a window of {length} tokens has no whole number of blocks of {block}")
    if steps is not None and steps * block % length:
        raise RecipeError(
            f"{reference}: {steps} steps over {length // block} blocks of {block} are no whole number each"
        )
    return given | {"steps_per_block": block if steps is None else steps * block // length}


def _chosen(what: str, name: str, known: list[str]) -> str:
    if name not in known:
        raise RecipeError(f"there is no recipe for {what} {name!r}.{nearest(name, known)}")
    return name


def _root() -> Path:
    return Path(str(resources.files("dare").joinpath("recipes")))


@cache
def _families() -> dict[str, FamilyPlace]:
    file = _root() / "families.yaml"
    return {name: _valid(FamilyPlace, given, f"{file.name}: {name}") for name, given in _read(file).items()}


@cache
def _tasks() -> dict[str, TaskPart]:
    file = _root() / "tasks.yaml"
    return {name: _valid(TaskPart, given, f"{file.name}: {name}") for name, given in _read(file).items()}


@cache
def _track(track: str) -> TrackFile:
    return _checked(
        _valid(TrackFile, _read(_root() / track / "track.yaml"), f"{track}/track.yaml"), f"{track}/track.yaml"
    )


@cache
def _place(track: str, name: str) -> Place | None:
    file = _root() / track / f"{name}.yaml"
    where = f"{track}/{file.name}"
    return _checked(_valid(Place, _read(file), where), where) if file.is_file() else None


def _checked(place: Known, where: str) -> Known:
    """A place whose tasks and algorithms exist."""
    assert isinstance(place, Place)
    named = [(task, "task", task_names()) for task in place.tasks]
    for algorithm, part in place.algorithms.items():
        named += [(algorithm, "algorithm", list(algorithms()))]
        named += [(task, "task", task_names()) for task in part.tasks]
    for name, what, known in named:
        if name not in known:
            raise RecipeError(f"{where}: unknown {what} `{name}`.{nearest(name, known)}")
    return place


Model = TypeVar("Model", bound=BaseModel)


def _valid(model: type[Model], given: Any, where: str) -> Model:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = nearest(str(first["loc"][-1]), model.model_fields)
            raise RecipeError(f"{where}: unknown key `{key}`.{known}") from error
        message = first["msg"].removeprefix("Value error, ")
        raise RecipeError(f"{where}: {key}{': ' if key else ''}{message}") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        given = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise RecipeError(f"{file.name} is no YAML: {error}") from error
    if not isinstance(given, dict):
        raise RecipeError(f"{file.name} is no mapping")
    return given
