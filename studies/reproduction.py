"""Every run of a finished installation done again, and how equal it came out.

`make demo QUICK=1`, then `python -m studies.reproduction` writes docs/studies/reproduction.md. A training is done
again from the record, its evaluation with the policy that was trained again: nothing of the first time is used but the
record.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select

from dare_platform.database import open_database
from dare_platform.demo import published_data
from dare_platform.host import hardware
from dare_platform.models import Run
from dare_platform.settings import Settings
from dare_platform.viewer import LOCAL
from dare_platform.views import run_view

ROOT = Path(__file__).resolve().parent.parent
STUDY = ROOT / "docs" / "studies" / "reproduction.md"
PAGE = """# Doing the tiny track again

`make demo QUICK=1` was run to its end: {runs} trainings and evaluations of seed 0 on both tiny backbones. Then each was
done again from its record, on the same machine, an evaluation with the policy that had been trained again, so that
nothing of the first time was used. `dare reproduce` compares a training's curves and weights bit for bit, an
evaluation's answers letter by letter and its verdicts item by item.

```
make demo QUICK=1
python -m studies.reproduction
```

Run on {date} on the tree that follows commit {commit}, {hardware}, torch {torch}, one torch thread a run, other work on
the cores at the same time. **{verdicts}.** The repetitions took {minutes:.1f} min.

| entry | backbone | run | came out | what was compared |
|---|---|---|---|---|
{rows}

What it shows: on one machine with the same libraries and thread count the record is enough to get the same bits. What
it does not show: that another processor, another torch or more threads give the same bits. They need not, and
`dare reproduce` then names the first step at which two trainings part, the items whose answers differ, and whether the
difference is more than noise.
"""


@dataclass(frozen=True)
class Repeated:
    """One line of the table."""

    entry: str
    backbone: str
    kind: str
    found: dict[str, Any]

    @property
    def line(self) -> str:
        """Markdown."""
        what = " ".join(f"{part['what']}: {part['sentence']}" for part in self.found["parts"]) or self.found["sentence"]
        return f"| {self.entry} | {self.backbone} | {self.kind} | {self.found['verdict']} | {what} |"


def repeat_all(settings: Settings, folder: Path) -> list[Repeated]:
    """Trainings first, then what depends on them."""
    with open_database(settings) as database, database.read() as session:
        done = select(Run).where(Run.state == "succeeded", Run.kind.in_(("train", "evaluate")), Run.seed == 0)
        runs = session.execute(done.order_by(Run.depends_on.is_not(None), Run.id)).scalars().all()
        views = {run.id: run_view(session, run.id, viewer=LOCAL) for run in runs}
    environment = os.environ | ({"DARE_DATA": str(data)} if (data := settings.data or published_data()) else {})
    found = []
    for run in runs:
        view = views[run.id]
        assert view is not None
        trained = ["--trained-in", str(folder / run.depends_on)] if run.depends_on in views else []
        command = [sys.executable, "-m", "dare_platform", "reproduce", run.id, "--json", "--out", str(folder / run.id)]
        said = subprocess.run([*command, *trained], capture_output=True, text=True, check=False, env=environment)
        if said.returncode not in (0, 1) or not said.stdout:
            raise SystemExit(f"run {run.id} was not repeated: {said.stderr.strip()[-500:]}")
        answer = json.loads(said.stdout[said.stdout.index("{\n") :])
        found.append(Repeated(view.summary.entry_name, view.summary.backbone, run.kind, answer))
        print(found[-1].line, flush=True)
    return found


def main() -> None:
    """Repeat, print each line, write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=STUDY)
    out = parser.parse_args().out
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = repeat_all(Settings.from_environment(), Path(folder))
    counted = Counter(one.found["verdict"] for one in found)
    revision = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    import torch

    page = PAGE.format(
        runs=len(found),
        date=time.strftime("%-d %B %Y"),
        commit=revision.stdout.strip(),
        hardware=hardware(),
        torch=torch.__version__,
        verdicts=", ".join(f"{count} {verdict}" for verdict, count in counted.most_common()),
        minutes=(time.monotonic() - began) / 60,
        rows="\n".join(one.line for one in found),
    )
    out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
