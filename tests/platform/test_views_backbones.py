"""A backbone's page: its exact content, its own files, its untouched scores with the decoding they were asked at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from played import built_in, register, work_off
from sqlalchemy.orm import Session

from dare.catalog import backbones
from dare_platform import entries
from dare_platform.database import Database
from dare_platform.viewer import LOCAL, NOBODY, Viewer
from dare_platform.views.backbones import BackboneView, backbone_view


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with database.write() as opened:
        register(opened)
        yield opened


def view(session: Session, slug: str = "llada-tiny", viewer: Viewer = NOBODY) -> BackboneView:
    found = backbone_view(session, slug, viewer)
    assert found is not None
    return found


def test_an_unknown_backbone_is_none(session: Session) -> None:
    assert backbone_view(session, "gpt") is None


def test_a_published_backbone_that_is_not_here_is_known_by_name_only(session: Session) -> None:
    found = view(session, "llada-8b-instruct")
    assert (found.is_here, found.licence, found.mask_id, found.contents, found.untouched) == (False, None, None, (), ())


def test_its_content_and_mask_token_are_those_of_its_files(session: Session) -> None:
    found, record = view(session), backbones()["llada-tiny"]
    assert [(one.revision, one.weights_sha256) for one in found.contents] == [(record.revision, record.weights_sha256)]
    assert (found.mask_token, found.mask_id) == ("<|mdm_mask|>", 1)
    assert (found.family, found.kind, found.licence) == ("llada", "masked", "Apache-2.0")


def test_untouched_scores_come_with_their_decoding(session: Session) -> None:
    entries.submit(session, LOCAL, built_in("untouched"), "key-untouched")
    entries.submit(session, LOCAL, built_in("bgpo"), "key-bgpo")
    work_off(session, {"untouched": 0.1, "bgpo": 0.9})
    found = view(session).untouched
    assert {(one.track, one.task, one.solved.seeds) for one in found} == {
        ("tiny 1.0", "sudoku", 3),
        ("tiny 1.0", "countdown", 3),
    }
    assert all(one.solved.value == pytest.approx(0.104) for one in found)  # seeds 0, 1, 2 add 0.004 each
    assert {one.steps for one in found} == {one.sampling.steps_per_block for one in found}  # one block


def test_a_private_entry_is_listed_for_its_author_only(session: Session) -> None:
    entries.submit(session, LOCAL, built_in("bgpo"), "key-bgpo", "private")
    assert [entry.name for entry in view(session, viewer=LOCAL).entries] == ["bgpo"]
    found = view(session)
    assert (found.entries, found.entries_in_all, found.contents[0].entries) == ((), 0, 0)
