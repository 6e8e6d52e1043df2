"""PostgreSQL and Redis of one's own, on unix sockets: to be used, killed and started again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from needed import missing
from sqlalchemy import create_engine, text

START_SECONDS = 30.0
QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}


def program(name: str) -> str:
    """Where a server's program is; Debian keeps PostgreSQL's out of the path."""
    folders = [os.environ.get("PATH", ""), *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        missing(name)
        raise AssertionError
    return found


class PostgresServer:
    """A private server. `durable`: what is committed outlives `restart`, as everybody expects of a real one."""

    def __init__(self, durable: bool = False) -> None:
        initdb, self._postmaster = program("initdb"), program("postgres")
        self.folder = Path(tempfile.mkdtemp(prefix="dare-pg-"))
        self._as_user: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(self.folder, "postgres", "postgres")
            self._as_user = ["runuser", "-u", "postgres", "--"]
        make = [*self._as_user, initdb, "-D", self.folder / "data", "-A", "trust", "-U", "dare", "-N"]
        subprocess.run(make, check=True, **QUIET)
        self._durable = durable
        self.url = f"postgresql+psycopg://dare@/postgres?host={self.folder}"
        self.start()

    def start(self) -> None:
        """Until it answers."""
        options = ["-k", str(self.folder), "-c", "listen_addresses=", "-c", "shared_buffers=32MB"]
        options += ["-c", f"fsync={'on' if self._durable else 'off'}"]
        self._server = subprocess.Popen(
            [*self._as_user, self._postmaster, "-D", self.folder / "data", *options], **QUIET
        )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.administer("SELECT 1")
                return
            except Exception:  # the server says in several ways that it is starting
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def stop(self) -> None:
        """At once, as `pg_ctl stop -m immediate`: every connection is cut, and the next start recovers from the log."""
        os.kill(int((self.folder / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
        self._server.wait(30)

    def restart(self) -> None:
        """Stop at once and start again."""
        self.stop()
        self.start()

    def administer(self, statement: str, database: str = "postgres") -> None:
        """One statement outside any transaction."""
        engine = create_engine(self.database(database), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.execute(text(statement))
        finally:
            engine.dispose()

    def database(self, name: str) -> str:
        """URL of one of its databases."""
        return self.url.replace("/postgres?", f"/{name}?")

    def remove(self) -> None:
        """With everything in it."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class RedisServer:
    """A private server that keeps nothing."""

    def __init__(self) -> None:
        self._program = program("redis-server")
        self.folder = Path(tempfile.mkdtemp(prefix="dare-redis-"))
        self._socket = self.folder / "redis.sock"
        self.url = f"redis+socket://{self._socket}"
        self.start()

    def start(self) -> None:
        """Until it listens."""
        command = [self._program, "--port", "0", "--unixsocket", self._socket, "--save", "", "--dir", self.folder]
        self._server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while not self._socket.exists():
            assert time.monotonic() < deadline, "redis-server did not start"
            time.sleep(0.05)

    def kill(self) -> None:
        """With SIGKILL: its messages are gone."""
        self._server.kill()
        self._server.wait()
        self._socket.unlink(missing_ok=True)

    def remove(self) -> None:
        """With its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
