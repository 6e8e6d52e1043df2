"""What scorers say of stored answers: items, verdicts, means with their errors. No torch here.

`predictions/<task>.jsonl` holds what was generated, `items/<task>.jsonl` what every scorer says of it. Sample 0 of an
item is greedy, further samples are drawn at the protocol's temperature.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from dare.spec import ItemOutcome, Prediction, Score, TaskProtocol
from dare.tasks import (
    Dialogue,
    Item,
    MissingDataError,
    NotScoredError,
    Task,
    UnknownPolicyError,
    UnknownSplitError,
    Verdict,
    items_sha256,
    load_task,
    text_of,
)
from dare.time_limit import stopwatch

log = logging.getLogger(__name__)
SCORER = "dare-1"
MOST_ERRORS = 0.01
"""Share of a task's answers that the scorer may fail on before the run fails."""
SECONDS = 20.0
"""Processor time that a judge may take over one answer; what goes over it is a failure of the scorer."""
MASKS = ("<|mdm_mask|>", "<|mask|>", "<|MASK|>", "<mask>", "[MASK]")
"""How the mask tokens of the families are written."""


class EvaluationError(ValueError):
    """The protocol does not fit the task or its data. The message names both."""


class ScoringError(RuntimeError):
    """The scorer failed on too many answers to trust its number."""


def task_items(protocol: TaskProtocol, data: Path | None) -> tuple[Task, Sequence[Item]]:
    """The items a protocol asks for; every mismatch is an error before any weight is loaded."""
    task = load_task(protocol.task)
    if task.version != protocol.task_version:
        raise EvaluationError(f"the protocol is for {protocol.task} {protocol.task_version}; here is {task.version}")
    if protocol.scorer != SCORER:
        raise EvaluationError(f"the protocol asks for scorer {protocol.scorer!r}; this version has {SCORER!r}")
    try:
        task.check_policies(protocol.policies)
    except UnknownPolicyError as error:
        raise EvaluationError(str(error)) from error
    items = _read_items(task, protocol.split, data)
    check_golds(task, items)
    digest = items_sha256(items)
    if protocol.items_sha256 not in (None, digest):
        raise EvaluationError(f"the items of {protocol.task} hash to {digest[:12]}, not {protocol.items_sha256[:12]}")
    return task, items[: protocol.limit]


def _read_items(task: Task, split: str, data: Path | None) -> Sequence[Item]:
    try:
        return task.items(split, data)
    except (MissingDataError, UnknownSplitError):
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # rows in another form than the task's
        raise EvaluationError(
            f"the rows of {task.name} cannot be read: {type(error).__name__}: {error}; has the file another format?"
        ) from error


def check_golds(task: Task, items: Sequence[Item]) -> None:
    """An item without a gold would be wrong for everybody: whatever the task's shown item has must be there."""
    needed = [name for name, value in task.example[0].gold.items() if not _is_missing(value)]
    for item in items:
        for name in needed:
            if _is_missing(item.gold.get(name)):
                raise EvaluationError(f"item {item.id!r} of {task.name} has no gold: {name} is {item.gold.get(name)!r}")


def _is_missing(value: object) -> bool:
    """Nothing, not a number, blank, or what becomes of these when they are written."""
    empty = hasattr(value, "__len__") and not len(value)
    return empty or value != value or str(value).strip() in ("", "None", "nan", "null")


def prompt_of(protocol: TaskProtocol, task: Task, item: Item, data: Path | None) -> Dialogue:
    """What the item is asked with, where the task writes its prompts itself; EvaluationError for an unknown name.

    An answer that the protocol begins is the dialogue's last message, to be continued.
    """
    dialogue = _asked(protocol, task, item, data)
    if not protocol.prefill:
        return dialogue
    turns = ({"role": "user", "content": dialogue},) if isinstance(dialogue, str) else dialogue
    return (*turns, {"role": "assistant", "content": protocol.prefill})


def _asked(protocol: TaskProtocol, task: Task, item: Item, data: Path | None) -> Dialogue:
    if protocol.prompt == "task":
        return item.prompt
    write = task.asked.get(protocol.prompt)
    if write is None:
        known = ", ".join(["task", *task.asked])
        raise EvaluationError(f"task {task.name!r} has no prompt {protocol.prompt!r}; known: {known}")
    return write(item, data)


def prompt_sha256(prompt: Dialogue) -> str:
    """Hash of a prompt before the chat template."""
    return hashlib.sha256(text_of(prompt).encode()).hexdigest()


def cut(text: str, stops: Sequence[str]) -> str:
    """The text before the first of the stops."""
    return text[: min((found for stop in stops if (found := text.find(stop)) >= 0), default=len(text))]


def read_predictions(path: Path, prompts: Mapping[str, str]) -> dict[tuple[str, int], Prediction]:
    """Stored predictions of items whose prompt still has this hash (`prompts`: item id -> hash).

    A line that was torn by a kill, or that is no UTF-8 any more, is left out and generated again.
    """
    if not path.exists():
        return {}
    known = {}
    for line in path.read_bytes().split(b"\n"):
        try:
            prediction = Prediction.model_validate_json(line)
        except ValueError:
            continue
        if prompts.get(prediction.item) == prediction.prompt_sha256:
            known[prediction.item, prediction.sample] = prediction
    write_lines(path, [p.model_dump_json() for p in known.values()])
    return known


def judge(
    protocol: TaskProtocol, task: Task, items: Sequence[Item], known: Mapping[tuple[str, int], Prediction]
) -> list[ItemOutcome]:
    """Our scorer's word on every stored answer, in item order.

    Raises ScoringError where it fails on more than one in a hundred, NotScoredError where this machine cannot score.
    """
    by_id = {item.id: item for item in items}
    answered = sorted(known.items())
    texts = [cut(prediction.output, protocol.stops) for _, prediction in answered]
    pairs = [(by_id[item], text) for ((item, _), _), text in zip(answered, texts, strict=True)]
    return [
        _outcome(item, sample, prediction, verdict)
        for ((item, sample), prediction), verdict in zip(
            answered, _verdicts(task, pairs, protocol.policies), strict=True
        )
    ]


def _verdicts(task: Task, pairs: Sequence[tuple[Item, str]], policies: Mapping[str, str]) -> Sequence[Verdict]:
    """A judge that raises, hangs or gives what is no reward has failed on that answer, and on that one alone."""
    task.check_policies(policies)
    verdicts: Sequence[Verdict] | None = None
    if task.judge_all is not None:
        try:
            verdicts = task.judge_all(pairs, policies)
        except NotScoredError:
            raise
        except Exception:  # whatever a scorer raises is its own failure; asked one by one it says on which answer
            log.exception("the scorer of %s failed on all %d answers together", task.name, len(pairs))
    if verdicts is None:
        verdicts = _one_by_one(task, pairs, policies)
    failures = [f"item {item.id!r}" for (item, _), verdict in zip(pairs, verdicts, strict=True) if _failed(verdict)]
    _check_failures(task, failures, len(pairs))
    return verdicts


def _one_by_one(task: Task, pairs: Sequence[tuple[Item, str]], policies: Mapping[str, str]) -> list[Verdict]:
    judge = task.judging(policies)
    verdicts: list[Verdict] = []
    failures: list[str] = []
    with stopwatch() as bound:
        for item, text in pairs:
            try:
                bound(SECONDS)
                try:
                    verdict = judge(item, text)
                finally:
                    bound(0)
            except NotScoredError:
                raise
            except Exception as error:  # as above
                log.exception("the scorer of %s failed on item %r", task.name, item.id)
                failures.append(f"item {item.id!r}: {type(error).__name__}: {error}")
                _check_failures(task, failures, len(pairs))
                verdict = Verdict(solved=False, reward=0.0, status="error", answer=None)
            verdicts.append(verdict)
    return verdicts


def _failed(verdict: Verdict) -> bool:
    return verdict.status == "error" or not 0 <= verdict.reward <= 1


def _check_failures(task: Task, failures: Sequence[str], answers: int) -> None:
    if len(failures) > MOST_ERRORS * answers:
        raise ScoringError(
            f"the scorer of {task.name} failed on {len(failures)} of {answers} answers, where 1 in 100 is allowed; "
            f"{failures[0]}"
        )


def _outcome(item: str, sample: int, prediction: Prediction, verdict: Verdict) -> ItemOutcome:
    status, solved, reward = verdict.status, verdict.solved, verdict.reward
    if _failed(verdict):
        status, solved, reward = "error", False, 0.0
    elif any(mask in prediction.output for mask in MASKS):
        status, solved, reward = "undecoded", False, 0.0
    elif prediction.truncated and status == "ok":
        status = "truncated"
    return ItemOutcome(
        item=item,
        sample=sample,
        score=float(solved),
        reward=reward,
        status=status,
        answer=verdict.answer,
        scorer=SCORER,
    )


def write_items(path: Path, outcomes: Sequence[ItemOutcome]) -> None:
    """All of a task's items at once, whoever scored them."""
    write_lines(path, [outcome.model_dump_json() for outcome in outcomes])


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """The whole file or nothing of it."""
    path.parent.mkdir(exist_ok=True)
    scratch = path.with_suffix(".new")
    scratch.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    scratch.replace(path)


def summarise(protocol: TaskProtocol, outcomes: Sequence[ItemOutcome]) -> list[Score]:
    """Solved and reward, greedy and sampled, of one scorer. Samples of one item are averaged first: items are what is
    independent. An answer that the scorer failed on is in no mean."""
    scores = []
    for decoding in ("greedy", "sampled"):
        asked = [outcome for outcome in outcomes if (outcome.sample == 0) == (decoding == "greedy")]
        chosen = [outcome for outcome in asked if outcome.status != "error"]
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
                    n_undecoded=sum(outcome.status == "undecoded" for outcome in chosen),
                    n_error=len(asked) - len(chosen),
                    scorer=chosen[0].scorer,
                    protocol=protocol.digest(),
                )
            )
    return scores
