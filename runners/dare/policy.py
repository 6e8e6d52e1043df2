"""One policy ready to answer: a checkpoint by name or folder, settings that fit it, and prompts that fit its context.

Shared by `dare generate` and `dare serve`. Everything that a person can get wrong is a RequestError of one sentence.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError

from dare.attention import default_attention, usable
from dare.catalog import BackboneRecord, UnknownBackboneError, backbone_directory, backbones
from dare.family import Backbone, Tokenizer, family_of, load_family
from dare.sampling.engines import EngineError, UnsupportedRequestError
from dare.sampling.engines.capabilities import ServedModel
from dare.sampling.engines.choice import EngineChoice, Start, start
from dare.sampling.engines.probe import probe
from dare.sampling.engines.sampler import EngineSampler
from dare.sampling.presets import PRESETS
from dare.sampling_config import SamplingConfig
from dare.source.problems import nearest
from dare.tokenizer import Message
from dare.types import UNRECORDED, Records, Samples, Watch
from dare.weights.files import default_sampling

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CONTEXT_KEYS = ("max_sequence_length", "max_position_embeddings")
IMPLIED = {"threshold": "dynamic", "factor": "factor", "entropy_bound": "entropy_bounded"}
"""The selector that a parameter stands for; `dynamic` is the use of a threshold that goes with any number of steps."""
SHOWN = 80
"""Characters of a wrong value in a message."""
PROBED = 64
"""Tokens of the window in which an engine is probed, or a block where that is longer."""


class RequestError(ValueError):
    """What was asked for makes no sense or does not fit the model; the message says what and why in one sentence."""


@dataclass(frozen=True)
class Policy:
    """A checkpoint and how it decodes when nobody says otherwise: greedy, one token per forward."""

    name: str
    backbone: Backbone
    tokenizer: Tokenizer
    sampling: SamplingConfig
    context: int | None
    """Positions that the model was made for; None where its configuration does not say."""
    weights: str
    """What tells these weights from others: a hash, or the folder they came from."""
    source: Path | None = None
    """The folder of the checkpoint; None where it was made in this process."""
    engine: EngineSampler | None = None
    """What decodes instead of the backbone, which then has no weights here."""

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        config: SamplingConfig,
        generators: Sequence[torch.Generator],
        record: frozenset[Records] = frozenset(),
        watch: Watch | None = None,
    ) -> Samples:
        """As `Backbone.sample`, by the engine where there is one; RequestError for what it cannot honour."""
        if self.engine is None:
            return self.backbone.sample(prompts, config, generators, record, watch)
        try:
            return self.engine.sample(prompts, config, generators, record, watch)
        except UnsupportedRequestError as error:
            raise RequestError(one_line(error)) from error

    def check_decodes(self, config: SamplingConfig) -> None:
        """The engine, where there is one, can decode so; our own decoder says it itself when it is asked."""
        if self.engine is not None:
            try:
                self.engine.check(config)
            except UnsupportedRequestError as error:
                raise RequestError(one_line(error)) from error

    def configure(self, given: Mapping[str, Any]) -> SamplingConfig:
        """The settings with some replaced.

        A field that was equal to another one stays equal to it unless it is given itself: a whole canvas in one block
        stays whole at another `gen_length`, one token per forward stays one at another `block_length`. A parameter of
        a selector chooses it where none is chosen.
        """
        known = SamplingConfig.model_fields
        unknown = next((name for name in given if name not in known), None)
        if unknown is not None:
            raise RequestError(f"there is no setting {unknown!r}.{nearest(unknown, known)}")
        values = {name: getattr(self.sampling, name) for name in known} | dict(given)
        if "selector" not in given and self.sampling.selector == "schedule":
            chosen = (IMPLIED[name] for name, value in given.items() if name in IMPLIED and value is not None)
            values["selector"] = next(chosen, "schedule")
        for name, other in (("block_length", "gen_length"), ("steps_per_block", "block_length")):
            if name not in given and getattr(self.sampling, name) == getattr(self.sampling, other):
                values[name] = values[other]
        try:
            config = SamplingConfig(**values)
        except ValidationError as error:
            raise RequestError(first_problem(error.errors())) from error
        size = self.backbone.block_size
        if size is not None and config.block_length != size:
            raise RequestError(
                f"block_length is {config.block_length} but the blocks of {self.name} have {size} tokens"
            )
        if size is None and config.gen_length % config.block_length:
            raise RequestError(
                f"gen_length is {config.gen_length}, which is no multiple of block_length {config.block_length}"
            )
        return config

    def with_settings(self, given: Mapping[str, Any]) -> Policy:
        """The policy with other settings of its own."""
        return replace(self, sampling=self.configure(given))

    def with_preset(self, name: str, given: Mapping[str, Any]) -> Policy:
        """The policy with published settings for a window, and where it is free for a block, of the length given."""
        if name not in PRESETS:
            raise RequestError(f"there is no preset {name!r}.{nearest(name, PRESETS)}")
        free = inspect.signature(PRESETS[name]).parameters
        lengths = {"gen_length": self.sampling.gen_length, "block_length": self.backbone.block_size}
        lengths |= {length: given[length] for length in lengths if length in given}
        chosen = {length: value for length, value in lengths.items() if length in free and value is not None}
        wrong = next((length for length, value in chosen.items() if not isinstance(value, int) or value < 1), None)
        if wrong is not None:
            raise RequestError(f"{wrong} is {chosen[wrong]!r}; it must be a whole number from 1")
        try:
            return replace(self, sampling=PRESETS[name](**chosen))
        except ValidationError as error:
            raise RequestError(first_problem(error.errors())) from error

    def prompt(self, asked: str | Sequence[Message], **options: Any) -> list[int]:
        """One user turn, or a dialogue, through the chat template; an answer that ends it is continued."""
        turns: list[Message] = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)
        begun = turns.pop()["content"] if turns and turns[-1].get("role") == "assistant" else ""
        try:
            return self.tokenizer.prompt_ids(turns, begun, **options)
        except ValueError as error:
            raise RequestError(one_line(error)) from error

    def text(self, text: str) -> list[int]:
        """Text as it is, without a template; a special token that it spells is text like any other."""
        try:
            return self.tokenizer.answer_ids(text)[:-1]  # without the end of turn
        except ValueError as error:
            raise RequestError(one_line(error)) from error

    def check_fits(self, prompt: Sequence[int], gen_length: int) -> None:
        """Prompt and window lie within the context, and every id is a token."""
        vocabulary = int(self.backbone.model.config.vocab_size)  # type: ignore[union-attr, arg-type]
        stranger = next((token for token in prompt if not 0 <= token < vocabulary), None)
        if stranger is not None:
            raise RequestError(f"token id {stranger} is not among the {vocabulary} of {self.name}")
        if self.engine is not None and (not prompt or self.backbone.mask_id in prompt):
            wrong = f"holds the mask token {self.backbone.mask_id}, which it may fill" if prompt else "is empty"
            raise RequestError(f"{self.engine.name} cannot continue a prompt that {wrong}")
        if self.context is not None and len(prompt) + gen_length > self.context:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens and gen_length is {gen_length}, together more than the "
                f"{self.context} positions of {self.name}"
            )


def recorded(number: int) -> int | None:
    """A number as people may see it: None where it is not reported."""
    return None if number == UNRECORDED else number


def recorded_steps(step_map: Sequence[int]) -> tuple[int, ...] | None:
    """The same for the steps of one row, which are reported for all of its tokens or for none."""
    return None if UNRECORDED in step_map else tuple(step_map)


def first_problem(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first thing that pydantic found wrong, as one sentence with the field and its value."""
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"])
    said = str(first["msg"]).removeprefix("Value error, ")
    if not where:
        return said
    if first["type"] == "missing":
        return f"{where} is missing"
    value = repr(first["input"])
    return f"{where} is {value if len(value) <= SHOWN else value[:SHOWN] + '...'}: {said}"


def open_policy(
    name: str,
    weights: Path | None = None,
    *,
    dtype: str = "float32",
    device: str = "auto",
    attention: str = "auto",
    with_weights: bool = True,
) -> Policy:
    """Load a backbone of the catalog, or a checkpoint folder, with its own weights or those of another folder.

    Without weights no weight file is opened: for a policy that is `decoded_by` an engine.
    """
    record = backbones().get(name)
    try:
        directory = backbone_directory(name) if record is not None else Path(name)
    except UnknownBackboneError as error:
        raise RequestError(str(error)) from error
    if record is None:
        if not directory.is_dir():
            raise RequestError(
                f"unknown backbone {name!r}, and there is no such folder; known: {', '.join(backbones())}"
            )
        record = _record_beside(directory)
    if weights is not None and not weights.is_dir():
        raise RequestError(f"there is no folder of weights {weights}")
    source = weights or directory
    where = _device(device) if with_weights else torch.device("meta")
    family = record.family if record is not None else _family_of(directory)
    try:
        loader = load_family(family)
        if with_weights:
            if attention == "auto":
                attention = default_attention(where.type, usable(), loader.kind, DTYPES[dtype])
            backbone = loader.load(source, DTYPES[dtype], attention)
            backbone.model.to(where)
        else:
            backbone = loader.outline(source)
    except (ValueError, KeyError, OSError, SafetensorError, RuntimeError) as error:
        raise RequestError(f"{source} cannot be loaded: {one_line(error)}") from error
    context = next((int(v) for key in CONTEXT_KEYS if (v := getattr(backbone.model.config, key, None))), None)
    return Policy(
        name=directory.resolve().name if record is None else record.name,
        backbone=backbone,
        tokenizer=backbone.tokenizer,
        sampling=_greedy(default_sampling(backbone.model.config, loader) if record is None else record.sampling),
        context=context,
        weights=record.weights_sha256 if record is not None and weights is None else str(source.resolve()),
        source=source,
    )


@contextmanager
def decoded_by(
    choice: EngineChoice,
    policy: Policy,
    *,
    seeded: bool = True,
    arguments: Mapping[str, Any] | None = None,
    api_key: str | None = None,
) -> Iterator[Policy]:
    """The policy with an engine that is started for its settings, probed, and closed at the end.

    RequestError for whatever is in the way; first what the engine cannot do, before it is imported or connected to.
    """
    assert policy.source is not None
    with TemporaryDirectory(prefix="dare-engine-") as scratch:
        asked = Start(
            checkpoint=policy.source,
            model=served_model(policy.backbone),
            config=policy.sampling,
            workdir=Path(scratch),
            seeded=seeded,
            arguments=arguments,
            api_key=api_key,
        )
        try:
            engine = start(choice, asked)
        except EngineError as error:
            raise RequestError(one_line(error)) from error
        try:
            _probe(engine, policy)
            yield replace(policy, engine=engine)
        finally:
            engine.close()


def served_model(backbone: Backbone) -> ServedModel:
    """What an engine must agree with us about, from the checkpoint's configuration and tokenizer."""
    config: Any = backbone.model.config
    return ServedModel(
        architecture=(config.architectures or [type(backbone.model).__name__])[0],
        eos_ids=backbone.eos_ids,
        pad_id=backbone.pad_id,
        mask_id=backbone.mask_id,
        block_size=backbone.block_size,
    )


def _probe(engine: EngineSampler, policy: Policy) -> None:
    """An empty question leaves the model a choice whatever it was trained on.

    There are no canaries: an answer that must occur would have to come from weights that are not here.
    """
    config = policy.sampling
    length = min(config.gen_length, max(config.block_length, PROBED))
    try:
        probe(engine, config.model_copy(update={"gen_length": length}), policy.prompt(""), ())
    except EngineError as error:
        raise RequestError(one_line(error)) from error


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter from a torch without CUDA
        raise RequestError(f"device {name!r} cannot be used here: {one_line(error)[:100]}") from error
    return device


def one_line(error: BaseException) -> str:
    """What an error says, without its line breaks; its name where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def _greedy(sampling: SamplingConfig) -> SamplingConfig:
    return sampling.model_copy(update={"temperature": 0.0, "steps_per_block": sampling.block_length})


def _record_beside(directory: Path) -> BackboneRecord | None:
    file = directory / "backbone.json"
    if not file.is_file():
        return None
    try:
        return BackboneRecord.model_validate_json(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise RequestError(f"{file} cannot be read: {one_line(error)}") from error


def _family_of(directory: Path) -> str:
    """By the architecture that config.json names."""
    file = directory / "config.json"
    if not file.is_file():
        raise RequestError(f"{directory} has no config.json, so it is no checkpoint")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return family_of(values if isinstance(values, dict) else {}).name
    except (ValueError, OSError) as error:
        raise RequestError(f"{file}: {one_line(error)}") from error
