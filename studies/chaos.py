"""Many queued runs over a few workers while random parts are killed, frozen and cut off: once with processes, once with
containers.

`python -m studies.chaos --runs 200 --workers 6 --seed 0` keeps the figures and writes docs/studies/faults.md anew.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from dare_platform.database import migrate
from dare_platform.settings import Containers, Settings
from studies.faults import ARTEFACTS, ROOT, ROUNDS, STUDY, page

sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "platform")]

from aftermath import look  # what the tests use
from chaos import LEASE_SECONDS, lay_out, play
from launching import free_address, toy_image
from servers import PostgresServer, RedisServer

STEPS, STEP_SECONDS = 8, 0.1
LONGEST_SECONDS = 900.0


def one_round(runs: int, workers: int, seed: int, pause: float, containers: bool) -> dict[str, Any]:
    """Play it on services of its own; its figures."""
    with ExitStack() as stack:
        postgres, redis = PostgresServer(durable=True), RedisServer()
        stack.callback(postgres.remove)
        stack.callback(redis.remove)
        postgres.administer("CREATE DATABASE chaos")
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dare-chaos-", ignore_cleanup_errors=True)))
        settings = Settings(home=home, database_url=postgres.database("chaos"))
        migrate(settings)
        if containers:
            image = stack.enter_context(toy_image(STEPS, STEP_SECONDS))
            settings = replace(
                settings,
                launcher=free_address(),
                launcher_secret=secrets.token_hex(16),
                containers=Containers(installation=f"chaos-{secrets.token_hex(4)}", images={"llada": image}),
            )
        ground = lay_out(settings, postgres, redis, runs, workers, f"good:{STEPS}:{STEP_SECONDS}")
        played = play(ground, seed, pause, LONGEST_SECONDS)
        found = look(ground)
    return {
        "title": "containers" if containers else "processes",
        "runs": runs,
        "workers": workers,
        "seed": seed,
        "pause": pause,
        "lease": LEASE_SECONDS,
        **vars(played),
        **vars(found),
    }


def main() -> int:
    """Both rounds; how many things were wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.8, help="seconds between two faults, on average")
    asked = parser.parse_args()
    rounds = [
        one_round(asked.runs, asked.workers, asked.seed, asked.pause, containers=False),
        one_round(asked.runs // 5, asked.workers // 2, asked.seed, asked.pause, containers=True),
    ]
    ARTEFACTS.mkdir(exist_ok=True)
    ROUNDS.write_text(json.dumps(rounds, indent=1))
    STUDY.write_text(page())
    return sum(len(one["wrong"]) + one["unfinished"] for one in rounds)


if __name__ == "__main__":
    raise SystemExit(main())
