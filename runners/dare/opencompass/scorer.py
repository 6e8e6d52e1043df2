"""Verdicts of OpenCompass's own evaluators on stored answers, item by item, and the checks that make them a number."""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from mmengine.config import ConfigDict
from opencompass.tasks import OpenICLEvalTask
from opencompass.utils import get_infer_output_path

from dare.opencompass.apart import apart
from dare.opencompass.asked import Asked, Part
from dare.opencompass.evaluators import OneByOne
from dare.opencompass.job import ChildJob, Progress, TaskDone, Tell, child_folder
from dare.opencompass.recording import Recorder
from dare.opencompass.verdicts import EvaluatorError, Judged, Result, read_result
from dare.opencompass.writer import infer, model_of, task_of
from dare.rewards import likeliest
from dare.scoring import MASKS, MOST_ERRORS, cut, write_lines
from dare.spec import ItemOutcome, ItemStatus
from dare.tasks import Dialogue, NotScoredError

VERSION = metadata.version("opencompass")
SCORER = f"opencompass-{VERSION}"
START_SECONDS, ITEM_SECONDS = 120.0, 15.0
"""For an evaluator that runs programs, whose own limit is 10 seconds a program."""


class Scorer:
    """Scores one task after the other, in fresh folders: what OpenCompass finds in a used one it takes for done."""

    def __init__(self, job: ChildJob, tell: Tell, scratch: Path) -> None:
        self._job, self._tell, self._scratch = job, tell, scratch
        self._folder = child_folder(Path(job.directory))

    def finish(self, one: Asked) -> TaskDone:
        """What became of the task. Outcomes are written when all are there, and not where there is no score."""
        evaluator = one.parts[0].config["eval_cfg"]["evaluator"]["type"]
        post = one.parts[0].config["eval_cfg"].get("pred_postprocessor", {}).get("type")
        said = TaskDone(
            task=one.protocol.task,
            config=None if one.stock is None else one.stock.name,
            status="generated",
            kind=one.kind,
            evaluator=_name(evaluator),
            postprocessor=None if post is None else _name(post),
            prompt_hash=one.prompt_hash,
            wall_clock=one.stock is not None and one.stock.wall_clock,
            items=len(one.prompts),
            dropped=tuple(one.dropped),
            asked=one.asked,
            resumed=one.resumed,
        )
        path = self._folder / "items" / f"{one.protocol.task}.jsonl"
        path.unlink(missing_ok=True)
        if "score" not in self._job.phases:
            return said
        why = self._not_scored(one)
        if why:
            return said.model_copy(update={"status": "not_scored", "why": why})
        try:
            return self._scored(one, said, path)
        except NotScoredError as error:
            return said.model_copy(update={"status": "not_scored", "why": " ".join(str(error).split())})

    def _scored(self, one: Asked, said: TaskDone, path: Path) -> TaskDone:
        began = time.monotonic()
        outcomes: list[ItemOutcome] = []
        headlines: list[float] = []
        moved: set[str] = set()
        metric = ""
        for sample in range(one.protocol.samples + 1):
            self._tell(Progress(phase="score", task=one.protocol.task, done=sample, of=one.protocol.samples + 1))
            runs = [self._score(one, sample, run) for run in range(self._job.score_runs if said.wall_clock else 1)]
            judged, headline, metric = runs[0]
            headlines.append(headline)
            outcomes += [self._outcome(one, item, sample, verdict) for item, verdict in judged.items()]
            moved |= {item for item in judged if len({run[0][item].correct for run in runs}) > 1}
        errors = sum(outcome.status == "error" for outcome in outcomes)
        if errors > MOST_ERRORS * len(outcomes):
            raise EvaluatorError(f"OpenCompass gave no verdict on {errors} of {len(outcomes)} answers of {one.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_lines(path, [outcome.model_dump_json() for outcome in outcomes])
        return said.model_copy(
            update={
                "status": "scored",
                "metric": metric,
                "headlines": tuple(headlines),
                "errors": errors,
                "moved": tuple(sorted(moved)),
                "score_seconds": time.monotonic() - began,
            }
        )

    def _not_scored(self, one: Asked) -> str:
        if one.stock is not None and one.stock.whole and one.protocol.limit is not None:
            return "OpenCompass's evaluator needs an answer to every item, and a limit was given"
        return ""

    def _score(self, one: Asked, sample: int, run: int) -> tuple[dict[str, Judged], float, str]:
        """Every item's verdict, OpenCompass's number over all datasets, and its name."""
        judged: dict[str, Judged] = {}
        total, metric = 0.0, ""
        for part in one.parts:
            folder = self._scratch / one.protocol.task / f"sample{sample}-run{run}"
            outputs = [one.known[item.id, sample].output for item in part.items]
            result = self._score_part(one, part, outputs, folder)
            judged |= {item.id: verdict for item, verdict in zip(part.items, result.judged, strict=True)}
            total, metric = total + result.headline * len(part.items), result.metric
        return judged, total / len(judged), metric

    def _score_part(self, one: Asked, part: Part, outputs: Sequence[str], folder: Path) -> Result:
        config = copy.deepcopy(part.config)
        config["reader_cfg"]["test_range"] = f"[0:{len(part.items)}]"  # ours, of a number: it is evaluated as Python
        path = Path(get_infer_output_path(model_of(), config, str(folder / "predictions")))
        path.parent.mkdir(parents=True, exist_ok=True)
        if part.texts:
            choices = len(part.texts[0])
            perplexities = [_perplexities(output, choices) for output in outputs]
            by_label = [row[label] for label in range(choices) for row in perplexities]
            infer(config, Recorder(chat=one.protocol.template == "chat", perplexities=by_label), folder)
        else:
            texts = [cut(output, one.protocol.stops) for output in outputs]
            path.write_text(
                json.dumps(
                    {
                        str(index): {"origin_prompt": _shown(prompt), "prediction": text}
                        for index, (prompt, text) in enumerate(zip(part.prompts, texts, strict=True))
                    }
                ),
                encoding="utf-8",
            )
        stored = len(json.loads(path.read_text(encoding="utf-8")))
        if stored != len(part.items):
            raise EvaluatorError(f"OpenCompass has {stored} predictions of {one.name} for {len(part.items)} items")
        whole: Result | None = None
        try:
            whole = self._evaluate(one, part, config, folder)
        except EvaluatorError as error:  # an answer can bring some of its evaluators down
            sys.stderr.write(f"{error}; now one item at a time\n")
        result = whole
        if result is None or not result.complete:
            config["eval_cfg"]["evaluator"] = ConfigDict(type=OneByOne, inner=config["eval_cfg"]["evaluator"])
            result = self._evaluate(one, part, config, folder)
        if whole is not None:  # whatever the items say, the number is OpenCompass's
            result = replace(result, metric=whole.metric, headline=whole.headline)
        result.check(f"{one.name}, {config['abbr']}")
        return result

    def _evaluate(self, one: Asked, part: Part, config: ConfigDict, folder: Path) -> Result:
        def work() -> Any:
            return _result_of(config, folder)

        try:
            if one.stock is not None and one.stock.runs_code:
                content = apart(work, self._scratch, START_SECONDS + ITEM_SECONDS * len(part.items))
            else:
                content = work()
        except NotScoredError:
            raise
        except ImportError as error:
            raise NotScoredError(f"its evaluator lacks something here: {error}") from error
        except Exception as error:  # another's code, on what a model wrote
            raise EvaluatorError(
                f"OpenCompass's evaluator of {one.name} failed: {type(error).__name__} {error}"
            ) from error
        return read_result(config["abbr"], content, len(part.items), part.keys)

    def _outcome(self, one: Asked, item: str, sample: int, verdict: Judged) -> ItemOutcome:
        """OpenCompass's word, whatever the status says of the answer."""
        prediction = one.known[item, sample]
        status: ItemStatus = "ok"
        if verdict.correct is None:
            status = "error"
        elif any(mask in prediction.output for mask in MASKS):
            status = "undecoded"
        elif verdict.answer is None and not verdict.correct:
            status = "no_answer"
        elif prediction.truncated:
            status = "truncated"
        value = float(verdict.correct is True)
        reward = value if verdict.reward is None else verdict.reward
        return ItemOutcome(
            item=item, sample=sample, score=value, reward=reward, status=status, answer=verdict.answer, scorer=SCORER
        )


def _result_of(config: ConfigDict, folder: Path) -> Any:
    """OpenCompass's result file, written by its own evaluation of the predictions in the folder."""
    path = Path(get_infer_output_path(model_of(), config, str(folder / "results")))
    path.unlink(missing_ok=True)
    OpenICLEvalTask(task_of(config, folder)).run()
    return json.loads(path.read_text(encoding="utf-8"))


def _name(type_: Any) -> str:
    return type_ if isinstance(type_, str) else f"{type_.__module__}.{type_.__qualname__}"


def _shown(prompt: Dialogue) -> Any:
    return prompt if isinstance(prompt, str) else [dict(message) for message in prompt]


def _perplexities(output: str, choices: int) -> list[float]:
    """What OpenCompass calls so: the mean negative log-likelihood of a token. Here of the tokens in which the choices
    differ; those that they share add the same to all."""
    record = likeliest.read(output, choices)
    if record is None:
        raise EvaluatorError(f"a stored answer is no record of {choices} likelihoods: {output!r:.80}")
    return [-logp / tokens for logp, tokens in zip(record.log_likelihoods, record.tokens, strict=True)]
