"""A second opinion: lm-evaluation-harness's own scorers on answers that are stored already, for GSM8K and MATH.

Its filters and metrics as released read the stored text, in a child process without a network; its tasks, prompts and
data sets are left alone. Nothing of it is imported here. A hung answer is given up and the rest goes on.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE = "lm_eval"
INSTALL = "pip install 'dare[second-opinion]'"
START_SECONDS = 180.0
ROW_SECONDS = 30.0
METRICS: Mapping[str, tuple[str, ...]] = {
    "gsm8k": ("gsm8k strict-match", "gsm8k flexible-extract"),
    "math": ("minerva_math math_verify", "minerva_math exact_match", "hendrycks_math exact_match"),
}
"""What is asked of the harness, by kind of task: its task, and the filter or metric."""
KINDS: Mapping[str, str] = {"gsm8k": "gsm8k", "math_500": "math", "math": "math"}
"""Tasks of ours that it can judge."""


class SecondOpinionError(RuntimeError):
    """There is no second opinion here. The message says why in one sentence."""


@dataclass(frozen=True)
class Answer:
    """A stored answer with what it is held against."""

    item: str
    output: str
    gold: str
    solution: str = ""
    """The published worked solution, from which the harness reads the gold of MATH; the gold in a box without one."""


@dataclass(frozen=True)
class Opinion:
    """What the harness says of the answers, in their order, metric by metric; None where it failed or hung."""

    verdicts: Sequence[Mapping[str, bool] | None]
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Agreement:
    """Two scorers over the same answers."""

    ours: str
    theirs: str
    both: int
    neither: int
    only_ours: tuple[str, ...]
    only_theirs: tuple[str, ...]

    @property
    def n(self) -> int:
        """Answers that both have judged."""
        return self.equal + len(self.only_ours) + len(self.only_theirs)

    @property
    def equal(self) -> int:
        """Answers on which they agree."""
        return self.both + self.neither


def agreement(ours: str, solved: Mapping[str, bool], theirs: str, told: Mapping[str, bool]) -> Agreement:
    """Over the items that both know, in the order of ours."""
    shared = [item for item in solved if item in told]
    return Agreement(
        ours=ours,
        theirs=theirs,
        both=sum(solved[item] and told[item] for item in shared),
        neither=sum(not solved[item] and not told[item] for item in shared),
        only_ours=tuple(item for item in shared if solved[item] and not told[item]),
        only_theirs=tuple(item for item in shared if told[item] and not solved[item]),
    )


def ask(task: str, answers: Sequence[Answer], row_seconds: float = ROW_SECONDS) -> Opinion:
    """The harness's verdicts. SecondOpinionError where it is not installed, does not start, or knows no such task."""
    if task not in KINDS:
        raise SecondOpinionError(f"there is no second opinion on task {task!r}; known: {', '.join(KINDS)}")
    if find_spec(PACKAGE) is None:
        raise SecondOpinionError(f"lm-evaluation-harness is not installed here: {INSTALL}")
    verdicts: list[Mapping[str, bool] | None] = []
    versions: Mapping[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="second-opinion-") as folder:
        job = Path(folder) / "job.json"
        rows = [{"output": one.output, "gold": one.gold, "solution": one.solution} for one in answers]
        job.write_text(json.dumps({"kind": KINDS[task], "rows": rows}), encoding="utf-8")
        while len(verdicts) < len(answers) or not versions:
            told, found = _sitting(job, len(verdicts), len(answers), row_seconds)
            versions = told
            verdicts += found
            if len(verdicts) < len(answers):
                verdicts.append(None)  # the one on which it hung or died
    return Opinion(verdicts, versions)


def _sitting(
    job: Path, first: int, last: int, row_seconds: float
) -> tuple[Mapping[str, str], list[Mapping[str, bool] | None]]:
    """One life of the child: its versions and the verdicts from `first` on, as far as it came."""
    from dare.evaluation.child import Child

    log = job.with_suffix(".log")
    offline = {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "0",
    }
    with Child("the second opinion", "dare.second_opinion", [str(job), str(first)], log, offline) as child:
        greeting = child.line(START_SECONDS)
        if greeting is None:
            raise SecondOpinionError(f"lm-evaluation-harness did not start: {child.tail() or 'it said nothing'}")
        said: dict[str, Any] = json.loads(greeting)
        verdicts: list[Mapping[str, bool] | None] = []
        while first + len(verdicts) < last:
            line = child.line(row_seconds)
            if line is None:
                break
            verdicts.append(json.loads(line)["verdict"])
    return said["versions"], verdicts
