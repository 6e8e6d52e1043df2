"""The child's work: prompts from OpenCompass, answers from the server, verdicts from OpenCompass's own evaluators.

One process for all tasks of a job, since importing OpenCompass takes longer than scoring most of them.
"""

from __future__ import annotations

import time
from pathlib import Path

from dare.opencompass.answers import Answers
from dare.opencompass.job import ChildJob, Done, Progress, Tell
from dare.opencompass.scorer import VERSION, Scorer
from dare.opencompass.writer import Writer


def work(job: ChildJob, api_key: str | None, tell: Tell, scratch: Path, start_seconds: float) -> Done:
    """Everything that the job asks for. Raises what went wrong; what was answered until then is stored."""
    clock = Clock()
    writer = Writer(Path(job.data).resolve() if job.data else None, scratch)
    all_asked = []
    for protocol in job.protocols:
        tell(Progress(phase="prompts", task=protocol.task))
        all_asked.append(writer.prepare(protocol))
    prompt_seconds = clock.lap()
    answers = Answers(job, api_key, tell)
    for asked in all_asked:
        answers.recall(asked)
    if "generate" in job.phases:
        answers.generate(all_asked)
    generate_seconds = clock.lap()
    scorer = Scorer(job, tell, scratch)
    done = tuple(scorer.finish(asked) for asked in all_asked)
    return Done(
        job=job.digest(),
        outcome="succeeded",
        opencompass=VERSION,
        tasks=done,
        start_seconds=start_seconds,
        prompt_seconds=prompt_seconds,
        generate_seconds=generate_seconds,
        score_seconds=clock.lap(),
    )


class Clock:
    """Seconds since the last look."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def lap(self) -> float:
        """Since the last one."""
        now = time.monotonic()
        passed, self._last = now - self._last, now
        return passed
