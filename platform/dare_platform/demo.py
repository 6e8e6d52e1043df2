"""The demo: a small real benchmark through the whole path, on this machine's CPU.

Everything it does is what a user could do by hand: migrate, submit entries, start workers and the site, look. It can be
interrupted and started again; entries that are there are not submitted twice, and what ran is not run again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from sqlalchemy import select

from dare.spec import Hyperparameters
from dare_platform import entries
from dare_platform.database import Database, migrate, open_database
from dare_platform.errors import PlatformError
from dare_platform.keeper import Keeper, free_port
from dare_platform.models import FINISHED, Backbone, BackboneRevision, Entry, Run
from dare_platform.registry import register_track
from dare_platform.settings import Settings
from dare_platform.tracks import Track, load_track
from dare_platform.uploads import Submission, UploadReport, read_builtin, read_upload
from dare_platform.viewer import LOCAL

WORKERS = 2
FIRST_PORT = 8501
PLAIN_LINE_SECONDS = 10.0


class DemoError(PlatformError):
    """The demo cannot go on; one sentence."""


@dataclass(frozen=True)
class Progress:
    """One look at the queue."""

    done: int
    failed: int
    total: int
    active: tuple[Run, ...]
    names: dict[str, str]
    """Run id -> what it is."""
    seconds_left: float | None


def run(settings: Settings, *, quick: bool, console: Console) -> int:
    """Run the demo to its end; the exit code."""
    started = time.monotonic()
    settings = replace(settings, data=settings.data or published_data())
    settings.home.mkdir(parents=True, exist_ok=True)
    migrate(settings)
    track = load_track("tiny")
    environment = {"DARE_HOME": str(settings.home)} | ({"DARE_DATA": str(settings.data)} if settings.data else {})
    keeper = Keeper(settings.home, environment)
    if settings.data:
        console.print(f"Published test items from {settings.data} are scored as transfer tasks.", highlight=False)
    with open_database(settings) as database:
        with database.write() as session:
            register_track(session, track, settings.data)
        ids = submit_all(database, track, settings, quick)
        for number in range(1, WORKERS + 1):
            keeper.ensure(f"worker-{number}", [sys.executable, "-m", "dare_platform", "worker"])
        site = next((kept for kept in keeper.kept() if kept.name == "site"), None)
        if site is None:
            port = free_port(FIRST_PORT)
            site = keeper.ensure("site", [sys.executable, "-m", "leaderboard", "--port", str(port)], port)
        address = f"http://127.0.0.1:{site.port}"
        console.print(f"The site: [bold]{address}[/]   Runs appear there while they train.", highlight=False)
        watch(database, ids, keeper, console)
        failed = show_boards(database, track, console)
    minutes = (time.monotonic() - started) / 60
    console.print(
        f"\nDone in {minutes:.1f} min. The site stays at [bold]{address}[/], with {WORKERS} workers for your own "
        "entries; `make down` stops them.",
        highlight=False,
    )
    return 1 if failed else 0


def published_data() -> Path | None:
    """The folder of published benchmark data beside the clone, where there is one."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "data"
    return folder if folder.is_dir() else None


def submit_all(database: Database, track: Track, settings: Settings, quick: bool) -> list[str]:
    """Submit every entry of the recipe that is not there yet; ids in order."""
    text = resources.files("dare").joinpath("recipes", f"{track.track}.yaml").read_text()
    seeds = track.seeds[:1] if quick else track.seeds
    ids = []
    for recipe in yaml.safe_load(text):
        submission = _submission(recipe, track, settings, seeds)
        with database.write() as session:
            key = f"demo/{track.name}/{submission.name}"
            ids.append(entries.submit(session, LOCAL, submission, key).entry_id)
    return ids


def _submission(recipe: dict[str, Any], track: Track, settings: Settings, seeds: Sequence[int]) -> Submission:
    given: Hyperparameters = recipe.get("hyperparameters", {})
    common: dict[str, Any] = {
        "assignments": given,
        "with_data": settings.data is not None,
        "seeds": tuple(seeds),
    }
    report: UploadReport
    if "file" in recipe:
        file = example(recipe["file"])
        report = read_upload(
            file.name, file.read_bytes(), None, track, list(track.backbones),
            name=recipe["name"], kind=recipe["kind"], **common,
        )  # fmt: skip
    else:
        report = read_builtin(
            recipe["algorithm"], None, track, list(track.backbones), entry_name=recipe["name"], **common
        )
    if report.submission is None:
        raise DemoError(f"the demo's entry {recipe['name']} is refused: {report.problems[0].text}")
    return report.submission


def example(path: str) -> Path:
    """A file of the repository that this package was installed from."""
    root = Path(__file__).resolve().parents[2]
    if not (root / path).is_file():
        raise DemoError(f"{path} is not there; run the demo from a clone of the repository")
    return root / path


def watch(database: Database, ids: Sequence[str], keeper: Keeper, console: Console) -> None:
    """Show the queue until every run of the entries has ended."""
    with _display(console) as show:
        while True:
            progress = look(database, ids)
            show(progress)
            if progress.done == progress.total:
                return
            if not any(kept.name.startswith("worker") for kept in keeper.kept()):
                raise DemoError(f"no worker is alive; the last words are in {keeper.log('worker-1')}")
            time.sleep(0.5)


def look(database: Database, ids: Sequence[str]) -> Progress:
    """Where the runs of some entries stand, and how long the rest may take at the pace so far."""
    with database.read() as session:
        rows = session.execute(
            select(Run, Entry.name, Backbone.slug)
            .join(Entry, Entry.id == Run.entry_id)
            .join(BackboneRevision, BackboneRevision.id == Run.backbone_revision_id)
            .join(Backbone, Backbone.id == BackboneRevision.backbone_id)
            .where(Run.entry_id.in_(ids))
            .order_by(Run.started_at)
        ).all()
        session.expunge_all()
    runs = [row[0] for row in rows]
    ended = [r for r in runs if r.state in FINISHED]
    lengths: dict[str, list[float]] = {}
    for r in ended:
        if r.state == "succeeded" and r.started_at is not None and r.finished_at is not None:
            lengths.setdefault(r.kind, []).append(r.finished_at - r.started_at)
    waiting = [r for r in runs if r.state not in FINISHED]
    known = all(r.kind in lengths for r in waiting)
    left = sum(sum(lengths[r.kind]) / len(lengths[r.kind]) for r in waiting) / WORKERS if known and waiting else None
    return Progress(
        done=len(ended),
        failed=sum(r.state == "failed" for r in ended),
        total=len(runs),
        active=tuple(r for r in runs if r.state in ("leased", "preparing", "working", "finalizing")),
        names={r.id: f"{name} · {backbone} · seed {r.seed}" for r, name, backbone in rows},
        seconds_left=left,
    )


def in_words(progress: Progress) -> str:
    """`12 of 66 runs, about 5 min left`."""
    text = f"{progress.done} of {progress.total} runs"
    if progress.failed:
        text += f", {progress.failed} failed"
    if progress.seconds_left is not None:
        minutes = progress.seconds_left / 60
        text += f", about {minutes:.0f} min left" if minutes >= 1.5 else ", about a minute left"
    return text


def lines(progress: Progress) -> list[str]:
    """What each active run is doing."""
    said = []
    for r in progress.active:
        text = f"{progress.names[r.id]}: {r.stage or r.kind}"
        if r.step is not None:
            text += f" {r.step}" + (f" of {r.of}" if r.of else "")
        if r.reward is not None:
            text += f", reward {r.reward:.2f}"
        said.append(text)
    return said


@contextmanager
def _display(console: Console) -> Iterator[Any]:
    """Live bars on a terminal; a line every few seconds where output is a file."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4) as live:

            def draw(progress: Progress) -> None:
                bar = ProgressBar(total=max(progress.total, 1), completed=progress.done, width=50)
                live.update(Group(Text(in_words(progress)), bar, *(Text("  " + line) for line in lines(progress))))

            yield draw
        return
    last = [-PLAIN_LINE_SECONDS]

    def tell(progress: Progress) -> None:
        if time.monotonic() - last[0] >= PLAIN_LINE_SECONDS or progress.done == progress.total:
            last[0] = time.monotonic()
            doing = "; ".join(lines(progress))
            console.print(in_words(progress) + (f" · {doing}" if doing else ""), highlight=False, soft_wrap=True)

    yield tell


def show_boards(database: Database, track: Track, console: Console) -> bool:
    """Print every board of the track; whether any row failed."""
    from dare_platform.rankings import board
    from dare_platform.statistics import in_words as percent

    failed = False
    for backbone in track.backbones:
        with database.read() as session:
            made = board(session, track, backbone)
        task = next(column.task for column in made.columns if column.role == "ranked")
        table = Table(
            "entry", "what", "greedy solved", "sampled reward", "CPU s to train", "seeds", box=None, title=backbone
        )
        for row in made.rows:
            cell = row.cells[task]
            failed = failed or row.status == "failed"
            table.add_row(
                row.name,
                row.kind,
                percent(cell.greedy) if cell.greedy else cell.state,
                percent(cell.sampled) if cell.sampled else "",
                f"{row.cost.train_device_seconds:.0f}" if row.cost else "",
                str(row.seeds),
            )
        console.print(table)
    console.print(f"\nWhat this shows: {track.proves}\nWhat it does not: {track.does_not_prove}", highlight=False)
    return failed
