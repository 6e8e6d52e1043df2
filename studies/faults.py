"""The page of the platform's faults: what each test of the table has seen, and what the rounds of chaos left.

`python -m studies.faults` runs the tests of the table (ten minutes, on a machine with everything they need) and writes
docs/studies/faults.md; `--page` writes it anew from what was kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.hostile import machine

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "platform" / "faults"))

from table import TABLE, Fault  # noqa: E402  # beside the tests that it names

ARTEFACTS = ROOT / "artefacts"
REPORT, ROUNDS, STUDY = ARTEFACTS / "faults.xml", ARTEFACTS / "chaos.json", ROOT / "docs" / "studies" / "faults.md"

PAGE = """# Faults that cost nothing

Whatever is killed, frozen, cut off or full: every run has exactly one result or one reason, and nothing of it is left.
Each line is shown by tests with real processes; `python -m studies.faults` runs them and makes this page,
`python -m studies.chaos` plays the rounds below.

```
python -m studies.faults
python -m studies.chaos --runs 200 --workers 6 --seed 0
```

Run on {date}, on the tree that follows commit {commit}, {cores} cores of {cpu}, Linux {kernel}, Docker Engine {engine},
Python {python}.

## Fault by fault

| fault | outcome | seen | tests |
|---|---|---|---|
{faults}

{files}

## Chaos

{runs} runs each: half are trainings of the toy runner, about a second each, the others their evaluations, over real
workers with a lease of {lease} s on PostgreSQL and Redis, beside a control service. Every {pause} s on average one of
these was done, drawn by the seed, and what had died was started again.

| | {titles} |
|---|{dashes}|
{figures}

After each round the database, the process table, the engine and the disk were looked at: rows of every result, none
missing, none double; attempts numbered without gaps under growing tokens, each ended, the last one of a success
holding the run; one charge for a success, none for a failure; no lease of a run or a GPU; no process and no container;
kept files that are what their names say; job directories that can be cleaned away to the last.

A run may fail here by design: its attempts are counted, three by default, and one that three different workers died of
is given to no fourth. It says so, is not charged, and takes its evaluation along.

## Not shown

- A database whose disk is lost: that is what `dare backup` is for.
- A database clock that goes back delays a run that waits to be tried again, and the lease of a host that is gone, by
  as much as it goes back; nothing is done twice.
- Two hosts: workers here share one, and a worker's death is noticed by its process. Between hosts it is the lease that
  ends, as for the frozen workers.
"""


def results(report: Path) -> dict[str, list[tuple[str, str]]]:
    """Of every test function: how each of its parameters ended, and what it saw."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        file = "/".join(case.attrib["classname"].split(".")) + ".py"
        ended = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        saw = next((one.attrib["value"] for one in case.iter("property") if one.attrib["name"] == "seen"), "")
        found[f"{file}::{case.attrib['name'].split('[')[0]}"].append((ended, saw))
    return found


def row(fault: Fault, found: Mapping[str, Sequence[tuple[str, str]]], numbers: Mapping[str, int]) -> str:
    """A line of the table."""
    cases = [case for test in fault.tests for case in found.get(test, [("not run", "")])]
    counted = {ended: sum(one == ended for one, _ in cases) for ended in dict.fromkeys(ended for ended, _ in cases)}
    seen = "; ".join(dict.fromkeys(saw for _, saw in cases if saw))
    ended = ", ".join(f"{count} {ended}" for ended, count in counted.items())
    files = ", ".join(f"{numbers[file]}" for file in dict.fromkeys(test.split("::")[0] for test in fault.tests))
    return f"| {fault.name} | {fault.outcome} | {f'{seen}; ' if seen else ''}{ended} | {files} |"


def page() -> str:
    """The whole study, from what was kept."""
    found = results(REPORT)
    files = list(dict.fromkeys(test.split("::")[0] for fault in TABLE for test in fault.tests))
    numbers = {file: number for number, file in enumerate(files, 1)}
    listed = ", ".join(f"{number} `{file.removeprefix('tests/')}`" for file, number in numbers.items())
    rounds: list[dict[str, Any]] = json.loads(ROUNDS.read_text())
    kinds = list(dict.fromkeys(kind for one in rounds for kind in one["disturbed"]))
    figures = [
        _line("runs, workers, seed", [f"{one['runs']}, {one['workers']}, {one['seed']}" for one in rounds]),
        _line("seconds", [f"{one['seconds']:.0f}" for one in rounds]),
        *(_line(kind, [one["disturbed"].get(kind, 0) for one in rounds]) for kind in kinds),
        _line("**one result each**", [f"**{one['succeeded']}**" for one in rounds]),
        _line("failed by design", [_counted(one["failed"]) for one in rounds]),
        _line("attempts", [_counted(one["attempts"]) for one in rounds]),
        _line("what may not be", [_counted(dict.fromkeys(one["wrong"], 1)) for one in rounds]),
    ]
    return PAGE.format(
        **machine(),
        faults="\n".join(row(fault, found, numbers) for fault in TABLE),
        files=f"Tests: {listed}.",
        runs=" and ".join(str(one["runs"]) for one in rounds),
        lease=f"{rounds[0]['lease']:g}",
        pause=f"{rounds[0]['pause']:g}",
        titles=" | ".join(one["title"] for one in rounds),
        dashes="---|" * (len(rounds) - 1) + "---",
        figures="\n".join(figures),
    )


def _line(name: str, values: Sequence[object]) -> str:
    return f"| {name} | {' | '.join(map(str, values))} |"


def _counted(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{count} {what}" for what, count in sorted(counts.items())) or "none"


def run_tests() -> int:
    """Every test of the table, where nothing may be skipped."""
    tests = dict.fromkeys(test for fault in TABLE for test in fault.tests)
    ARTEFACTS.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={REPORT}", "-o", "junit_family=xunit1", *tests]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "CI": "1"}, check=False).returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true", help="run no test, write the page from what was kept")
    failed = 0 if parser.parse_args().page else run_tests()
    STUDY.write_text(page())
    raise SystemExit(failed)
