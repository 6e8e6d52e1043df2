"""What runs print, kept as it came: written while a run works, read on from any byte by whoever follows.

A place in a run's output is a job token and an offset. Attempts that go on with one process have one job token and
print the same bytes, so that a reader does not notice who watches; a new process begins at 0 under its own.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Table, func, select
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import Session

from dare_platform.models import FINISHED, LOG_CHUNK_BYTES, LOG_TAIL_CHARACTERS, Attempt, LogChunk, Run

SMALL_BYTES = 8192
"""A row that holds less is filled up by what comes next, so that a talkative run does not make a row per line."""


@dataclass(frozen=True)
class Piece:
    """Bytes of an attempt's output, from `offset` on. Written twice, it is the same row."""

    offset: int
    content: bytes


@dataclass
class Collector:
    """Makes rows of what a launcher hands out. `limit_bytes` is what is kept of one attempt."""

    limit_bytes: int
    offset: int = 0
    """Up to where the output has been collected."""
    characters: int = 0
    """The same in characters, as far as they are whole."""
    tail: str = ""
    """The end of it, as much as an attempt keeps."""
    _open: Piece = field(default=Piece(0, b""))
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    @property
    def is_full(self) -> bool:
        """No more is kept."""
        return self.offset >= self.limit_bytes

    def add(self, output: bytes) -> list[Piece]:
        """The rows that hold these bytes, the first of which may have been written before with fewer."""
        output = output[: max(0, self.limit_bytes - self.offset)]
        text = self._decoder.decode(output)
        self.characters += len(text)
        self.tail = (self.tail + text)[-LOG_TAIL_CHARACTERS:]
        return self._rows(output)

    def add_rest(self, log: str) -> list[Piece]:
        """The rows that hold what a whole log has behind the collected part: of a long one, the end of what is kept."""
        return self._rows(log[self.characters :].encode())

    def _rows(self, output: bytes) -> list[Piece]:
        pieces: list[Piece] = []
        while output:
            room = SMALL_BYTES - len(self._open.content) if self._open.content else LOG_CHUNK_BYTES
            if room <= 0:
                self._open, room = Piece(self.offset, b""), LOG_CHUNK_BYTES
            fresh, output = output[:room], output[room:]
            self._open = Piece(self._open.offset, self._open.content + fresh)
            self.offset += len(fresh)
            pieces = [*(piece for piece in pieces if piece.offset != self._open.offset), self._open]
        return pieces


def keep(session: Session, run_id: str, token: int, pieces: Sequence[Piece]) -> None:
    """Write rows. The caller has proven in this transaction that it holds the run."""
    table = LogChunk.__table__
    assert isinstance(table, Table)
    insert = postgresql_insert if session.get_bind().dialect.name == "postgresql" else sqlite_insert
    for piece in pieces:
        row = insert(table).values(run_id=run_id, token=token, offset=piece.offset, content=piece.content)
        session.execute(
            row.on_conflict_do_update(
                index_elements=["run_id", "token", "offset"], set_={"content": row.excluded.content}
            )
        )


@dataclass(frozen=True)
class Place:
    """Up to where a reader has read: nothing yet of a process, or `offset` bytes."""

    job_token: int
    offset: int = 0


@dataclass(frozen=True)
class Read:
    """What came next, and where it ended."""

    content: bytes
    place: Place
    is_new: bool = False
    """The first bytes of another process than the one before."""


def newest(session: Session, run_id: str) -> Place | None:
    """Where the output of a run's newest process begins; None for a run that was never started."""
    query = select(_process()).where(Attempt.run_id == run_id).order_by(Attempt.number.desc()).limit(1)
    found = session.execute(query).scalar_one_or_none()
    return None if found is None else Place(found)


def read_on(session: Session, run_id: str, place: Place) -> Read | None:
    """The next bytes behind a place; those of the next process where this one has ended. None: there are none yet."""
    goes_on = select(Attempt.token).where(
        Attempt.run_id == run_id, _process() == place.job_token, Attempt.ended_at.is_(None)
    )
    is_open = session.execute(goes_on.limit(1)).first() is not None  # asked first: nothing is written after its end
    found = _behind(session, run_id, place)
    if found is not None or is_open:
        return found
    later = select(func.min(_process())).where(Attempt.run_id == run_id, _process() > place.job_token)
    following = session.execute(later).scalar_one()
    return None if following is None else Read(b"", Place(following), is_new=True)


def is_over(session: Session, run_id: str) -> bool:
    """Nothing more will be printed. Ask before the last `read_on`, not after it."""
    return session.execute(select(Run.state).where(Run.id == run_id)).scalar_one() in FINISHED


def _process() -> ColumnElement[int]:
    """Names the process that an attempt watches."""
    return func.coalesce(Attempt.job_token, Attempt.token)


def _behind(session: Session, run_id: str, place: Place) -> Read | None:
    """Out of whichever attempt's row holds the place: those over one process hold the same bytes."""
    query = (
        select(LogChunk.offset, LogChunk.content)
        .join(Attempt, (Attempt.run_id == LogChunk.run_id) & (Attempt.token == LogChunk.token))
        .where(
            LogChunk.run_id == run_id,
            _process() == place.job_token,
            LogChunk.offset <= place.offset,
            LogChunk.offset + func.length(LogChunk.content) > place.offset,
        )
        .order_by(LogChunk.offset.desc())
        .limit(1)
    )
    row = session.execute(query).one_or_none()
    if row is None:
        return None
    content = bytes(row.content)[place.offset - row.offset :]
    return Read(content, Place(place.job_token, place.offset + len(content)))
