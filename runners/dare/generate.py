"""`dare generate` without its options: prompts from arguments or a file, answers one by one or into a file to continue.

An answer depends on its prompt, the settings, the seed and the prompt's id, and not on what else was asked for.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dare.frozen import Frozen
from dare.policy import Policy, RequestError, first_problem, one_line, recorded, recorded_steps
from dare.sampling.engines import EngineError
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.types import Samples, Watch

Message = dict[str, str]


@dataclass(frozen=True)
class Prompt:
    """A question with its name and where it stands, for messages about it."""

    id: str
    asked: str | tuple[Message, ...]
    """One user turn, or the turns of a dialogue."""
    place: str

    @property
    def text(self) -> str:
        """What a person sees of it."""
        return self.asked if isinstance(self.asked, str) else self.asked[-1]["content"]


class Answer(Frozen):
    """One line of an answers file."""

    id: str
    prompt: str | tuple[Message, ...]
    answer: str
    tokens: int
    """Of the answer, with its end of sequence."""
    nfe: int | None = None
    """Forwards spent on it, where what decodes reports them."""
    truncated: bool
    """The window ended before the answer did."""
    ids: tuple[int, ...] | None = None
    """The whole window, also behind the end of the answer, where an engine may leave padding."""
    step_map: tuple[int, ...] | None = None
    """1-based step at which each of `ids` was decided, where what decodes reports it; 0 for never."""
    decoding: str | None = None
    """Names engine, weights, settings and seed: answers of one file were all decoded alike."""

    def line(self, ascii_only: bool = False) -> str:
        """As JSON, without what was not asked for. A terminal needs `ascii_only`: nothing in it can be obeyed."""
        return json.dumps(self.model_dump(mode="json", exclude_none=True), ensure_ascii=ascii_only)


def given_prompts(texts: Sequence[str]) -> list[Prompt]:
    """Prompts of the command line, named by their number from 0."""
    return [Prompt(str(number), text, f"prompt {number + 1}") for number, text in enumerate(texts)]


def prompts_of(file: str) -> list[Prompt]:
    """Prompts of a file by its name; `-` is standard input."""
    if file == "-":
        return read_prompts(sys.stdin.buffer.read(), "standard input")
    try:
        return read_prompts(Path(file).read_bytes(), file)
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror}") from error


def read_prompts(content: bytes, name: str) -> list[Prompt]:
    """Prompts of a file: JSON lines when its name ends in .jsonl or its first character is `{`, else one a line.

    A JSON line has `prompt` or `messages`, and may have an `id`; otherwise the line's number names it.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not UTF-8: {error}") from error
    as_json = name.endswith(".jsonl") or text.lstrip().startswith("{")
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = f"{name} line {number}"
            prompt = _json_prompt(line, number, place) if as_json else Prompt(str(number), line.rstrip("\r"), place)
            if prompt.id in prompts:
                raise RequestError(f"{place} has the id {prompt.id!r} of {prompts[prompt.id].place}; ids must differ")
            prompts[prompt.id] = prompt
    if not prompts:
        raise RequestError(f"{name} has no prompts")
    return list(prompts.values())


def _json_prompt(line: str, number: int, place: str) -> Prompt:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{place} is not JSON: {one_line(error)}") from error
    if not isinstance(row, dict) or ("prompt" in row) == ("messages" in row):
        raise RequestError(f'{place} must be an object with either "prompt" or "messages"')
    asked = row.get("prompt", row.get("messages"))
    if "messages" in row:
        asked = _messages(asked, place)
    elif not isinstance(asked, str):
        raise RequestError(f"{place}: prompt is {asked!r}; it must be a text")
    return Prompt(str(row.get("id", number)), asked, place)


def _messages(rows: Any, place: str) -> tuple[Message, ...]:
    turns = tuple(rows) if isinstance(rows, list) else ()
    for turn in turns:
        if not isinstance(turn, dict) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
            turns = ()
            break
    if not turns:
        raise RequestError(f'{place}: messages must be a list of objects with the texts "role" and "content"')
    return tuple({"role": turn["role"], "content": turn["content"]} for turn in turns)


def encode(policy: Policy, prompts: Sequence[Prompt], config: SamplingConfig) -> list[list[int]]:
    """Ids of every prompt. The first that the model cannot take is named before anything is decoded."""
    encoded = []
    for prompt in prompts:
        try:
            ids = policy.prompt(prompt.asked)
            policy.check_fits(ids, config.gen_length)
        except RequestError as error:
            raise RequestError(f"{prompt.place}: {error}") from error
        encoded.append(ids)
    return encoded


def answers(
    policy: Policy,
    prompts: Sequence[Prompt],
    encoded: Sequence[list[int]],
    config: SamplingConfig,
    seed: int,
    batch: int,
    details: bool,
    watch: Watch | None = None,
) -> Iterator[tuple[list[Answer], Samples]]:
    """Batch after batch in the order of the prompts. RequestError for settings that the sampler refuses."""
    tokenizer = policy.backbone.tokenizer
    for start in range(0, len(prompts), batch):
        chosen = prompts[start : start + batch]
        generators = [generator_for(seed, "generate", prompt.id) for prompt in chosen]
        try:
            samples = policy.sample(encoded[start : start + batch], config, generators, watch=watch)
        except (ValueError, EngineError) as error:
            raise RequestError(one_line(error)) from error
        yield (
            [
                Answer(
                    id=prompt.id,
                    prompt=prompt.asked,
                    answer=tokenizer.decode(samples.ids[row][samples.completion[row]].tolist()),
                    tokens=int(samples.completion[row].sum()),
                    nfe=recorded(int(samples.nfe[row])),
                    truncated=bool(samples.truncated[row]),
                    ids=tuple(samples.ids[row][samples.window[row]].tolist()) if details else None,
                    step_map=recorded_steps(samples.step_map[row][samples.window[row]].tolist()) if details else None,
                )
                for row, prompt in enumerate(chosen)
            ],
            samples,
        )


def decoding_name(policy: Policy, config: SamplingConfig, seed: int) -> str:
    """Equal for equal weights, settings and seed; an engine is named, with its version, before their hash."""
    said = json.dumps([policy.weights, config.model_dump(mode="json"), seed], sort_keys=True)
    digest = hashlib.sha256(said.encode()).hexdigest()[:16]
    return digest if policy.engine is None else f"{policy.engine.name} {digest}"


class AnswersFile:
    """An append-only JSONL file of answers. What it has is kept and not decoded again; one writer at a time."""

    def __init__(self, path: Path, decoding: str) -> None:
        self._path, self._decoding = path, decoding
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise RequestError(f"{path} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._known = self._read()
        except OSError as error:
            self._file.close()
            raise RequestError(f"{path} is being written by another `dare generate`") from error
        except RequestError:
            self._file.close()
            raise

    def __enter__(self) -> AnswersFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def missing(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Prompts without an answer. RequestError where an id is there with another prompt."""
        for prompt in prompts:
            known = self._known.get(prompt.id)
            if known is not None and known.prompt != prompt.asked:
                raise RequestError(
                    f"{self._path} answers another prompt under the id {prompt.id!r} of {prompt.place}; "
                    "choose another --out"
                )
        return [prompt for prompt in prompts if prompt.id not in self._known]

    def add(self, fresh: Sequence[Answer]) -> None:
        """Append answers; when this returns they survive a power cut."""
        named = [answer.model_copy(update={"decoding": self._decoding}) for answer in fresh]
        self._file.write("".join(answer.line() + "\n" for answer in named).encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> dict[str, Answer]:
        self._file.seek(0)
        whole, newline, torn = self._file.read().rpartition(b"\n")
        if torn:  # a write that was cut short
            self._file.truncate(len(whole) + len(newline))
        known = {}
        for number, line in enumerate(whole.split(b"\n") if newline else [], start=1):
            try:
                answer = Answer.model_validate_json(line)
            except ValidationError as error:
                said = first_problem(error.errors())
                raise RequestError(f"{self._path} line {number} is no answer: {said}; choose another --out") from error
            if answer.decoding != self._decoding:
                raise RequestError(
                    f"{self._path} line {number} was decoded by another engine, or with another backbone, settings or "
                    "seed; choose another --out or repeat the settings"
                )
            known[answer.id] = answer
        return known
