"""What scorers say of a run's stored answers becomes rows: once for each scorer, never changed, by whoever was asked.

The rows belong to the run that made the answers, also where a score run or a rescoring judged them afterwards. A scorer
that has spoken before must say the same again: one that judges otherwise is another scorer and needs another name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Table, insert, select
from sqlalchemy.orm import Session

from dare.spec import ItemOutcome, Score
from dare_platform.database import now
from dare_platform.errors import ScorerChangedError
from dare_platform.inside import plain_text
from dare_platform.models import Result, ScoreItem

ROWS_AT_ONCE = 500
"""SQLite binds at most 32766 values in one statement."""


@dataclass(frozen=True)
class Answered:
    """Whose answers are judged: run and attempt that made them, task version, and what they were asked under."""

    run_id: str
    token: int
    task: str
    task_version_id: str
    protocol: str


@dataclass(frozen=True)
class Taken:
    """What became of one scorer's word on one task."""

    task: str
    scorer: str
    outcome: Literal["added", "equal"]
    answers: int


def take_scores(
    session: Session,
    about: Answered,
    outcomes: Sequence[ItemOutcome],
    scores: Sequence[Score],
    scored_by: str | None = None,
) -> list[Taken]:
    """Write one task's items and numbers, scorer by scorer; ScorerChangedError when one contradicts itself."""
    taken = []
    for scorer in dict.fromkeys(outcome.scorer for outcome in outcomes):
        rows = [_row(about, outcome) for outcome in outcomes if outcome.scorer == scorer]
        known = _known(session, about, scorer)
        if known:
            _same_again(about, scorer, known, rows)
            taken.append(Taken(about.task, scorer, "equal", len(rows)))
            continue
        insert_rows(session, ScoreItem.__table__, iter(rows))
        mine = [score for score in scores if (score.task, score.scorer) == (about.task, scorer)]
        session.add_all(_number(session, about, score, scored_by) for score in mine)
        taken.append(Taken(about.task, scorer, "added", len(rows)))
    session.flush()
    return taken


Said = tuple[float, float, str, str | None]
"""Score, reward, status and answer."""


def _known(session: Session, about: Answered, scorer: str) -> dict[tuple[str, int], Said]:
    rows = session.execute(
        select(ScoreItem).where(
            ScoreItem.run_id == about.run_id,
            ScoreItem.task_version_id == about.task_version_id,
            ScoreItem.scorer == scorer,
        )
    ).scalars()
    return {(row.item_id, row.sample): (row.score, row.reward, row.status, row.answer) for row in rows}


def _same_again(
    about: Answered, scorer: str, known: Mapping[tuple[str, int], Said], rows: Sequence[Mapping[str, Any]]
) -> None:
    now_said = {(r["item_id"], r["sample"]): (r["score"], r["reward"], r["status"], r["answer"]) for r in rows}
    moved = sorted(place for place in known.keys() | now_said.keys() if known.get(place) != now_said.get(place))
    if moved:
        item, sample = moved[0]
        before, after = _in_words(known.get(moved[0])), _in_words(now_said.get(moved[0]))
        raise ScorerChangedError(
            f"{scorer} says otherwise of {len(moved)} of {len(known)} stored answers of run {about.run_id} to "
            f"{about.task}: item {item!r}, sample {sample}, was {before} and is {after} now. Nothing was written: a "
            "scorer that judges otherwise needs another name"
        )


def _in_words(said: Said | None) -> str:
    if said is None:
        return "not judged"
    score, _, status, answer = said
    return f"{'solved' if score > 0.5 else 'not solved'} ({status}, {answer!r})"


def _row(about: Answered, outcome: ItemOutcome) -> dict[str, Any]:
    return {
        "run_id": about.run_id,
        "task_version_id": about.task_version_id,
        "item_id": outcome.item,
        "sample": outcome.sample,
        "scorer": outcome.scorer,
        "score": outcome.score,
        "reward": outcome.reward,
        "status": outcome.status,
        "answer": None if outcome.answer is None else plain_text(outcome.answer),
    }


def _number(session: Session, about: Answered, score: Score, scored_by: str | None) -> Result:
    return Result(
        run_id=about.run_id,
        token=about.token,
        task_version_id=about.task_version_id,
        scorer=score.scorer,
        metric=score.metric,
        decoding=score.decoding,
        value=score.value,
        standard_error=score.standard_error,
        n=score.n,
        n_no_answer=score.n_no_answer,
        n_truncated=score.n_truncated,
        n_undecoded=score.n_undecoded,
        n_error=score.n_error,
        protocol=about.protocol,
        scored_by=scored_by,
        recorded_at=now(session),
    )


def insert_rows(session: Session, table: Any, rows: Iterator[Mapping[str, Any]]) -> None:
    """Rows that are not there yet, many at once."""
    assert isinstance(table, Table)
    for part in parts(rows):
        session.execute(insert(table), part)


def parts(rows: Iterator[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """As many rows as a statement takes."""
    part: list[dict[str, Any]] = []
    for row in rows:
        part.append(dict(row))
        if len(part) == ROWS_AT_ONCE:
            yield part
            part = []
    if part:
        yield part
