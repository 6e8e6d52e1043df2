"""`make bench-platform`: what the platform costs by the wall, on a private PostgreSQL and on SQLite, in one run.

Runs, answers and scores are made up by SQL; tables, indexes and queries are those of the product.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, func, select, text, update
from sqlalchemy.orm import Session

from dare.spec import Event, JobSpec
from dare_platform.database import Database, migrate, now
from dare_platform.entries import submit
from dare_platform.ingest import ingest
from dare_platform.lease import claim
from dare_platform.models import (
    LOCAL_ACCOUNT,
    Algorithm,
    AlgorithmVersion,
    Entry,
    Run,
    TrackVersion,
    Worker,
)
from dare_platform.rankings import board
from dare_platform.registry import register_track
from dare_platform.settings import Settings
from dare_platform.tracks import tracks
from dare_platform.uploads import read_builtin
from dare_platform.viewer import LOCAL
from dare_platform.views import entries_list, queue_view

TRACK, BACKBONE = "tiny 1.0", "llada-tiny"
SEEDS = 3
NUMBERS = ("kl", "loss", "reward", "gradient_norm", "learning_rate")


@contextmanager
def postgres() -> Iterator[str]:
    """URL of a private server on a unix socket, without fsync: its disk is not what is measured."""
    folders = [os.environ.get("PATH", ""), *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))]
    initdb, server = (shutil.which(name, path=os.pathsep.join(folders)) for name in ("initdb", "postgres"))
    if not initdb or not server:
        raise SystemExit("PostgreSQL is not installed: its server is needed for this benchmark")
    folder = Path(tempfile.mkdtemp(prefix="dare-bench-"))
    as_user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "postgres", "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}
    subprocess.run([*as_user, initdb, "-D", folder / "data", "-A", "trust", "-U", "dare", "-N"], check=True, **quiet)
    options = "listen_addresses= fsync=off full_page_writes=off max_wal_size=8GB maintenance_work_mem=512MB"
    set_to = [part for option in [*options.split(" "), "shared_buffers=512MB"] for part in ("-c", option)]
    running = subprocess.Popen([*as_user, server, "-D", folder / "data", "-k", folder, *set_to], **quiet)
    url = f"postgresql+psycopg://dare@/postgres?host={folder}"
    try:
        for _ in range(300):
            if (folder / ".s.PGSQL.5432").exists():
                break
            time.sleep(0.1)
        yield url
    finally:
        os.kill(int((folder / "data" / "postmaster.pid").read_text().split()[0]), 3)  # SIGQUIT: immediate
        running.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def fresh(server: str, home: Path, name: str) -> Settings:
    """An installation with an empty, migrated database of its own, and the tiny track registered."""
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return prepared(Settings(home=home / name, database_url=server.replace("/postgres?", f"/{name}?")))


def prepared(settings: Settings) -> Settings:
    """Migrated, with the tiny track."""
    migrate(settings)
    with Database(settings.database_url) as database, database.write() as session:
        register_track(session, tracks()[TRACK], settings.data)
    return settings


def real_entry(database: Database) -> None:
    """What `dare submit untouched` makes: its jobs are the ones that all made-up runs have."""
    submission = read_builtin("untouched", None, tracks()[TRACK], (BACKBONE,)).submission
    assert submission is not None
    with database.write() as session:
        submit(session, LOCAL, submission, "reference")


def fill(settings: Settings, runs: int, items: int, boards: int = 1) -> None:
    """So many succeeded runs, each entry with a training and an evaluation for every seed; of `boards` entries one is
    on the board that is asked for. Half of the item rows are answers, half are scores.

    Inserted as sets, without the triggers that check foreign keys row by row.
    """
    entries = max(1, runs // (2 * SEEDS))
    each = items // 2 // (entries * SEEDS)
    with Database(settings.database_url) as database:
        real_entry(database)
        with database.write() as session:
            if not database.is_sqlite:
                session.execute(text("SET LOCAL session_replication_role = replica"))
            _fill_runs(session, entries, each, boards)
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")


def _fill_runs(session: Session, entries: int, each: int, boards: int) -> None:
    series = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :n) SELECT i FROM n"
        if session.get_bind().dialect.name == "sqlite"
        else "SELECT i FROM generate_series(1, :n) AS n(i)"
    )
    at = datetime.now(UTC)
    algorithm = Algorithm(slug="bench", title="Bench", owner_id=LOCAL_ACCOUNT, created_at=at)
    session.add(algorithm)
    session.flush()
    version = AlgorithmVersion(
        algorithm_id=algorithm.id, version=1, class_name="Bench", source="class Bench: ...", source_sha256="0" * 64,
        hyperparameters_json="{}", content_sha256="0" * 64, trains_on="prompts", built_in=False, created_at=at,
    )  # fmt: skip
    worker = Worker(
        name="bench", host="here", pid=1, boot_id="b", device="cpu", families="llada", state="idle", hardware="cpu",
        software_version="0", started_at=0.0, last_seen_at=0.0,
    )  # fmt: skip
    elsewhere = TrackVersion(
        track_slug="other", version="1.0", state="open", title="Other", device="cpu", rules_sha256="0" * 64,
        rules_json="{}", created_at=at,
    )  # fmt: skip
    session.add_all([version, worker, elsewhere])
    session.flush()
    entry, run = session.execute(select(Entry)).scalars().one(), session.execute(select(Run).limit(1)).scalars().one()
    job = JobSpec.model_validate_json(run.job_json)
    assert job.evaluate is not None
    given = {"n": entries, "version": version.id, "worker": worker.id, "run": run.id, "entry": entry.id}
    given |= {"each": each, "other": elsewhere.id, "boards": boards, "scorer": tracks()[TRACK].scorer}

    def say(statement: str) -> None:
        used = {name: value for name, value in given.items() if f":{name}" in statement}
        session.execute(text(statement), used)

    say(
        "INSERT INTO entry (id, algorithm_version_id, track_version_id, submitted_by, idempotency_key, name, kind, "
        " gate, visibility, ordinal, created_at)"
        f" SELECT 'e' || s.i, :version,"
        " CASE WHEN s.i % :boards = 0 THEN e.track_version_id ELSE :other END,"
        f" e.submitted_by, 'k' || s.i, 'Method ' || s.i, 'method',"
        f" 'accepted', 'public', 1, e.created_at FROM ({series}) s, entry e WHERE e.id = :entry"
    )
    columns = (
        "id, entry_id, backbone_revision_id, kind, seed, queue, device, priority, job_json, job_sha256, state,"
        " attempts, max_attempts, lease_token, job_token, not_before, created_at, finished_at, charged"
    )
    seeds = " CROSS JOIN (SELECT 0 AS seed UNION ALL SELECT 1 UNION ALL SELECT 2) d"
    for kind in ("train", "evaluate"):
        say(
            f"INSERT INTO run ({columns}) SELECT '{kind}' || s.i || '-' || d.seed, 'e' || s.i, r.backbone_revision_id,"
            f" '{kind}', d.seed, r.queue, r.device, 0, r.job_json, r.job_sha256, 'succeeded', 1, 3, 1, 1, 0,"
            f" r.created_at, r.created_at, true FROM ({series}) s{seeds}, run r WHERE r.id = :run"
        )
        made = f"({series}) s{seeds}"
        say(
            "INSERT INTO attempt (run_id, number, token, worker_id, started_at, ended_at, outcome, host, hardware,"
            f" software_version) SELECT '{kind}' || s.i || '-' || d.seed, 1, 1, :worker, 0, 1, 'succeeded', 'here',"
            f" 'cpu', '0' FROM {made}"
        )
    numbers = (
        "(SELECT 'solved' AS metric, 'greedy' AS decoding UNION ALL SELECT 'solved', 'sampled'"
        " UNION ALL SELECT 'reward', 'sampled')"
    )
    say(
        "INSERT INTO result (run_id, task_version_id, scorer, metric, decoding, token, value, n, n_no_answer,"
        " n_truncated, protocol, recorded_at)"
        " SELECT 'evaluate' || s.i || '-' || d.seed, t.id, :scorer, m.metric, m.decoding, 1,"
        f" ((s.i * 7919 + d.seed * 131) % 1000) / 1000.0, 256, 0, 0, 'p', 0 FROM {made}"
        f" CROSS JOIN (SELECT DISTINCT task_version_id AS id FROM cell) t CROSS JOIN {numbers} m"
    )
    _measure_the_reference(say, numbers)
    if not each:
        return
    items = series.replace(":n", ":each")
    say(
        "INSERT INTO task_item (task_version_id, item_id, position, item_sha256)"
        " SELECT t.id, 'item-' || p.i, 100000 + p.i, 'x' FROM (SELECT MIN(task_version_id) AS id FROM cell) t"
        f" CROSS JOIN ({items}) p"
    )
    of_item = f"FROM {made} CROSS JOIN (SELECT MIN(task_version_id) AS id FROM cell) t CROSS JOIN ({items}) p"
    say(
        "INSERT INTO prediction (run_id, task_version_id, item_id, sample, token, prompt_sha256, output, output_sha256,"
        " tokens, nfe, truncated) SELECT 'evaluate' || s.i || '-' || d.seed, t.id, 'item-' || p.i, 0, 1, 'x',"
        f" 'an answer of forty characters, about that', 'x', 10, 10, false {of_item}"
    )
    say(
        "INSERT INTO score_item (run_id, task_version_id, item_id, sample, scorer, score, reward, status)"
        " SELECT 'evaluate' || s.i || '-' || d.seed, t.id, 'item-' || p.i, 0, :scorer, 1, 1, 'ok'"
        f" {of_item}"
    )


def _measure_the_reference(say: Callable[[str], None], numbers: str) -> None:
    """Without numbers of the untouched backbone no row has a gain, and none is compared with another."""
    say(
        "UPDATE run SET state = 'succeeded', attempts = 1, lease_token = 1, job_token = 1, finished_at = created_at,"
        " charged = true WHERE entry_id = :entry"
    )
    say(
        "INSERT INTO attempt (run_id, number, token, worker_id, started_at, ended_at, outcome, host, hardware,"
        " software_version) SELECT id, 1, 1, :worker, 0, 1, 'succeeded', 'here', 'cpu', '0' FROM run"
        " WHERE entry_id = :entry"
    )
    say(
        "INSERT INTO result (run_id, task_version_id, scorer, metric, decoding, token, value, n, n_no_answer,"
        " n_truncated, protocol, recorded_at)"
        " SELECT r.id, t.id, :scorer, m.metric, m.decoding, 1, 0.2, 256, 0, 0, 'p', 0"
        f" FROM run r CROSS JOIN (SELECT DISTINCT task_version_id AS id FROM cell) t CROSS JOIN {numbers} m"
        " WHERE r.entry_id = :entry"
    )


def median(work: Callable[[], object], times: int = 5) -> float:
    """Milliseconds, after one call that is not counted."""
    work()
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)


def queries(settings: Settings) -> dict[str, float]:
    """The three questions that a page asks, in milliseconds."""
    with Database(settings.database_url) as database:

        def asked(question: Callable[[Session], object]) -> float:
            def once() -> None:
                with database.read() as session:
                    question(session)

            return median(once)

        return {
            "board": asked(lambda s: board(s, TRACK, BACKBONE)),
            "queue": asked(queue_view),
            "entries": asked(lambda s: entries_list(s, TRACK)),
        }


def page(settings: Settings) -> float:
    """The board's page, rendered on the server, nothing remembered; milliseconds."""
    import logging

    from streamlit.testing.v1 import AppTest

    logging.disable(logging.WARNING)  # a page without a server: no concern here

    from leaderboard import serving

    os.environ.update(DARE_HOME=str(settings.home), DARE_DATABASE_URL=settings.database_url)

    def once() -> None:
        import streamlit

        streamlit.cache_data.clear()
        test = AppTest.from_file(str(serving.SCRIPT), default_timeout=120)
        test.run()
        if test.exception:
            raise SystemExit(f"the page failed: {test.exception[0].value}")

    return median(once, 3)


def claims(settings: Settings, workers: int, each: int = 40) -> float:
    """Claims a second: every worker a thread with a connection of its own, all on one queue."""
    total = workers * each
    with Database(settings.database_url) as database, database.write() as session:
        series = "SELECT i FROM generate_series(1, :n) AS n(i)"
        session.execute(text("SET LOCAL session_replication_role = replica"))
        session.execute(
            text(
                "INSERT INTO run (id, entry_id, backbone_revision_id, kind, seed, queue, device, priority, job_json,"
                " job_sha256, state, attempts, max_attempts, lease_token, job_token, not_before, created_at,"
                " enqueued_at) SELECT :tag || s.i, r.entry_id, r.backbone_revision_id, 'evaluate', s.i + :base,"
                " r.queue, r.device, 0, r.job_json, r.job_sha256, 'queued', 0, 3, 0, 0, 0, r.created_at, s.i"
                f" FROM ({series}) s, (SELECT * FROM run ORDER BY created_at LIMIT 1) r"
            ),
            {"n": total, "tag": f"w{workers}-", "base": 10_000 * workers},
        )
        ids = []
        for number in range(workers):
            worker = Worker(
                name=f"w{workers}-{number}", host="here", pid=1, boot_id="b", device="cpu", families="llada",
                state="idle", hardware="cpu", software_version="0", started_at=now(session),
                last_seen_at=now(session),
            )  # fmt: skip
            session.add(worker)
            session.flush()
            ids.append(worker.id)
    ready, taken = threading.Barrier(workers + 1), [0] * workers

    def work(number: int) -> None:
        with Database(settings.database_url) as own:
            with own.read() as session:
                me = session.get_one(Worker, ids[number])
            ready.wait()
            while True:
                with own.write() as session:
                    if claim(session, me, 3600.0) is None:
                        return
                taken[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if sum(taken) < total:
        raise SystemExit(f"{sum(taken)} of {total} runs were claimed")
    return sum(taken) / seconds


def events(settings: Settings, batches: int = 50, each: int = 100) -> float:
    """Events a second that one worker brings into the database, a hundred at a time, five numbers each."""
    with Database(settings.database_url) as database:
        with database.read() as session:
            run, token = session.execute(select(Run.id, Run.lease_token).where(Run.state == "leased").limit(1)).one()
        began = time.perf_counter()
        for batch in range(batches):
            steps = range(batch * each, (batch + 1) * each)
            brought = [Event(at=0.0, kind="step", step=step, metrics=dict.fromkeys(NUMBERS, 0.5)) for step in steps]
            with database.write() as session:
                if not ingest(session, run, token, brought, "", actor="bench"):
                    raise SystemExit("the run is not held")
        return batches * each / (time.perf_counter() - began)


def start(settings: Settings) -> float:
    """Seconds from a submission to the claim of its first run, with a worker that is there and idle."""
    environment = {**os.environ, "DARE_HOME": str(settings.home), "DARE_DATABASE_URL": settings.database_url}
    command = [str(Path(sys.executable).with_name("dare")), "worker"]
    worker = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with Database(settings.database_url) as database:
            _until(database, select(func.count()).select_from(Worker).where(Worker.state == "idle"), 60)
            real_entry(database)
            _until(database, select(func.count()).select_from(Run).where(Run.started_at.is_not(None)), 120)
            with database.read() as session:
                query = select(func.min(Run.started_at - Run.created_at)).where(Run.started_at.is_not(None))
                return float(session.execute(query).scalar_one() or 0.0)
    finally:
        worker.terminate()
        worker.wait(60)


def _until(database: Database, query: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with database.read() as session:
            if session.execute(query).scalar_one():
                return
        time.sleep(0.1)
    raise SystemExit("the worker did not begin")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.platform", description=__doc__)
    parser.add_argument("--items", type=int, default=10_000_000, help="item rows of the largest database")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="dare-bench-home-"))
    print("| what | of | figure |\n|---|---|---|", flush=True)

    def row(what: str, of: str, figure: str) -> None:
        print(f"| {what} | {of} | {figure} |", flush=True)

    try:
        with postgres() as server:
            embedded = prepared(Settings.from_environment({"DARE_HOME": str(home / "start")}))
            row("submit to claim", "SQLite, one idle worker that polls every 2 s", f"{start(embedded):.1f} s")
            row("submit to claim", "PostgreSQL, the same worker", f"{start(fresh(server, home, 'start')):.1f} s")
            busy = fresh(server, home, "busy")
            with Database(busy.database_url) as database:
                real_entry(database)
                with database.write() as session:  # out of the way: only made-up runs are claimed
                    session.execute(update(Run).values(not_before=now(session) + 1e6))
            for workers in (1, 2, 4, 8, 16, 32):
                row("claims", f"PostgreSQL, {workers} workers", f"{claims(busy, workers):.0f} a second")
            row("events ingested", "PostgreSQL, one worker, 100 at a time", f"{events(busy):,.0f} a second")
            sizes = (  # runs, which part of the items, boards
                (100, 100, 1), (1_000, 10, 1), (1_000, 10, 10),
                (10_000, 1_000, 100), (10_000, 1_000, 10), (10_000, 1, 100),
            )  # fmt: skip
            for runs, part, boards in sizes:
                made = fresh(server, home, f"runs_{runs}_{part}_{boards}")
                _row_of_size(row, "PostgreSQL", made, runs, given.items // part, boards)
            plain = prepared(Settings.from_environment({"DARE_HOME": str(home / "sqlite")}))
            _row_of_size(row, "SQLite", plain, 1_000, given.items // 10, 10)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _row_of_size(
    row: Callable[[str, str, str], None], kind: str, settings: Settings, runs: int, items: int, boards: int
) -> None:
    fill(settings, runs, items, boards)
    of = f"{kind}, {runs // boards:,} of {runs:,} runs shown, {items:,} item rows"
    for name, taken in queries(settings).items():
        row(f"{name} query", of, f"{taken:.0f} ms")
    row("board page", of, f"{page(settings):.0f} ms")


if __name__ == "__main__":
    main()
