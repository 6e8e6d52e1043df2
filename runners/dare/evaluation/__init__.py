"""Evaluation of one policy: every answer generated once and stored raw, then judged; resumable item by item.

Here the policy decodes in this process, with our own decoder; see `dare.scoring` for what becomes of the answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from dare.diary.events import EventLog
from dare.evaluation.likelihoods import certainty_of, check_askable, measure
from dare.family import Backbone, Tokenizer
from dare.protocols import Asked
from dare.protocols.lint import Reading, lint, template_in
from dare.scoring import SCORER, EvaluationError, prompt_of, prompt_sha256, read_predictions, task_items
from dare.scoring_run import Scored, scored
from dare.seeds import generator_for
from dare.spec import EvaluateSpec, Prediction, Score, TaskProtocol, Usage
from dare.tasks import Dialogue, Item, Task, text_of
from dare.types import UNRECORDED

Loaded = tuple[TaskProtocol, Task, Sequence[Item]]
"""A protocol with its task and the items that it asks."""


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation found, task by task, and what the generation cost."""

    found: Sequence[Scored]
    usage: Usage
    provenance: Mapping[str, str]
    """What this way of evaluating adds to it."""

    @property
    def scores(self) -> list[Score]:
        """Of all tasks that have some."""
        return [score for one in self.found for score in one.scores]


def evaluate(
    spec: EvaluateSpec,
    backbone: Backbone,
    directory: Path,
    seed: int,
    data: Path | None,
    events: EventLog,
    weights: Path | None = None,
) -> Evaluated:
    """Generate what is missing and judge everything. `weights` is the folder that the policy was loaded from."""
    for protocol in spec.protocols:
        strange = [name for name in protocol.scorers if name != SCORER]
        if strange:
            raise EvaluationError(f"{strange[0]} scores what OpenCompass asks, and here our own decoder does")
    loaded = [(protocol, *task_items(protocol, data)) for protocol in spec.protocols]
    for protocol, task, _ in loaded:
        if task.kind == "likelihood":
            check_askable(protocol)
    total = sum(len(items) * (1 + protocol.samples) for protocol, _, items in loaded)
    done = 0
    provenance: dict[str, str] = {}
    found: list[Scored] = []
    usage = Usage()
    for protocol, task, items in loaded:
        events.stage("evaluate", task.title)
        asked = {item.id: prompt_of(protocol, task, item, data) for item in items}
        path = directory / "predictions" / f"{protocol.task}.jsonl"
        path.parent.mkdir(exist_ok=True)
        known = read_predictions(path, {item: prompt_sha256(prompt) for item, prompt in asked.items()})
        done += len(known)
        with path.open("a", encoding="utf-8") as file:
            for batch in _missing(items, protocol, known, spec.batch_size if task.kind != "likelihood" else 1):
                if task.kind == "likelihood":
                    fresh = [_measured(protocol, backbone, asked, item, seed, spec.batch_size) for item, _ in batch]
                else:
                    fresh = _generate(protocol, backbone, asked, batch, seed)
                file.writelines(prediction.model_dump_json() + "\n" for prediction in fresh)
                file.flush()
                known |= {(prediction.item, prediction.sample): prediction for prediction in fresh}
                done += len(fresh)
                events.progress(task.title, done, total)
        found.append(scored(protocol, task, items, known, directory, programs=spec.programs))
        if task.kind == "likelihood":
            provenance |= certainty_of(protocol, items, known)
        usage = usage.model_copy(
            update={
                "forwards": usage.forwards + sum(prediction.nfe for prediction in known.values()),
                "tokens_kept": usage.tokens_kept + sum(prediction.tokens for prediction in known.values()),
            }
        )
    return Evaluated(found, usage, provenance | findings_of(spec, loaded, data, backbone.tokenizer, weights))


def prompt_ids_of(tokenizer: Tokenizer, dialogue: Dialogue, template: Literal["chat", "none"]) -> list[int]:
    """Through the chat template, where an answer that the dialogue begins is continued; or the text as it is."""
    if template == "none":
        return tokenizer.answer_ids(text_of(dialogue))[:-1]  # without the end of turn
    if isinstance(dialogue, str) or dialogue[-1]["role"] != "assistant":
        return tokenizer.prompt_ids(dialogue)
    return tokenizer.prompt_ids(dialogue[:-1], dialogue[-1]["content"])


def findings_of(
    spec: EvaluateSpec,
    loaded: Sequence[Loaded],
    data: Path | None,
    tokenizer: Tokenizer,
    weights: Path | None,
) -> dict[str, str]:
    """What is doubtful about the protocols, for the provenance of their scores: task -> sentences."""
    reading = Reading(
        prompt_ids=lambda dialogue: prompt_ids_of(tokenizer, dialogue, "chat"),
        text_ids=lambda text: prompt_ids_of(tokenizer, text, "none"),
        bos_id=getattr(tokenizer, "bos_id", None),
        has_template=weights is not None and template_in(weights),
    )
    told = {}
    for protocol, task, items in loaded:
        findings = lint(Asked("", task, "", protocol, spec.through), items, data, reading)
        if findings:
            told[f"doubtful/{task.name}"] = "; ".join(finding.sentence for finding in findings)[:2000]
    return told


def _missing(
    items: Sequence[Item], protocol: TaskProtocol, known: dict[tuple[str, int], Prediction], size: int
) -> Iterator[list[tuple[Item, int]]]:
    """Batches of (item, sample), greedy and sampled ones apart."""
    for samples in (range(1), range(1, protocol.samples + 1)):
        wanted = [(item, sample) for item in items for sample in samples if (item.id, sample) not in known]
        for start in range(0, len(wanted), size):
            yield wanted[start : start + size]


def _measured(
    protocol: TaskProtocol, backbone: Backbone, asked: Mapping[str, Dialogue], item: Item, seed: int, batch: int
) -> Prediction:
    prompt = asked[item.id]
    context = prompt_ids_of(backbone.tokenizer, prompt, protocol.template)
    return measure(protocol, backbone, item, prompt, context, seed, batch)


def _generate(
    protocol: TaskProtocol, backbone: Backbone, asked: Mapping[str, Dialogue], batch: list[tuple[Item, int]], seed: int
) -> list[Prediction]:
    config = protocol.sampling if batch[0][1] == 0 else protocol.sampled
    prompts = [prompt_ids_of(backbone.tokenizer, asked[item.id], protocol.template) for item, _ in batch]
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
