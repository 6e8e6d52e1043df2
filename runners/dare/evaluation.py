"""Evaluation of one policy: every answer generated once and stored raw, then judged; resumable item by item.

`predictions/<task>.jsonl` holds what was generated, `items/<task>.jsonl` what the scorer says of it. Sample 0 of an
item is greedy, further samples are drawn at the protocol's temperature.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from dare.data.batches import prompt_rows
from dare.diary.events import EventLog
from dare.family import Backbone
from dare.seeds import generator_for
from dare.spec import EvaluateSpec, ItemOutcome, Prediction, Score, TaskProtocol, Usage
from dare.tasks import Item, Task, items_sha256, load_task, text_of
from dare.types import UNRECORDED

SCORER = "dare-1"


class EvaluationError(ValueError):
    """The protocol does not fit the task or its data. The message names both."""


def task_items(protocol: TaskProtocol, data: Path | None) -> tuple[Task, Sequence[Item]]:
    """The items a protocol asks for; every mismatch is an error before any weight is loaded."""
    task = load_task(protocol.task)
    if task.version != protocol.task_version:
        raise EvaluationError(f"the protocol is for {protocol.task} {protocol.task_version}; here is {task.version}")
    if protocol.scorer != SCORER:
        raise EvaluationError(f"the protocol asks for scorer {protocol.scorer!r}; this version has {SCORER!r}")
    items = task.items(protocol.split, data)
    digest = items_sha256(items)
    if protocol.items_sha256 not in (None, digest):
        raise EvaluationError(f"the items of {protocol.task} hash to {digest[:12]}, not {protocol.items_sha256[:12]}")
    return task, items[: protocol.limit]


def evaluate(
    spec: EvaluateSpec, backbone: Backbone, directory: Path, seed: int, data: Path | None, events: EventLog
) -> tuple[list[Score], Usage]:
    """Generate what is missing, judge everything, and return the scores with what the generation cost."""
    loaded = [(protocol, *task_items(protocol, data)) for protocol in spec.protocols]
    total = sum(len(items) * (1 + protocol.samples) for protocol, _, items in loaded)
    done = 0
    scores: list[Score] = []
    usage = Usage()
    for protocol, task, items in loaded:
        events.stage("evaluate", task.title)
        path = directory / "predictions" / f"{protocol.task}.jsonl"
        path.parent.mkdir(exist_ok=True)
        known = read_predictions(path, items)
        done += len(known)
        with path.open("a", encoding="utf-8") as file:
            for batch in _missing(items, protocol, known, spec.batch_size):
                fresh = _generate(protocol, backbone, batch, seed)
                file.writelines(prediction.model_dump_json() + "\n" for prediction in fresh)
                file.flush()
                known |= {(prediction.item, prediction.sample): prediction for prediction in fresh}
                done += len(fresh)
                events.progress(task.title, done, total)
        outcomes = judge(task, items, known)
        _write_items(directory / "items" / f"{protocol.task}.jsonl", outcomes)
        scores += summarise(protocol, outcomes)
        usage = usage.model_copy(
            update={
                "forwards": usage.forwards + sum(prediction.nfe for prediction in known.values()),
                "tokens_kept": usage.tokens_kept + sum(prediction.tokens for prediction in known.values()),
            }
        )
    return scores, usage


def prompt_sha256(item: Item) -> str:
    """Hash of the prompt as the task writes it."""
    return hashlib.sha256(text_of(item.prompt).encode()).hexdigest()


def read_predictions(path: Path, items: Sequence[Item]) -> dict[tuple[str, int], Prediction]:
    """Stored predictions of these items and prompts. A line torn by a kill is left out and generated again."""
    if not path.exists():
        return {}
    prompts = {item.id: prompt_sha256(item) for item in items}
    known = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            prediction = Prediction.model_validate_json(line)
        except ValueError:
            continue
        if prompts.get(prediction.item) == prediction.prompt_sha256:
            known[prediction.item, prediction.sample] = prediction
    ordered = [p.model_dump_json() + "\n" for p in known.values()]
    scratch = path.with_suffix(".new")
    scratch.write_text("".join(ordered), encoding="utf-8")
    scratch.replace(path)
    return known


def _missing(
    items: Sequence[Item], protocol: TaskProtocol, known: dict[tuple[str, int], Prediction], size: int
) -> Iterator[list[tuple[Item, int]]]:
    """Batches of (item, sample), greedy and sampled ones apart."""
    for samples in (range(1), range(1, protocol.samples + 1)):
        wanted = [(item, sample) for item in items for sample in samples if (item.id, sample) not in known]
        for start in range(0, len(wanted), size):
            yield wanted[start : start + size]


def _generate(protocol: TaskProtocol, backbone: Backbone, batch: list[tuple[Item, int]], seed: int) -> list[Prediction]:
    config = protocol.sampling if batch[0][1] == 0 else protocol.sampled
    prompt, length = prompt_rows(backbone, [item.prompt for item, _ in batch])
    prompts = [row[:n].tolist() for row, n in zip(prompt, length.tolist(), strict=True)]
    generators = [generator_for(seed, "evaluate", protocol.task, item.id, sample) for item, sample in batch]
    with torch.no_grad():
        samples = backbone.sample(prompts, config, generators)
    if bool((samples.nfe == UNRECORDED).any()):
        raise EvaluationError(
            f"what decodes {protocol.task} does not report the forwards of an answer, and no score is stored without "
            "its cost: evaluate with our own decoder"
        )
    return [
        Prediction(
            item=item.id,
            sample=sample,
            prompt_sha256=prompt_sha256(item),
            output=backbone.tokenizer.decode(samples.ids[row][samples.completion[row]].tolist()),
            tokens=int(samples.completion[row].sum()),
            nfe=int(samples.nfe[row]),
            truncated=bool(samples.truncated[row]),
        )
        for row, (item, sample) in enumerate(batch)
    ]


def judge(task: Task, items: Sequence[Item], known: dict[tuple[str, int], Prediction]) -> list[ItemOutcome]:
    """The scorer's word on every stored answer, in item order."""
    by_id = {item.id: item for item in items}
    outcomes = []
    for (item, sample), prediction in sorted(known.items()):
        verdict = task.judge(by_id[item], prediction.output)
        outcomes.append(
            ItemOutcome(
                item=item,
                sample=sample,
                score=float(verdict.solved),
                reward=verdict.reward,
                status="truncated" if prediction.truncated and verdict.status == "ok" else verdict.status,
                answer=verdict.answer,
                scorer=SCORER,
            )
        )
    return outcomes


def _write_items(path: Path, outcomes: Sequence[ItemOutcome]) -> None:
    path.parent.mkdir(exist_ok=True)
    scratch = path.with_suffix(".new")
    scratch.write_text("".join(outcome.model_dump_json() + "\n" for outcome in outcomes), encoding="utf-8")
    scratch.replace(path)


def summarise(protocol: TaskProtocol, outcomes: Sequence[ItemOutcome]) -> list[Score]:
    """Solved and reward, greedy and sampled. Samples of one item are averaged first: items are what is independent."""
    scores = []
    for decoding in ("greedy", "sampled"):
        chosen = [outcome for outcome in outcomes if (outcome.sample == 0) == (decoding == "greedy")]
        if not chosen:
            continue
        for metric, field in (("solved", "score"), ("reward", "reward")):
            by_item: dict[str, list[float]] = {}
            for outcome in chosen:
                by_item.setdefault(outcome.item, []).append(getattr(outcome, field))
            means = [sum(values) / len(values) for values in by_item.values()]
            n = len(means)
            mean = math.fsum(means) / n
            spread = math.sqrt(math.fsum((m - mean) ** 2 for m in means) / (n - 1) / n) if n > 1 else None
            scores.append(
                Score(
                    task=protocol.task,
                    metric=metric,
                    decoding=decoding,
                    value=mean,
                    standard_error=spread,
                    n=n,
                    n_no_answer=sum(outcome.status == "no_answer" for outcome in chosen),
                    n_truncated=sum(outcome.status == "truncated" for outcome in chosen),
                    scorer=SCORER,
                    protocol=protocol.digest(),
                )
            )
    return scores


def scores_table(scores: Sequence[Score]) -> str:
    """Scores as JSON lines, for people who pipe."""
    return "\n".join(json.dumps(score.model_dump(mode="json")) for score in scores)
