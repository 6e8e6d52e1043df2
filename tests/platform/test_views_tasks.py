"""A task's page: difficulty and agreement against brute force, paging without gaps, nothing of a private entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from played import built_in, register, work_off
from sqlalchemy import event, select, update
from sqlalchemy.orm import Session

from dare_platform import entries
from dare_platform.database import Database
from dare_platform.models import Attempt, Prediction, Run, ScoreItem, TaskItem, TaskVersion
from dare_platform.viewer import LOCAL
from dare_platform.views import tasks
from dare_platform.views.tasks import TaskView, task_view

SECOND = "opencompass-0.5.4"
TINY = ("tiny", "1.0")


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with database.write() as opened:
        register(opened)
        entries.submit(opened, LOCAL, built_in("untouched"), "key-untouched")
        entries.submit(opened, LOCAL, built_in("bgpo"), "key-bgpo")
        work_off(opened)
        yield opened


def sudoku(session: Session) -> TaskVersion:
    return session.execute(select(TaskVersion).where(TaskVersion.task_slug == "sudoku")).scalar_one()


def checkpoints(session: Session) -> Sequence[str]:
    query = select(Run.id).where(Run.kind == "evaluate", Run.state == "succeeded").order_by(Run.id)
    return session.execute(query).scalars().all()


def items_of(session: Session) -> list[str]:
    query = select(TaskItem.item_id).where(TaskItem.task_version_id == sudoku(session).id).order_by(TaskItem.position)
    return list(session.execute(query).scalars())


def solves(place: int, item: int) -> bool:
    """Checkpoint `place` of six solves an item when its number leaves a small enough rest."""
    return item % 7 <= place


def answer(session: Session, runs: Sequence[str], scorer: str = "dare-1", output: str = "an answer") -> None:
    """Greedy answers of these runs to all items of Sudoku, and what a scorer says of them."""
    version = sudoku(session).id
    for place, run in enumerate(runs):
        token = session.execute(select(Attempt.token).where(Attempt.run_id == run)).scalar_one()
        for number, item in enumerate(items_of(session)):
            key = {"run_id": run, "task_version_id": version, "item_id": item, "sample": 0}
            session.add(
                Prediction(
                    **key, token=token, prompt_sha256="a" * 64, output=output, output_sha256="0" * 64, tokens=16,
                    nfe=4, truncated=False,
                )
            )  # fmt: skip
            said = float(solves(place, number))
            session.add(ScoreItem(**key, scorer=scorer, score=said, reward=said, status="ok", answer="1423"))
        session.flush()


def view(session: Session, **asked: object) -> TaskView:
    found = task_view(session, "sudoku", TINY, "llada-tiny", "dare-1", **asked)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_difficulty_is_what_counting_by_hand_gives(session: Session) -> None:
    runs = checkpoints(session)
    answer(session, runs)
    found = view(session)
    shares = [sum(solves(place, number) for place in range(len(runs))) / len(runs) for number in range(256)]
    counted = Counter(min(9, int(10 * share + 1e-9)) for share in shares)
    assert found.difficulty == tuple(counted[tenth] for tenth in range(10))
    assert (found.never, found.always) == (shares.count(0.0), shares.count(1.0))
    assert (found.checkpoints, found.checkpoints_in_all, found.without_items) == (6, 6, 0)


@pytest.mark.parametrize("order", tasks.ORDERS)
def test_pages_hold_every_item_once(session: Session, order: tasks.Order) -> None:
    answer(session, checkpoints(session)[:3])
    pages = view(session).pages
    rows = [row for number in range(1, pages + 1) for row in view(session, order=order, page=number).rows]
    assert sorted(row.item_id for row in rows) == sorted(items_of(session))
    if order == "hardest":
        assert [row.solved for row in rows] == sorted(row.solved for row in rows)


def test_a_page_beyond_the_last_is_the_last(session: Session) -> None:
    assert view(session, page=10**6).page == view(session).pages


def test_scorers_agree_where_both_have_judged_and_neither_failed(session: Session) -> None:
    runs = checkpoints(session)[:2]
    answer(session, runs)
    version = sudoku(session).id
    for number, item in enumerate(items_of(session)[:10]):
        key = {"run_id": runs[0], "task_version_id": version, "item_id": item, "sample": 0}
        said = float(solves(0, number)) if number < 6 else 1 - float(solves(0, number))
        status = "error" if number == 0 else "ok"
        session.add(ScoreItem(**key, scorer=SECOND, score=said, reward=said, status=status, answer=None))
    session.flush()
    (found,) = view(session).agreements
    assert (found.scorer, found.answers, found.equal, found.failed) == (SECOND, 10, 5, 1)
    assert found.runs == (runs[0],)


def test_a_private_entry_is_in_no_number_and_no_answer(session: Session) -> None:
    entries.submit(session, LOCAL, built_in("d1"), "key-d1", "private")
    work_off(session)
    answer(session, checkpoints(session), output="SECRET")
    before = view(session, item=items_of(session)[0])
    assert before.checkpoints_in_all == 6
    assert sum(before.difficulty) == 256
    assert all(said is None or said.entry != "d1" for said in (before.item.right, before.item.wrong) if before.item)


def test_answers_of_an_anonymous_entry_count_and_are_not_shown(session: Session) -> None:
    from dare_platform.models import Entry

    session.execute(update(Entry).where(Entry.kind == "method").values(visibility="anonymous"))
    answer(session, checkpoints(session))
    found = view(session, item=items_of(session)[0])
    assert found.checkpoints == 6
    assert found.item is not None
    assert found.item.right is not None
    assert found.item.right.entry == "untouched"


def test_an_item_is_shown_as_it_was_asked_with_both_kinds_of_answers(session: Session) -> None:
    answer(session, checkpoints(session))
    found = view(session, item=items_of(session)[3]).item
    assert found is not None
    assert found.prompt is not None
    assert found.prompt.startswith("S")
    assert found.prompt_sha256 == "a" * 64
    assert found.right is not None
    assert found.wrong is not None
    assert (found.right.solved, found.wrong.solved) == (True, False)


def test_hidden_items_are_counted_and_neither_listed_nor_shown(session: Session) -> None:
    answer(session, checkpoints(session))
    session.execute(update(TaskVersion).where(TaskVersion.task_slug == "sudoku").values(hidden=True))
    session.expire_all()
    found = view(session, item=items_of(session)[0])
    assert (found.hidden, found.rows, found.item, sum(found.difficulty)) == (True, (), None, 256)


def test_the_text_of_a_task_whose_authors_ask_for_it_is_kept_back(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "TEXT_IS_KEPT_BACK", {"sudoku": "Its authors ask for it."})
    answer(session, checkpoints(session))
    found = view(session, item=items_of(session)[0]).item
    assert found is not None
    assert (found.prompt, found.gold, found.right, found.wrong) == (None, None, None, None)
    assert found.why_not == "Its authors ask for it."


def test_what_is_not_known_is_none_and_an_unknown_item_is_said(session: Session) -> None:
    assert task_view(session, "nope", TINY, "llada-tiny", "dare-1") is None
    assert task_view(session, "sudoku", TINY, "llada-tiny", "dare-1", version="99") is None
    assert view(session, item="nope").unknown_item
    assert view(session).difficulty == (0,) * 10


def test_more_checkpoints_cost_no_more_statements_and_the_newest_are_taken(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    engine = session.get_bind()
    event.listen(engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    answer(session, checkpoints(session))
    said.clear()
    assert view(session).checkpoints == 6
    every = len(said)
    monkeypatch.setattr(tasks, "MOST_CHECKPOINTS", 2)
    said.clear()
    found = view(session)
    assert (found.checkpoints, found.checkpoints_in_all, len(said)) == (2, 6, every)
