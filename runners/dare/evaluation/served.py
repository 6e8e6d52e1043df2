"""Evaluation through OpenCompass: the policy is served on this machine's loopback, and two processes talk over it.

`dare serve` holds the weights; `python -m dare.opencompass` asks, and says how its own scorers judge. Both end with
this process, however it ends. What was answered stays in `predictions/` and is not asked again: by item and prompt,
never by count.
"""

from __future__ import annotations

import http.client
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import torch
from pydantic import ValidationError

from dare.attention import default_attention, usable
from dare.diary.events import EventLog
from dare.evaluation import Evaluated, Loaded, findings_of
from dare.evaluation.child import Child
from dare.family import load_family
from dare.opencompass.job import (
    KEY,
    ChildJob,
    Done,
    OpenCompassError,
    Progress,
    TaskDone,
    child_folder,
    environment,
    read_done,
    write_job,
)
from dare.scoring import SCORER, EvaluationError, task_items
from dare.scoring_run import scored, stored
from dare.spec import Cause, EvaluateSpec, ItemOutcome, JobSpec, TaskProtocol, Usage

START_SECONDS = 1800.0
"""For loading weights, which may come over a network."""
HEALTH_SECONDS = 10.0
END_SECONDS = 60.0
"""For a child that has closed its output."""
MOST_IN_FLIGHT = 256
SERVER_LOG, EVALUATOR_LOG = "server.log", "evaluator.log"
PHASES = {"start": "starting OpenCompass", "prompts": "writing prompts", "score": "scoring"}
MARKER = "DARE_RUN"
"""By which whoever started this run finds its processes."""
INSTALL = "pip install 'dare[evaluator]'"


class ServedError(RuntimeError):
    """One of the two processes failed. The message says which and how."""

    def __init__(self, sentence: str, cause: Cause = "internal") -> None:
        super().__init__(sentence)
        self.cause: Cause = cause


class Address(NamedTuple):
    """Where the policy answers, and by which name."""

    url: str
    model: str


def require_opencompass() -> None:
    """EvaluationError with the command where the evaluator is not installed; nothing is imported."""
    if find_spec("opencompass") is None:
        raise EvaluationError(f"OpenCompass is not installed here: {INSTALL}")


def evaluate_served(job: JobSpec, weights: Path, directory: Path, data: Path | None, events: EventLog) -> Evaluated:
    """Have everything answered that is not yet, and judged by everybody who is asked. Weights load in the server."""
    assert job.evaluate is not None
    spec = job.evaluate
    require_opencompass()
    loaded = [(protocol, *task_items(protocol, data)) for protocol in spec.protocols]
    key = secrets.token_urlsafe(32)
    events.stage("prepare", "serving the policy")
    with server(weights, spec, directory / SERVER_LOG, key) as (serving, address):
        asked = ChildJob(
            directory=str(directory.resolve()),
            data=None if data is None else str(data.resolve()),
            url=address.url,
            model=address.model,
            protocols=spec.protocols,
            seed=job.seed,
            in_flight=min(MOST_IN_FLIGHT, 2 * spec.batch_size),
        )
        done = _asked(asked, loaded, serving, directory / EVALUATOR_LOG, key, events)
    events.stage("evaluate", "scoring the stored answers")
    found, usage = [], Usage()
    told = {task.task: task for task in done.tasks}
    for protocol, task, items in loaded:
        here = told.get(protocol.task)
        if here is None:
            raise ServedError(f"OpenCompass says nothing of task {protocol.task}", "scoring")
        dropped = frozenset(here.dropped)
        kept = [item for item in items if item.id not in dropped]
        known = stored(directory, protocol, task, kept, data)
        others = _outcomes(directory, protocol, here, frozenset(known))
        judged = scored(protocol, task, kept, known, directory, others, spec.programs)
        if here.status == "not_scored" and len(protocol.scorers) > 1:
            why = f"OpenCompass does not score {protocol.task} here: {here.why.rstrip('.')}"
            judged = replace(judged, why_not=why if judged.why_not is None else f"{judged.why_not}. {why}")
        found.append(judged)
        usage = usage.model_copy(
            update={
                "forwards": usage.forwards + sum(prediction.nfe for prediction in known.values()),
                "tokens_kept": usage.tokens_kept + sum(prediction.tokens for prediction in known.values()),
            }
        )
    family = load_family(job.backbone.family)
    findings = findings_of(spec, loaded, data, family.outline(weights).tokenizer, weights)
    attention = default_attention(device(), usable(), family.kind, getattr(torch, spec.dtype))
    return Evaluated(found, usage, {"device": device(), "attention": attention, **findings, **_provenance(done)})


def device() -> str:
    """Where the server computes."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def server(weights: Path, spec: EvaluateSpec, log: Path, key: str) -> Iterator[tuple[Child, Address]]:
    """The policy behind an address of the loopback that the system chose; ServedError when it does not come up."""
    words = ["serve", "--backbone", str(weights.resolve()), "--port", "0", "--dtype", spec.dtype]
    words += ["--device", device()]
    words += ["--batch", str(spec.batch_size), "--queue", str(2 * MOST_IN_FLIGHT)]
    with Child("the policy's server", "dare", words, log, {**os.environ, KEY: key}) as child:
        deadline = time.monotonic() + START_SECONDS
        while True:
            line = child.line(0.2)
            if line is not None and line.startswith("serving "):
                model, _, url = line.removeprefix("serving ").rpartition(" at ")
                break
            if line is None and child.exit_code is not None:
                raise ServedError(f"{child.what} ended with exit code {child.exit_code}: {child.tail()}")
            if time.monotonic() > deadline:
                raise ServedError(f"{child.what} did not come up within {START_SECONDS:.0f} s: {child.tail()}")
        if not answers(url):
            raise ServedError(f"{child.what} at {url} does not answer: {child.tail()}")
        yield child, Address(url, model)


def answers(url: str) -> bool:
    """Whether the server says that it is well. Also right after it began: connections wait until it listens."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=HEALTH_SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _asked(job: ChildJob, loaded: Sequence[Loaded], serving: Child, log: Path, key: str, events: EventLog) -> Done:
    """OpenCompass's last word, with its progress told meanwhile."""
    told = environment(key) | {name: os.environ[name] for name in (MARKER,) if name in os.environ}
    with Child("OpenCompass", "dare.opencompass", [str(write_job(job))], log, told) as child:
        watch = _Told(events, loaded)
        for line in child.lines():
            if line is not None:
                watch.hear(line)
            elif serving.exit_code is not None and child.wait(END_SECONDS) is None:
                raise ServedError(f"{serving.what} ended with exit code {serving.exit_code}: {serving.tail()}")
        child.wait(END_SECONDS)
        try:
            return read_done(job)
        except OpenCompassError as error:
            if serving.exit_code is not None:
                ended = f"{serving.what} ended with exit code {serving.exit_code}: {serving.tail()}"
                raise ServedError(f"{ended}; what was answered is kept") from error
            cause: Cause = "scoring" if error.cause == "scoring" else "internal"
            said = f"{error}" if error.cause is not None else f"{error}: {child.tail()}"
            raise ServedError(f"{said}; what was answered is kept", cause) from error


class _Told:
    """Progress of all tasks together, from a child that tells it task by task."""

    def __init__(self, events: EventLog, loaded: Sequence[Loaded]) -> None:
        self._events = events
        self._titles = {protocol.task: task.title for protocol, task, _ in loaded}
        self._total = sum(len(items) * (1 + protocol.samples) for protocol, _, items in loaded)
        self._done: dict[str, int] = {}
        self._phase = ""

    def hear(self, line: str) -> None:
        """One line of the child; what is no progress is no concern of ours."""
        try:
            told = Progress.model_validate_json(line)
        except ValidationError:
            return
        title = self._titles.get(told.task or "", told.task)
        stage = f"{told.phase} {title or ''}".strip()
        if stage != self._phase:
            self._phase = stage
            self._events.stage("evaluate", PHASES.get(told.phase, title))
        if told.phase == "generate" and told.task is not None:
            self._done[told.task] = told.done
            self._events.progress(title or told.task, sum(self._done.values()), self._total)


def _outcomes(
    directory: Path, protocol: TaskProtocol, told: TaskDone, known: frozenset[tuple[str, int]]
) -> list[ItemOutcome]:
    """What OpenCompass says of every stored answer; nothing where it does not score the task here."""
    others = [name for name in protocol.scorers if name != SCORER]
    if not others or told.status != "scored":
        return []
    path = child_folder(directory) / "items" / f"{protocol.task}.jsonl"
    found: dict[tuple[str, int], ItemOutcome] = {}
    try:
        lines = [line for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if line]
        for line in lines:
            outcome = ItemOutcome.model_validate_json(line)
            found[outcome.item, outcome.sample] = outcome
    except (OSError, ValidationError) as error:
        raise ServedError(f"{path} does not hold what OpenCompass says of {protocol.task}", "scoring") from error
    if found.keys() != known or len(lines) != len(found):
        apart = sorted(found.keys() ^ known)
        place = f"item {apart[0][0]!r}, sample {apart[0][1]}" if apart else "an item twice"
        raise ServedError(f"{path} and the stored answers differ in {place}", "scoring")
    stranger = next((one.scorer for one in found.values() if one.scorer not in others), None)
    if stranger is not None:
        raise ServedError(f"{path} is by {stranger!r}, and {others[0]!r} was asked", "scoring")
    return list(found.values())


def _provenance(done: Done) -> Mapping[str, str]:
    """Which evaluator, which of its configurations, and what it left out."""
    told = {"opencompass": done.opencompass or "unknown"}
    for task in done.tasks:
        words = [f"{task.config or 'prompts of this package'} {task.prompt_hash}", task.evaluator]
        words += [f"not scored: {task.why}"] if task.status == "not_scored" else []
        words += [f"left out: {', '.join(task.dropped)}"] if task.dropped else []
        words += ["its verdicts depend on the machine's speed"] if task.wall_clock else []
        told[f"opencompass/{task.task}"] = "; ".join(words)[:2000]
    return told
