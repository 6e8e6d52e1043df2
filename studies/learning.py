"""`make study`: does every method learn from the reward? Lazy Sudoku, three seeds, beside a control that cannot.

Every method that trains on prompts or demonstrations, the shuffled-advantage control and the untouched backbone, on
both tiny backbones of the demo, with its data, rollouts and optimiser. The budget is a number of optimiser steps: the
question is whether a method learns, not which one learns more from as many forwards, which is what a track asks. Each
finished run is one line of the results file, and a study that is started again does what is missing. `--report` prints
the tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from dare.algorithm import Algorithm, algorithm_class, algorithm_names, load_algorithm
from dare.catalog import backbone_directory, backbones
from dare.data import load_data
from dare.data.batches import prompt_rows
from dare.executor import Executor, MismatchError
from dare.family import Backbone, load_family
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.spec import AlgorithmSpec, Budget, Hyperparameters
from dare.tasks import load_task
from dare_platform.statistics import difference_interval, mean_interval, welch_p
from dare_platform.tracks import load_track

ROOT = Path(__file__).parents[1]
CONTROL = "shuffled advantage (control)"
UNTOUCHED = "untouched"
STEPS, SEEDS, ITEMS = 30, 3, 256
BACKBONES = ("llada-tiny", "sdar-tiny")
FEWER_VIEWS: dict[str, Hyperparameters] = {"bgpo": {"mc_samples": 2}, "ebpo": {"mc_samples": 2}}
"""Where the published number of views would cost more than a laptop has; every other field keeps its default."""


@dataclass(frozen=True)
class Run:
    """One line of the results file. Rewards are means over held-out items, at temperature 1 and the rollout's steps."""

    backbone: str
    method: str
    seed: int
    reward: float
    solved: float
    """Greedy, one token a step."""
    forwards: float
    """Gradient-carrying forwards per completion."""
    steps: int
    seconds: float
    """CPU seconds of training."""
    refused: str = ""
    """Why the pair cannot be run."""


def methods() -> Iterator[tuple[str, Algorithm | None]]:
    """Every method that is enrolled by existing, and what they are compared with."""
    yield UNTOUCHED, None
    yield CONTROL, algorithm_class(ROOT / "examples" / "shuffled_advantage" / "algorithm.py", "shuffled")()
    for name in algorithm_names():
        method = load_algorithm(AlgorithmSpec(name=name, hyperparameters=FEWER_VIEWS.get(name, {})))
        if method.trains_on != "preferences":  # the track has none; tests/test_preferences.py holds pairs out
            yield name, method


def run(name: str, method: Algorithm | None, backbone_name: str, seed: int) -> Run:
    """Train and look at held-out items."""
    cell = load_track("tiny").backbones[backbone_name]
    backbone = load_family(backbones()[backbone_name].family).load(backbone_directory(backbone_name))
    rollout, greedy = cell.rollout, cell.greedy
    spent, taken, steps = 0.0, 0.0, 0
    recipe = None if method is None else cell.recipe_for(method.trains_on)
    if method is not None and recipe is not None:
        steps = STEPS if method.trains_on == "prompts" else recipe.budget.optimiser_steps
        budget = Budget(optimiser_steps=steps, wall_seconds=3600)
        try:
            data = load_data(recipe.data, Path())
            executor = Executor(backbone, method, data, recipe.settings, rollout, budget, seed)
        except MismatchError as error:
            return Run(backbone_name, name, seed, 0.0, 0.0, 0.0, 0, 0.0, refused=str(error))
        started = time.process_time()
        while executor.used.steps < steps:
            executor.step()
        taken, spent = time.process_time() - started, executor.used.gradient_forwards
    sampled = answers(backbone, rollout, seed, 2)
    one = answers(backbone, greedy, seed, 1)
    reward = statistics.fmean(verdict.reward for verdict in sampled)
    solved = statistics.fmean(verdict.solved for verdict in one)
    return Run(backbone_name, name, seed, reward, solved, spent, steps, taken)


@torch.no_grad()
def answers(backbone: Backbone, config: SamplingConfig, seed: int, samples: int) -> list[Any]:
    """Verdicts on `samples` completions of each held-out item."""
    task = load_task("sudoku")
    items = [item for item in task.items("test", None)[:ITEMS] for _ in range(samples)]
    prompt, length = prompt_rows(backbone, [item.prompt for item in items])
    prompts = [row[:n].tolist() for row, n in zip(prompt, length.tolist(), strict=True)]
    generators = [generator_for(seed, "study", row) for row in range(len(items))]
    found = backbone.sample(prompts, config, generators)
    texts = [
        backbone.tokenizer.decode(ids[kept].tolist()) for ids, kept in zip(found.ids, found.completion, strict=True)
    ]
    return [task.judge(item, text) for item, text in zip(items, texts, strict=True)]


def study(file: Path, only: str) -> None:
    """Do what the results file does not hold yet."""
    torch.set_num_threads(1)
    done = {(row.backbone, row.method, row.seed) for row in read(file)}
    todo = [
        (name, method, backbone, seed)
        for seed in range(SEEDS)
        for backbone in BACKBONES
        for name, method in methods()
        if only in (name, "") and (backbone, name, seed) not in done
    ]
    with Progress() as progress:
        bar = progress.add_task("runs", total=len(todo))
        for name, method, backbone, seed in todo:
            progress.update(bar, description=f"{name} on {backbone}, seed {seed}")
            line = json.dumps(asdict(run(name, method, backbone, seed)))
            with file.open("a", encoding="utf-8") as results:
                results.write(line + "\n")
            progress.advance(bar)


def read(file: Path) -> list[Run]:
    """Finished runs."""
    if not file.is_file():
        return []
    return [Run(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def report(rows: list[Run]) -> Iterator[str]:
    """A table per backbone in Markdown: each method beside the control, in percent."""
    for backbone in BACKBONES:
        of = {name: [row for row in rows if (row.backbone, row.method) == (backbone, name)] for name, _ in methods()}
        yield f"\n**{backbone}**\n"
        yield "| method | sampled reward, % | above the control, points | p | greedy solved, % | forwards | CPU s |"
        yield "|---|---|---|---|---|---|---|"
        control = [100 * row.reward for row in of[CONTROL]]
        for name, runs in of.items():
            if not runs:
                yield f"| {name} | not measured | | | | | |"
                continue
            if runs[0].refused:
                yield f"| {name} | {runs[0].refused} | | | | | |"
                continue
            reward, solved = [100 * row.reward for row in runs], [100 * row.solved for row in runs]
            above = ""
            if name not in (CONTROL, UNTOUCHED) and len(control) > 1 and len(reward) > 1:
                low, high = difference_interval(reward, control)
                gap = statistics.fmean(reward) - statistics.fmean(control)
                above = f"{gap:+.1f} ({low:+.1f} to {high:+.1f}) | {welch_p(reward, control):.3f}"
            forwards, seconds = (statistics.fmean(getattr(row, f) for row in runs) for f in ("forwards", "seconds"))
            cost = f"{forwards:.0f} | {seconds:.0f}" if name != UNTOUCHED else " | "
            yield f"| {name} | {_mean(reward)} | {above or ' | '} | {_mean(solved)} | {cost} |"


def _mean(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.1f} (one seed)"
    found = mean_interval(values)
    return f"{found.value:.1f} ± {found.half_width:.1f}"


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(prog="studies.learning", description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "studies" / "learning.jsonl")
    parser.add_argument("--only", default="", help="one method by name")
    parser.add_argument("--report", action="store_true", help="only print the tables of what is there")
    given = parser.parse_args()
    if not given.report:
        study(given.results, given.only)
    print("\n".join(report(read(given.results))))


if __name__ == "__main__":
    main()
