"""Named protocols: by whose rules a task is asked and scored, composed of files that say differences. No torch.

`protocols/<name>.yaml` has defaults, families, tasks, and tasks in families. Later layers win:

    what the file it extends says, layer by layer, then its own
    defaults                  then `families.FAMILY`
    tasks.TASK                then `tasks.TASK.families.FAMILY`

A file with `decoding: own` begins with how the policy itself decodes; one with `decoding: published` has to say it all.
What nobody has published says `unknown` and why: the protocol is refused for that task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from dare.catalog import families
from dare.frozen import Frozen
from dare.sampling_config import SamplingConfig
from dare.scoring import EvaluationError, prompt_of
from dare.source.problems import nearest
from dare.spec import TaskProtocol
from dare.tasks import Item, Task, items_sha256, load_task

Through = Literal["decoder", "opencompass"]
Begins = Literal["own", "published"]
OPENCOMPASS = "opencompass-0.5.4"
"""The released evaluator that scores too, where it asks."""
SAMPLING_KEYS = frozenset(SamplingConfig.model_fields) - {"steps_per_block"} | {"steps"}
OWN = "the policy's own decoding"


class ProtocolError(EvaluationError):
    """A protocol that is not there, does not hold together, or does not say how a task is asked. One sentence."""


class Part(Frozen):
    """Differences from what earlier layers say."""

    prompt: str | None = None
    template: Literal["chat", "none"] | None = None
    prefill: str | None = None
    stops: tuple[str, ...] | None = None
    policies: dict[str, str] = Field(default_factory=dict)
    sampling: dict[str, Any] = Field(default_factory=dict)
    """`steps` are denoising steps of the whole window; one per token where nobody says."""
    samples: Annotated[int, Field(ge=0)] | None = None
    mc_samples: Annotated[int, Field(gt=0, le=4096)] | None = None
    source: str | None = None
    """Where these values are published."""
    unknown: str | None = None
    """Why nobody can ask so: a clause that goes on after the task's name."""

    @model_validator(mode="after")
    def _known_settings(self) -> Self:
        for key in self.sampling:
            if key not in SAMPLING_KEYS:
                raise ValueError(f"sampling has no `{key}`.{nearest(key, SAMPLING_KEYS)}")
        return self


class TaskPart(Part):
    """What a protocol says of one task."""

    families: dict[str, Part] = Field(default_factory=dict)


class ProtocolFile(Frozen):
    """A protocol's own file."""

    title: str
    source: str
    """Of every value that names no other."""
    extends: str | None = None
    through: Through | None = None
    decoding: Begins | None = None
    only: tuple[str, ...] | None = None
    """Families that it is for; None for all."""
    defaults: Part = Part()
    families: dict[str, Part] = Field(default_factory=dict)
    tasks: dict[str, TaskPart] = Field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """How one task is put to a policy, and for every value where it comes from."""

    name: str
    """Of the protocol."""
    task: Task
    family: str
    protocol: TaskProtocol
    through: Through
    origin: Mapping[str, str] = field(default_factory=dict)
    """Field, or `sampling.FIELD` -> source. What is absent is the default of `dare.spec`."""

    @property
    def id(self) -> str:
        """Digest of everything that moves a score."""
        return self.protocol.digest()


def protocol_names() -> list[str]:
    """All protocols, in alphabetical order."""
    return sorted(file.stem for file in _root().glob("*.yaml"))


def title_of(name: str) -> str:
    """What a protocol is, in one line."""
    return _chain(name)[-1].title


def source_of(name: str) -> str:
    """Where a protocol was published."""
    return _chain(name)[-1].source


def through_of(name: str) -> Through:
    """Who asks under a protocol when nobody says otherwise."""
    return next((file.through for file in reversed(_chain(name)) if file.through is not None), "decoder")


def families_of(name: str) -> tuple[str, ...]:
    """Families that a protocol is for."""
    said = next((file.only for file in reversed(_chain(name)) if file.only is not None), None)
    return said if said is not None else tuple(families())


def tasks_of(name: str) -> dict[str, str | None]:
    """Tasks that a protocol speaks of: None, or why it cannot ask them in any family."""
    found: dict[str, str | None] = {}
    for file in _chain(name):
        found |= {task: part.unknown for task, part in file.tasks.items()}
    return found


def compose(
    name: str,
    task_name: str,
    family: str,
    own: SamplingConfig,
    *,
    through: Through | None = None,
    limit: int | None = None,
    samples: int | None = None,
) -> Asked:
    """How the protocol puts a task to a policy of a family that decodes by `own` when nobody says otherwise.

    ProtocolError where it says nothing of the task, is for other families, or where something is unknown.
    """
    chain, task = _chain(name), load_task(task_name)
    known = tasks_of(name)
    if task_name not in known:
        raise ProtocolError(f"protocol {name!r} says nothing of task {task_name!r}; it has: {', '.join(known)}")
    if family not in families_of(name):
        raise ProtocolError(
            f"protocol {name!r} is for the families {', '.join(families_of(name))}, and this backbone is of {family!r}"
        )
    values, given, origin = _merged(chain, name, task_name, family)
    asks: Through = through or through_of(name)
    begins: Begins = next((file.decoding for file in reversed(chain) if file.decoding is not None), "own")
    sampling = _sampling(begins, name, task, family, own, given, origin)
    if limit is not None:
        origin["limit"] = "asked for"
    if task.files:
        origin["items_sha256"] = "the data file"
    fields = {
        **values,
        "task": task.name,
        "task_version": task.version,
        "limit": limit,
        "sampling": sampling,
        "samples": values.get("samples", 0) if samples is None else samples,
        "sample_steps_per_block": own.steps_per_block if begins == "own" else None,
        "further_scorers": (OPENCOMPASS,) if asks == "opencompass" else (),
    }
    protocol = TaskProtocol.model_validate(fields)
    if asks == "decoder" and protocol.prompt.startswith("opencompass:"):
        raise ProtocolError(
            f"protocol {name!r} asks {task_name!r} with OpenCompass's own prompt {protocol.prompt.partition(':')[2]}: "
            "it goes through opencompass only"
        )
    if protocol.prefill and (protocol.template == "none" or protocol.prompt.startswith("opencompass:")):
        raise ProtocolError(
            f"protocol {name!r} begins the answers of {task_name!r}, which needs a chat template and a prompt of ours"
        )
    return Asked(name=name, task=task, family=family, protocol=protocol, through=asks, origin=origin)


def with_items(asked: Asked, data: Path | None) -> tuple[Asked, Sequence[Item]]:
    """The same with the hash of the items that lie in the data folder, and the items that are asked.

    Generated items are fixed by the task's version and have no hash here. Raises what `Task.items` raises.
    """
    items = asked.task.items(asked.protocol.split, data)
    protocol = asked.protocol
    if asked.task.files or asked.task.needs_data:
        protocol = protocol.model_copy(update={"items_sha256": items_sha256(items)})
    if not protocol.prompt.startswith("opencompass:"):
        for item in items[:1]:
            prompt_of(protocol, asked.task, item, data)
    return Asked(asked.name, asked.task, asked.family, protocol, asked.through, asked.origin), items[: protocol.limit]


def _merged(
    chain: Sequence[ProtocolFile], name: str, task: str, family: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Values of the protocol, of its decoding, and where each comes from."""
    values: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    origin: dict[str, str] = {}
    unknown: str | None = None
    for part, source in _layers(chain, task, family):
        if part.model_fields_set - {"families", "source"}:
            unknown = part.unknown
        said = part.source or source
        for key in ("prompt", "template", "prefill", "stops", "samples", "mc_samples"):
            value = getattr(part, key)
            if value is not None:
                values[key] = value
                origin[key] = said
        for key, value in part.policies.items():
            values.setdefault("policies", {})[key] = value
            origin[f"policies.{key}"] = said
        for key, value in part.sampling.items():
            sampling[key] = value
            origin[f"sampling.{key}"] = said
    if unknown is not None:
        raise ProtocolError(f"protocol {name!r} cannot ask task {task!r} of family {family!r}: {unknown}")
    return values, sampling, origin


def _layers(chain: Sequence[ProtocolFile], task: str, family: str) -> Iterator[tuple[Part, str]]:
    for file in chain:
        yield file.defaults, file.source
        if family in file.families:
            yield file.families[family], file.source
    for file in chain:
        if task in file.tasks:
            part = file.tasks[task]
            yield part, file.source
            if family in part.families:
                yield part.families[family], part.families[family].source or part.source or file.source


def _sampling(
    begins: Begins,
    name: str,
    task: Task,
    family: str,
    own: SamplingConfig,
    given: Mapping[str, Any],
    origin: dict[str, str],
) -> SamplingConfig:
    """The decoding of the headline."""
    is_block = families()[family].kind == "block"
    settings = dict(given)
    steps = settings.pop("steps", None)
    if begins == "own":
        length = settings.get("gen_length", own.gen_length)
        block = own.block_length if own.block_length < own.gen_length or is_block else length
        values = own.model_dump() | {"temperature": 0.0, "gen_length": length, "block_length": block} | settings
        for key in SamplingConfig.model_fields:
            origin.setdefault(f"sampling.{key}", OWN)
        if length % values["block_length"]:
            values["block_length"] = length
    else:
        values = settings
        length, block = values.get("gen_length"), values.get("block_length")
        if task.kind == "likelihood":
            values = {"gen_length": own.gen_length, "block_length": own.block_length} | values
        elif length is None or block is None:
            raise ProtocolError(f"protocol {name!r} does not say how long an answer to {task.name!r} may be")
        elif is_block and block != own.block_length:
            raise ProtocolError(
                f"protocol {name!r} decodes blocks of {block} tokens, and this backbone's have {own.block_length}"
            )
    length, block = values["gen_length"], values["block_length"]
    if steps is not None and steps * block % length:
        raise ProtocolError(
            f"protocol {name!r}: {steps} steps over {length // block} blocks of {block} are no whole number each"
        )
    values["steps_per_block"] = block if steps is None else steps * block // length
    if values.get("temperature", 0.0) == 0.0:  # an argmax draws from nothing, whatever the policy's own rollouts do
        values |= {key: None for key in ("top_p", "top_k", "order_temperature") if key in values and key not in given}
        if values.get("confidence") == "draw" and "confidence" not in given:
            values["confidence"] = "model"
    try:
        return SamplingConfig.model_validate(values)
    except ValidationError as error:
        said = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise ProtocolError(f"protocol {name!r} cannot ask {task.name!r} of this backbone: {said}") from error


def _root() -> Path:
    return Path(str(resources.files("dare").joinpath("protocols")))


@cache
def _chain(name: str) -> tuple[ProtocolFile, ...]:
    """The file, after those that it extends."""
    if name not in protocol_names():
        raise ProtocolError(f"there is no protocol {name!r}.{nearest(name, protocol_names())}")
    file = _read(_root() / f"{name}.yaml")
    return (*(_chain(file.extends) if file.extends is not None else ()), file)


def _read(path: Path) -> ProtocolFile:
    try:
        file = ProtocolFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise ProtocolError(f"{path.name} is no YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ProtocolError(f"{path.name}: {where}: {str(first['msg']).removeprefix('Value error, ')}") from error
    for family in [*(file.only or ()), *file.families, *(f for part in file.tasks.values() for f in part.families)]:
        if family not in families():
            raise ProtocolError(f"{path.name}: unknown family `{family}`.{nearest(family, families())}")
    return file
