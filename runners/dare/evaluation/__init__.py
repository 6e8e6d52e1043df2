"""Evaluation of one policy: every answer generated once and stored raw, then judged; resumable item by item.

Here the policy decodes in this process, with our own decoder; see `dare.scoring` for what becomes of the answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from dare.data.batches import prompt_rows
from dare.diary.events import EventLog
from dare.family import Backbone
from dare.scoring import (
    EvaluationError,
    judge,
    prompt_of,
    prompt_sha256,
    read_predictions,
    summarise,
    task_items,
    write_items,
)
from dare.seeds import generator_for
from dare.spec import EvaluateSpec, Prediction, Score, TaskProtocol, Usage
from dare.tasks import Dialogue, Item
from dare.types import UNRECORDED


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
        asked = {item.id: prompt_of(protocol, task, item, data) for item in items}
        path = directory / "predictions" / f"{protocol.task}.jsonl"
        path.parent.mkdir(exist_ok=True)
        known = read_predictions(path, {item: prompt_sha256(prompt) for item, prompt in asked.items()})
        done += len(known)
        with path.open("a", encoding="utf-8") as file:
            for batch in _missing(items, protocol, known, spec.batch_size):
                fresh = _generate(protocol, backbone, asked, batch, seed)
                file.writelines(prediction.model_dump_json() + "\n" for prediction in fresh)
                file.flush()
                known |= {(prediction.item, prediction.sample): prediction for prediction in fresh}
                done += len(fresh)
                events.progress(task.title, done, total)
        outcomes = judge(protocol, task, items, known)
        write_items(directory / "items" / f"{protocol.task}.jsonl", outcomes)
        scores += summarise(protocol, outcomes)
        usage = usage.model_copy(
            update={
                "forwards": usage.forwards + sum(prediction.nfe for prediction in known.values()),
                "tokens_kept": usage.tokens_kept + sum(prediction.tokens for prediction in known.values()),
            }
        )
    return scores, usage


def _missing(
    items: Sequence[Item], protocol: TaskProtocol, known: dict[tuple[str, int], Prediction], size: int
) -> Iterator[list[tuple[Item, int]]]:
    """Batches of (item, sample), greedy and sampled ones apart."""
    for samples in (range(1), range(1, protocol.samples + 1)):
        wanted = [(item, sample) for item in items for sample in samples if (item.id, sample) not in known]
        for start in range(0, len(wanted), size):
            yield wanted[start : start + size]


def _generate(
    protocol: TaskProtocol, backbone: Backbone, asked: Mapping[str, Dialogue], batch: list[tuple[Item, int]], seed: int
) -> list[Prediction]:
    config = protocol.sampling if batch[0][1] == 0 else protocol.sampled
    prompt, length = prompt_rows(backbone, [asked[item.id] for item, _ in batch])
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
            prompt_sha256=prompt_sha256(asked[item.id]),
            output=backbone.tokenizer.decode(samples.ids[row][samples.completion[row]].tolist()),
            tokens=int(samples.completion[row].sum()),
            nfe=int(samples.nfe[row]),
            truncated=bool(samples.truncated[row]),
        )
        for row, (item, sample) in enumerate(batch)
    ]
