"""Evaluators that OpenCompass finds by import path: our tasks' own judges, and its evaluators one item at a time."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from opencompass.openicl.icl_evaluator import BaseEvaluator
from opencompass.registry import ICL_EVALUATORS

from dare.opencompass.verdicts import METRICS
from dare.tasks import Item, load_task


class TaskEvaluator(BaseEvaluator):  # type: ignore[misc]  # untyped package
    """The judge of a task that OpenCompass does not have, for items of `dare.opencompass.datasets.ItemsDataset`."""

    def __init__(self, task: str, policies: Mapping[str, str]) -> None:
        super().__init__()
        self._task, self._policies = load_task(task), dict(policies)

    def score(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        """One detail for each answer, in item order."""
        answers = [
            (Item(given["id"], "", given["gold"], row=given["row"], choices=given["choices"]), text)
            for given, text in zip(map(json.loads, references), predictions, strict=True)
        ]
        verdicts = self._task.verdicts(answers, self._policies)
        details = [{"pred": one.answer, "correct": one.solved, "reward": one.reward} for one in verdicts]
        return {"accuracy": 100 * sum(one.solved for one in verdicts) / len(verdicts), "details": details}


class OneByOne(BaseEvaluator):  # type: ignore[misc]  # untyped package
    """Another evaluator, given one item at a time: what it leaves out or fails on is known by name."""

    def __init__(self, inner: Mapping[str, Any]) -> None:
        super().__init__()
        self._inner = ICL_EVALUATORS.build(dict(inner))
        self._wanted = set(signature(self._inner.score).parameters)

    def score(
        self, predictions: Sequence[Any], references: Sequence[Any], origin_prompt: Sequence[Any], test_set: Any
    ) -> dict[str, Any]:
        """A detail for each item; an empty one for an item that the evaluator gives none."""
        details: list[dict[str, Any]] = []
        total, metric = 0.0, METRICS[0]
        for index in range(len(predictions)):
            one = slice(index, index + 1)
            given = {
                "predictions": list(predictions[one]),
                "references": list(references[one]),
                "origin_prompt": list(origin_prompt[one]),
                "test_set": test_set.select([index]),
            }
            try:
                result = self._inner.score(**{name: value for name, value in given.items() if name in self._wanted})
            except Exception:  # on what a model wrote: no verdict on this item
                traceback.print_exc()
                result = {}
            found = result.get("details") or [{}]
            details.append(dict(next(iter(found.values() if isinstance(found, Mapping) else found), {})))
            metric = next((known for known in METRICS if known in result), metric)
            total += result.get(metric, 0.0)
        return {metric: total / len(predictions), "details": details}
