"""Which engine decodes: what a person writes for `--engine`, and the engine that it stands for, checked and started.

`NAME` runs in this process, `NAME@http://HOST:PORT` is a server that runs already; of an engine that cannot tell its
version, that is written behind the name, `NAME:VERSION@...`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dare.sampling.engines import ChoiceError, lmdeploy, sglang, vllm
from dare.sampling.engines.capabilities import TABLE, Capability, ServedModel, Serving
from dare.sampling.engines.sampler import EngineSampler
from dare.sampling_config import SamplingConfig
from dare.source.problems import nearest

SERVER = "http://127.0.0.1:30000"
"""For examples in messages."""


@dataclass(frozen=True)
class EngineChoice:
    """What was written, understood. `capability` is a row of the table."""

    capability: Capability
    version: str | None
    """Of a server that does not tell it."""
    url: str | None
    """None for an engine in this process."""


@dataclass(frozen=True)
class Start:
    """All that an engine is started with, or found with."""

    checkpoint: Path
    model: ServedModel
    config: SamplingConfig
    workdir: Path
    """For files that the engine reads, as long as it lives."""
    seeded: bool = True
    arguments: Mapping[str, Any] | None = None
    """The engine's own, by its names; only for an engine in this process."""
    api_key: str | None = field(default=None, repr=False)


def parse_choice(text: str) -> EngineChoice:
    """The engine that was written; ChoiceError where it is unknown, or misses what it needs."""
    named, at, url = text.partition("@")
    name, colon, version = named.partition(":")
    if name not in TABLE:
        raise ChoiceError(f"there is no engine {name!r}.{nearest(name, TABLE)}")
    if at:
        _check_url(url)
    place, tells = _PLACES[name.partition("#")[0]], f"{name}@{url}" if at else name
    if at and not place.server:
        raise ChoiceError(f"{name} is used in this process only, and {text!r} names a server: write {name}")
    if not at and not place.here:
        example = f"{name}:{version or TABLE[name].since}@{SERVER}"
        raise ChoiceError(f"{name} is used as a server only, and {text!r} names none: start it and write {example}")
    if colon and place.tells:
        raise ChoiceError(f"{name} tells its version itself, and {text!r} states one: write {tells}")
    if not version and not place.tells:
        example = f"{name}:{TABLE[name].since}@{url}"
        raise ChoiceError(f"a server of {name} cannot tell its version, and {text!r} states none: write {example}")
    return EngineChoice(TABLE[name], version or None, url.rstrip("/") if at else None)


def start(choice: EngineChoice, given: Start) -> EngineSampler:
    """Check what can be known, then import or connect; EngineError in one sentence for whatever is in the way."""
    engine = choice.capability.engine.partition("#")[0]
    _PLANS[engine](Serving(choice.capability, choice.version, given.model, given.seeded), given.config)
    if choice.url is None:
        return _here(engine, choice, given)
    if given.arguments:
        raise ChoiceError(
            f"{engine} at {choice.url} runs already, and {', '.join(sorted(given.arguments))} would come too late: "
            "give it to the command that starts the server"
        )
    if engine == "lmdeploy":
        serving = Serving(choice.capability, choice.version, given.model, given.seeded)
        return lmdeploy.LmdeployServer(choice.url, serving, given.config, api_key=given.api_key)
    return sglang.SglangServer(
        choice.url,
        given.model,
        given.config,
        api_key=given.api_key,
        capability=choice.capability,
        seeded=given.seeded,
    )


def _here(engine: str, choice: EngineChoice, given: Start) -> EngineSampler:
    arguments = dict(given.arguments or {})
    if engine == "vllm":
        return vllm.VllmEngine.load(given.checkpoint, given.model, given.config, **arguments)
    return sglang.SglangEngine.load(
        given.checkpoint,
        given.model,
        given.config,
        given.workdir,
        seeded=given.seeded,
        capability=choice.capability,
        **arguments,
    )


@dataclass(frozen=True)
class _Place:
    """Where an engine can be, and whether it tells its version there."""

    here: bool
    server: bool
    tells: bool


_PLACES = {
    "sglang": _Place(here=True, server=True, tells=True),
    "lmdeploy": _Place(here=False, server=True, tells=False),
    "vllm": _Place(here=True, server=False, tells=True),
}
_PLANS: Mapping[str, Callable[[Serving, SamplingConfig], object]] = {
    "sglang": sglang.plan,
    "lmdeploy": lmdeploy.plan,
    "vllm": vllm.plan,
}


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        whole = False
    if not whole or any(character.isspace() or not character.isprintable() for character in url):
        raise ChoiceError(f"{url!r} is no address of a server: write it as {SERVER}")
    if "@" in parts.netloc:
        raise ChoiceError("an address with a password would be seen by others: give a key by DARE_ENGINE_KEY")
    if parts.query or parts.fragment:
        raise ChoiceError(f"{url!r} goes on behind the address of a server: write it as {SERVER}")
