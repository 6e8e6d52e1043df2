"""Answers of the server to everything that is asked, each stored when it comes and taken again at the next start."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dare.opencompass.asked import Asked
from dare.opencompass.asking import Endpoint, EndpointError, Question, Reply, ask_all
from dare.opencompass.job import ChildJob, Cost, Progress, Tell, child_folder
from dare.opencompass.prompts import splits
from dare.rewards import likeliest
from dare.scoring import prompt_sha256, read_predictions, write_lines
from dare.seeds import seed_of
from dare.spec import Prediction
from dare.tasks import Dialogue, MissingDataError, text_of


class Answers:
    """Stored ones, and those that the endpoint gives."""

    def __init__(self, job: ChildJob, api_key: str | None, tell: Tell) -> None:
        self._job, self._tell = job, tell
        self._endpoint = Endpoint(job.url, api_key, job.request_seconds) if job.url else None

    def recall(self, one: Asked) -> None:
        """Answers that are stored already: any for the same items where nothing is generated, and otherwise those to
        the same prompt that were decoded alike."""
        path = self._predictions(one)
        if "generate" not in self._job.phases:
            one.known = _stored(path, one.wanted)
            missing = next((key for key in one.wanted if key not in one.known), None)
            if missing is not None:
                raise MissingDataError(f"{path} has no answer to item {missing[0]!r}, sample {missing[1]}")
            return
        known = read_predictions(path, {item: prompt_sha256(prompt) for item, prompt in one.sent.items()})
        costs, wanted = self._stored_costs(one), set(one.wanted)
        one.known = {
            key: prediction
            for key, prediction in known.items()
            if key in wanted and key in costs and costs[key].settings == self._settings(one, key[1])
        }
        write_lines(path, [prediction.model_dump_json() for prediction in one.known.values()])
        self._costs(one).parent.mkdir(parents=True, exist_ok=True)
        write_lines(self._costs(one), [costs[key].model_dump_json() for key in one.known])  # without torn lines
        one.resumed = len(one.known)

    def _stored_costs(self, one: Asked) -> dict[tuple[str, int], Cost]:
        path = self._costs(one)
        costs: dict[tuple[str, int], Cost] = {}
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else ():
            try:
                cost = Cost.model_validate_json(line)
            except ValueError:  # torn by a kill
                continue
            costs[cost.item, cost.sample] = cost
        return costs

    def _settings(self, one: Asked, sample: int) -> str:
        """Hash of everything but the prompt that an answer depends on and that is known here."""
        sampling = one.sampling(sample)
        facts = {
            "kind": one.kind,
            "model": self._job.model,
            "sampling": sampling.model_dump(mode="json"),
            "template": one.protocol.template,
            "mc_samples": one.protocol.mc_samples,
            "seed": self._job.seed,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def generate(self, all_asked: Sequence[Asked]) -> None:
        """Everything that is not known yet. What is answered is stored, whatever happens next."""
        assert self._endpoint is not None
        questions: list[Question] = []
        about: dict[int, tuple[Asked, str, int]] = {}
        for one in all_asked:
            for item, sample in one.wanted:
                if (item, sample) not in one.known:
                    question = self._question(one, item, sample)
                    questions.append(question)
                    about[id(question)] = one, item, sample
        with Stores([(self._predictions(one), self._costs(one)) for one in all_asked]) as stores:
            rate = Rate()
            for reply in ask_all(self._endpoint, questions, self._job.in_flight):
                one, item, sample = about[id(reply.question)]
                prediction, cost = self._answer(one, item, sample, reply)
                stores.write(self._predictions(one), self._costs(one), prediction, cost)
                one.known[item, sample] = prediction
                one.asked += 1
                of = len(one.prompts) * (one.protocol.samples + 1)
                if rate.count() or len(one.known) == of:
                    self._tell(
                        Progress(
                            phase="generate", task=one.protocol.task, done=len(one.known), of=of, rate=rate.per_second
                        )
                    )

    def _question(self, one: Asked, item: str, sample: int) -> Question:
        about = f"item {item!r} of {one.name}, sample {sample}"
        protocol = one.protocol
        if one.kind == "likelihood":
            body: dict[str, Any] = {
                "model": self._job.model,
                "choices": [{"context": context, "continuation": text} for context, text in _pairs(one, item)],
                "mc_samples": protocol.mc_samples,
                "seed": seed_of(self._job.seed, "evaluate", protocol.task, item),  # as our decoder draws
            }
            return Question(about, "/v1/likelihood", body)
        seed = seed_of(self._job.seed, "evaluate", protocol.task, item, sample)
        sampling = one.sampling(sample)
        body = {
            "model": self._job.model,
            "extra": {**dict(sampling), "return": ["nfe"]},  # all fields: a default must not become the server's own
            "max_tokens": sampling.gen_length,
            "temperature": sampling.temperature,
            "seed": seed,
        }
        prompt = one.prompts[item]
        if protocol.template == "chat":
            return Question(about, "/v1/chat/completions", {**body, "messages": _messages(prompt)})
        return Question(about, "/v1/completions", {**body, "prompt": text_of(prompt)})

    def _answer(self, one: Asked, item: str, sample: int, reply: Reply) -> tuple[Prediction, Cost]:
        try:
            output, tokens, nfe, truncated = (_likelihoods if one.kind == "likelihood" else _completion)(reply.payload)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EndpointError(
                f"the server's answer to {reply.question.about} lacks something: {type(error).__name__} {error}"
            ) from error
        digest = prompt_sha256(one.sent[item])
        prediction = Prediction(
            item=item, sample=sample, prompt_sha256=digest, output=output, tokens=tokens, nfe=nfe, truncated=truncated
        )
        cost = Cost(
            item=item,
            sample=sample,
            prompt_sha256=digest,
            settings=self._settings(one, sample),
            seconds=reply.seconds,
            prompt_tokens=reply.payload.get("usage", {}).get("prompt_tokens"),
            attempts=reply.attempts,
        )
        return prediction, cost

    def _predictions(self, one: Asked) -> Path:
        return Path(self._job.directory) / "predictions" / f"{one.protocol.task}.jsonl"

    def _costs(self, one: Asked) -> Path:
        return child_folder(Path(self._job.directory)) / "asked" / f"{one.protocol.task}.jsonl"


class Rate:
    """Counts, and says every half second at most that it is time to tell."""

    EVERY_SECONDS = 0.5

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()
        self._count = 0

    def count(self) -> bool:
        """One more; whether to tell."""
        self._count += 1
        now = time.monotonic()
        if now - self._told < self.EVERY_SECONDS:
            return False
        self._told = now
        return True

    @property
    def per_second(self) -> float:
        """Since the beginning."""
        return self._count / max(time.monotonic() - self._began, 1e-9)


class Stores:
    """Open files of answers and what they cost. A cost is written first: an answer without one is asked for again."""

    def __init__(self, paths: Sequence[tuple[Path, Path]]) -> None:
        self._paths = paths

    def __enter__(self) -> Stores:
        for path in [path for pair in self._paths for path in pair]:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._files = {path: path.open("a", encoding="utf-8") for pair in self._paths for path in pair}
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def write(self, predictions: Path, costs: Path, prediction: Prediction, cost: Cost) -> None:
        """A line each, at once."""
        for path, line in ((costs, cost.model_dump_json()), (predictions, prediction.model_dump_json())):
            self._files[path].write(line + "\n")
            self._files[path].flush()


def _completion(payload: Mapping[str, Any]) -> tuple[str, int, int, bool]:
    [choice] = payload["choices"]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    nfe = choice["extra"]["nfe"]
    if nfe is None:
        raise ValueError("what decodes does not report forwards, and no score is stored without its cost")
    return str(text), int(payload["usage"]["completion_tokens"]), int(nfe), choice["finish_reason"] == "length"


def _likelihoods(payload: Mapping[str, Any]) -> tuple[str, int, int, bool]:
    choices = sorted(payload["choices"], key=lambda choice: int(choice["index"]))
    record = likeliest.Record(
        log_likelihoods=tuple(float(choice["log_likelihood"]) for choice in choices),
        standard_errors=tuple(float(choice["standard_error"]) for choice in choices),
        tokens=tuple(int(choice["tokens"]) for choice in choices),
    )
    return record.text(), sum(record.tokens), int(payload["usage"]["nfe"]), False


def _pairs(one: Asked, item: str) -> list[tuple[Any, str]]:
    """Context and continuation of every choice."""
    if one.texts:
        context, continuations = splits(one.texts[item])
        return [(context, text) for text in continuations]
    prompt = one.prompts[item]
    choices = one.items[item].choices
    if one.protocol.template == "chat":  # behind a header there is nothing that a space would part it from
        return [(_messages(prompt), choice.removeprefix(" ")) for choice in choices]
    return [(text_of(prompt), choice) for choice in choices]


def _messages(prompt: Dialogue) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(turn) for turn in prompt]


def _stored(path: Path, wanted: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Prediction]:
    if not path.is_file():
        raise MissingDataError(f"there are no answers to score: no {path}")
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")  # an answer may hold other line ends
    every = [Prediction.model_validate_json(line) for line in lines if line]
    asked = set(wanted)
    return {key: one for one in every if (key := (one.item, one.sample)) in asked}
