"""What is private or anonymous is met nowhere: every query function, for everybody who might look."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from played import built_in, given, tiny
from several_people import HANDLE, SOURCE, People, fill
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from dare_platform import entries, exports, rankings, views, visibility
from dare_platform.database import Database
from dare_platform.entries import RefusedError, UnknownEntryError
from dare_platform.models import AuditLog, Entry, Run
from dare_platform.settings import Settings
from dare_platform.uploads import read_upload
from dare_platform.viewer import LOCAL, NOBODY, NotAllowedError, Viewer
from dare_platform.views import rows


@pytest.fixture(scope="module")
def filled(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, People]]:
    """Filled once; what a test changes is rolled back."""
    home = tmp_path_factory.mktemp("people")
    shutil.copy(sqlite_template, home / "dare.sqlite")
    with Database(f"sqlite:///{home / 'dare.sqlite'}") as opened:
        with opened.write() as session:
            people = fill(session)
        yield opened, people


@pytest.fixture
def people(filled: tuple[Database, People]) -> People:
    return filled[1]


@pytest.fixture
def session(filled: tuple[Database, People]) -> Iterator[Session]:
    with filled[0].write() as opened:
        yield opened
        opened.rollback()


Look = Callable[[Session, People, Viewer], object]
LOOKS: dict[str, Look] = {
    "entries_list": lambda s, people, who: (views.entries_list(s, viewer=who), views.entries_list(s, "tiny 1.0", who)),
    "entry_view": lambda s, people, who: [views.entry_view(s, id, who) for id in people.all_entries],
    "runs_list": lambda s, people, who: [
        views.runs_list(s, viewer=who),
        *(views.runs_list(s, id, viewer=who) for id in people.all_entries),
    ],
    "run_view": lambda s, people, who: [views.run_view(s, id, viewer=who) for id in people.all_runs],
    "curves": lambda s, people, who: [
        view.curves
        for metric in ("reward", "zebra_metric", "lynx_metric")
        for view in [views.curves(s, people.all_entries, "llada-tiny", metric, who)]
    ],
    "metrics": lambda s, people, who: views.curves(s, people.all_entries, "llada-tiny", "reward", who).metrics,
    "scorers_of": lambda s, people, who: [views.scorers_of(s, id, who) for id in people.all_runs],
    "difference": lambda s, people, who: [
        views.difference(s, id, "sudoku", "dare-1", "strict-1", viewer=who) for id in people.all_runs
    ],
    "queue_view": lambda s, people, who: views.queue_view(s, who),
    "workers": lambda s, people, who: rows.workers(s, 0.0, who),
    "events": lambda s, people, who: rows.events(s, people.all_runs, who),
    "board": lambda s, people, who: [
        rankings.board(s, "tiny 1.0", "llada-tiny", who, beside) for beside in (None, *people.all_entries)
    ],
    "exports": lambda s, people, who: [
        make(rankings.board(s, "tiny 1.0", "llada-tiny", who)) for make in (exports.csv, exports.json, exports.latex)
    ],
}


def test_every_query_function_is_looked_through() -> None:
    functions = {name for name in views.__all__ if inspect.isfunction(getattr(views, name))}
    assert functions <= set(LOOKS)
    for name in functions:
        assert inspect.signature(getattr(views, name)).parameters["viewer"].default == NOBODY, name


@pytest.mark.full
def test_postgresql_hides_the_same(postgres_settings: Settings) -> None:
    with Database(postgres_settings.database_url) as opened, opened.write() as session:
        met_by_no_stranger(session, fill(session))


def test_nothing_of_a_private_or_anonymous_entry_is_met_by_a_stranger(session: Session, people: People) -> None:
    met_by_no_stranger(session, people)


def met_by_no_stranger(session: Session, people: People) -> None:
    for name, look in LOOKS.items():
        for who, viewer in people.strangers.items():
            seen = repr(look(session, people, viewer))
            for mark in people.marks_of_private() + people.marks_of_anonymous():
                assert mark not in seen, (name, who, mark)


@pytest.mark.full
def test_the_author_and_operators_meet_all_of_it(session: Session, people: People) -> None:
    for viewer in (people.author, people.operator):
        seen = repr([look(session, people, viewer) for look in LOOKS.values()])
        for mark in people.marks_of_private() + people.marks_of_anonymous():
            assert mark in seen or mark == "account-of-quagga", mark


def test_a_private_id_gets_the_same_answer_as_one_that_there_is_not(session: Session, people: People) -> None:
    private = people.private["zebra"]
    for viewer in people.strangers.values():
        assert views.entry_view(session, private, viewer) is None is views.entry_view(session, "nosuch", viewer)
        assert views.runs_list(session, private, viewer=viewer) == ()
        for run in people.runs[private]:
            assert views.run_view(session, run, viewer=viewer) is None
    with pytest.raises(UnknownEntryError, match="there is no entry"):
        visibility.show_to(session, people.other, private, "public")


def test_there_is_one_board_for_everybody_and_a_private_entry_changes_no_row_of_it(
    session: Session, people: People
) -> None:
    everybody = {
        rankings.board(session, "tiny 1.0", "llada-tiny", who).digest
        for who in (NOBODY, people.author, people.other, people.operator)
    }
    assert len(everybody) == 1
    plain = rankings.board(session, "tiny 1.0", "llada-tiny", people.author)
    beside = rankings.board(session, "tiny 1.0", "llada-tiny", people.author, people.private["okapi"])
    assert beside.rows[:-1] == plain.rows
    own = beside.rows[-1]
    assert (own.name, own.rank) == ("okapi", None)
    assert own.gain is not None
    assert (beside.verdict, beside.entries, beside.tries) == (plain.verdict, plain.entries, plain.tries)


def test_an_anonymous_entry_stands_on_the_board_without_what_its_author_wrote(session: Session, people: People) -> None:
    row = next(row for row in rankings.board(session, "tiny 1.0", "llada-tiny").rows if row.name == "lynx")
    assert (row.algorithm, row.class_name) == ("withheld", None)
    assert row.gain is not None
    view = views.entry_view(session, people.anonymous, people.other)
    assert view is not None
    assert (view.source, view.settings, view.rerun_command, view.summary.author) == (None, (), "", None)
    assert view.withheld
    assert not view.may_act
    own = views.entry_view(session, people.anonymous, people.author)
    assert own is not None
    assert own.summary.author == HANDLE
    assert own.may_act


def test_a_public_entry_names_its_author_and_a_history_names_nobody(session: Session, people: People) -> None:
    view = views.entry_view(session, people.public, NOBODY)
    assert view is not None
    assert view.summary.author == "otter"
    entries.cancel(session, people.author, people.private["zebra"])
    told = views.entry_view(session, people.private["zebra"], people.operator)
    assert told is not None
    assert "its author" in {event.actor for event in told.history}
    own = views.entry_view(session, people.private["zebra"], people.author)
    assert own is not None
    assert "you" in {event.actor for event in own.history}


def test_in_the_queue_a_private_run_takes_its_place_without_a_name(session: Session, people: People) -> None:
    seen, own = views.queue_view(session, people.other), views.queue_view(session, people.author)
    assert seen.headline == own.headline
    assert [run.entry_name for run in seen.running] == ["private entry"]
    assert [run.entry_name for run in own.running] == ["zebra"]
    assert [worker.run_id for worker in seen.workers] == [""]
    assert len(seen.waiting) == len(own.waiting) > 0
    assert {place.run.entry_name for place in seen.waiting} == {"private entry"}


def test_private_tries_count_for_nobody_else(session: Session, people: People) -> None:
    again = entries.submit(session, people.other, built_in("bgpo"), "second bgpo").entry_id
    seen, own = views.entry_view(session, again, people.other), views.entry_view(session, again, people.operator)
    assert seen is not None
    assert own is not None
    assert (seen.summary.try_number, seen.tries) == (1, 1)
    assert (own.summary.try_number, own.tries) == (2, 2)


def test_an_identical_or_equally_named_private_entry_does_not_give_itself_away(
    session: Session, people: People
) -> None:
    same = entries.submit(session, people.other, built_in("bgpo", "mc_samples: 3"), "same content")
    assert same.created
    named = entries.submit(session, people.other, built_in("d1", "clip_high: 0.25", entry_name="okapi"), "same name")
    assert named.created
    text = SOURCE.format(mark="Other", value=0.2)
    file = given(read_upload("zebra.py", text.encode(), None, tiny(), ["llada-tiny"], name="zebra"))
    assert entries.submit(session, people.other, file, "file of the same name").created


def test_a_name_that_others_see_belongs_to_its_author(session: Session, people: People) -> None:
    text = SOURCE.format(mark="Other", value=0.2)
    file = given(read_upload("lynx.py", text.encode(), None, tiny(), ["llada-tiny"], name="lynx"))
    with pytest.raises(RefusedError, match="belongs to another account's algorithm"):
        entries.submit(session, people.other, file, "lynx again")


def test_acts_are_for_the_author_and_operators_and_say_nothing_of_private_entries(
    session: Session, people: People
) -> None:
    acts = (
        lambda who, id: entries.cancel(session, who, id),
        lambda who, id: entries.withdraw(session, who, id),
        lambda who, id: entries.retry(session, who, id, f"again {id}"),
    )
    for act in acts:
        for private in (people.private["zebra"], people.private["okapi"]):
            with pytest.raises(UnknownEntryError):
                act(people.other, private)
        with pytest.raises(NotAllowedError, match="belongs to somebody else"):
            act(people.other, people.anonymous)
        with pytest.raises(NotAllowedError, match="nobody is signed in"):
            act(NOBODY, people.anonymous)
    with pytest.raises(UnknownEntryError):
        entries.cancel(session, people.other, people.runs[people.private["zebra"]][0])


def test_an_operators_retry_stays_its_authors(session: Session, people: People) -> None:
    okapi = people.private["okapi"]
    entries.withdraw(session, people.operator, okapi)
    again = entries.retry(session, people.operator, okapi, "by the operator")
    assert session.get_one(Entry, again.entry_id).submitted_by == people.author.account_id
    assert views.entry_view(session, again.entry_id, people.author) is not None


def test_the_same_content_of_somebody_else_leads_to_their_entry_and_leaves_it_alone(
    session: Session, people: People
) -> None:
    before = len(people.runs[people.public])
    found = entries.submit(session, people.author, built_in("d1"), "the same as the public one")
    assert (found.entry_id, found.created, found.runs) == (people.public, False, 0)
    runs = session.execute(select(func.count()).select_from(Run).where(Run.entry_id == people.public)).scalar_one()
    assert runs == before


def test_a_key_is_good_for_one_submission(session: Session, people: People) -> None:
    with pytest.raises(RefusedError, match="Something else was sent with this key"):
        entries.submit(session, people.other, built_in("bgpo"), "public")


def test_an_entry_can_be_opened_and_not_closed_again(session: Session, people: People) -> None:
    lynx = people.anonymous
    with pytest.raises(RefusedError, match="others have seen it"):
        visibility.show_to(session, people.author, lynx, "private")
    visibility.show_to(session, people.author, lynx, "public")
    view = views.entry_view(session, lynx, NOBODY)
    assert view is not None
    assert view.summary.author == HANDLE
    assert "LynxRule" in (view.source or "")
    with pytest.raises(RefusedError, match="others have seen it"):
        visibility.show_to(session, people.author, lynx, "anonymous")
    visibility.show_to(session, people.operator, lynx, "private")
    assert views.entry_view(session, lynx, NOBODY) is None
    notes = session.execute(select(AuditLog.note).where(AuditLog.action == "show").order_by(AuditLog.id)).scalars()
    assert list(notes) == ["was anonymous, is public", "was public, is private"]


def test_only_its_author_and_operators_open_an_entry(session: Session, people: People) -> None:
    for viewer in (people.other, NOBODY):
        with pytest.raises(NotAllowedError):
            visibility.show_to(session, viewer, people.anonymous, "public")


def test_a_private_entry_whose_name_was_taken_meanwhile_cannot_be_opened(session: Session, people: People) -> None:
    entries.submit(session, people.other, built_in("d1", "clip_high: 0.25", entry_name="okapi"), "same name")
    with pytest.raises(RefusedError, match="stands for another algorithm"):
        visibility.show_to(session, people.author, people.private["okapi"], "public")


def test_the_reference_is_always_public(session: Session) -> None:
    made = entries.submit(session, LOCAL, built_in("untouched", None, "sdar-tiny"), "another", "private")
    assert made.created
    assert session.get_one(Entry, made.entry_id).visibility == "public"
    with pytest.raises(RefusedError, match="for everybody"):
        visibility.show_to(session, LOCAL, made.entry_id, "private")


def test_a_try_again_of_a_private_entry_is_private(session: Session, people: People) -> None:
    okapi, author = people.private["okapi"], people.author
    entries.withdraw(session, author, okapi)
    again = entries.retry(session, author, okapi, "again")
    assert session.get_one(Entry, again.entry_id).visibility == "private"
