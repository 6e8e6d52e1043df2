"""`python -m dare.algorithm_pages`: what is generated in docs/algorithms, from the algorithms' own files.

A page is written by hand but for three parts between markers: facts, hyperparameters and metrics. The overview has the
table of all methods and the support matrix. `problems` says what is missing or stale.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from dare import recipe
from dare.algorithm import Algorithm, load_algorithm
from dare.catalog import algorithms, backbones, families, support_of
from dare.commands.terminal import say
from dare.families.doubled import in_blocks
from dare.sampling.tree import tree_of
from dare.seeds import generator_for
from dare.source import AlgorithmSource
from dare.spec import AlgorithmSpec
from dare.types import Credit, NoisyViews, Rollout, Trace, TreeShape

COMMAND = "python -m dare.algorithm_pages"
SECTIONS = (
    "Idea", "Objective", "Estimator and cost", "Hyperparameters", "Logged metrics", "Pitfalls", "Our reading",
)  # fmt: skip
MEANING: Mapping[str, str] = {
    "clip_fraction_low": "share of ratios that the clip holds back from below, where the advantage is negative",
    "clip_fraction_high": "share of ratios that the clip holds back from above, where the advantage is positive",
    "log_ratio_abs": "mean absolute log-ratio to the behaviour policy, in nats",
    "kl": "the penalty before its weight, mean over what it is summed over",
    "margin": "by how many nats the chosen answer gained more on the reference than the rejected one",
    "prefers_chosen": "share of pairs with a positive margin",
    "chosen_gain": "nats that chosen answers gained on the reference",
    "bound_gap": "mean distance of the upper from the lower score",
}
PROMPT, WINDOW, PER_STEP, BLOCK, VOCABULARY = 4, 20, 2, 4, 10
MASK = VOCABULARY - 1


@dataclass(frozen=True)
class Measured:
    """Gradient-carrying forwards of a completion, and what the loss logs, on a small rollout without any model."""

    masked: float
    block: float
    metrics: tuple[str, ...]


def measure(algorithm: Algorithm) -> Measured:
    """Hooks on log-probabilities that nobody computed: costs and names do not depend on them."""
    rollout = small_rollout(algorithm)
    credit = algorithm.credit(rollout, generator_for(0, "credit"))
    parts = zip(credit.row.tolist(), credit.part.tolist(), strict=True)
    generators = [generator_for(0, "views", row, part) for row, part in parts]
    views = algorithm.forward_process(rollout, credit, MASK, generators)
    rows = len(rollout.ids)
    blocks = in_blocks(views.score, BLOCK).any(-1).sum() / (WINDOW / BLOCK)
    return Measured(len(views) / rows, float(blocks) / rows, tuple(sorted(_logged(algorithm, credit, views))))


def small_rollout(algorithm: Algorithm) -> Rollout:
    """Two prompts of 4 tokens with a few completions of 20 each, decoded from the left, two tokens a step."""
    spec = algorithm.rollout()
    shape = spec.tree if spec is not None else None
    group = 2 if algorithm.trains_on == "preferences" else shape.leaves if shape is not None else 4
    rows, width = 2 * group, PROMPT + WINDOW
    ids = torch.randint(0, MASK, (rows, width), generator=generator_for(0, "pages"))
    window = (torch.arange(width) >= PROMPT).expand(rows, width)
    step_map = torch.where(window, (torch.arange(width) - PROMPT) // PER_STEP + 1, 0)
    steps = WINDOW // PER_STEP
    reward = torch.linspace(-1, 1, group).repeat(2)
    trace = Trace(
        step_map=step_map,
        x0=ids[:, None].repeat(1, steps, 1),
        confidence=torch.full((rows, steps, width), 0.5),
        x0_reward=reward[:, None] * torch.arange(1, steps + 1) / steps,
    )
    if shape is not None:
        ids, path = _tree_path(ids, window, shape)
        trace = replace(trace, tree=tree_of(path, reward, shape))
    return Rollout(
        ids=ids,
        valid=torch.ones_like(window),
        window=window,
        completion=window.clone(),
        group=torch.arange(2).repeat_interleave(group),
        reward=reward,
        trace=trace,
    )


def _tree_path(ids: torch.Tensor, window: torch.Tensor, shape: TreeShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Completions that share what the nodes above them decided, and the states of those nodes, [N, depth + 1, S]."""
    row, place = torch.arange(len(ids)), torch.arange(ids.shape[1]) - PROMPT
    shared, states = ids.clone(), [torch.where(window, MASK, ids)]
    for level in range(1, shape.depth + 1):
        first = row // shape.below(level) * shape.below(level)
        end = WINDOW * level // shape.depth
        part = window & (place >= WINDOW * (level - 1) // shape.depth) & (place < end)
        shared = torch.where(part, ids[first], shared)
        states.append(torch.where(window & (place >= end), MASK, shared))
    return shared, torch.stack(states, dim=1)


def _logged(algorithm: Algorithm, credit: Credit, views: NoisyViews) -> set[str]:
    logp = torch.where(views.score, -1.0, 0.0)
    needs = algorithm.requires
    old, ref = (logp if name in needs else None for name in ("old", "ref"))
    names = set(algorithm.loss(logp, old, ref, credit, views).metrics)
    if "full" in needs:
        full = torch.full((int(views.score.sum()), VOCABULARY), 1 / VOCABULARY).log()
        names |= set(algorithm.aux_loss(full, credit, views, 0.5).metrics)
    return names


def problems(directory: Path) -> list[str]:
    """What is missing or stale in docs/algorithms, one sentence each."""
    found = []
    for name in algorithms():
        page = directory / f"{name}.md"
        if not page.is_file():
            sections = ", ".join(SECTIONS)
            found.append(f"{page.name} is missing: write it by the sections {sections}, then `{COMMAND}`")
            continue
        headings = tuple(re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE))
        if headings != SECTIONS:
            found.append(f"{page.name} has the sections {', '.join(headings)}; needed: {', '.join(SECTIONS)}")
        if cost_of(page) is None:
            found.append(f"{page.name} has no line `Cost: ...`")
    if found:
        return found
    stale = [path.name for path, text in generated(directory).items() if path.read_text(encoding="utf-8") != text]
    return [f"{name} is stale: `{COMMAND}`" for name in stale]


def generated(directory: Path) -> dict[Path, str]:
    """Every file of docs/algorithms that has a generated part, as it should be."""
    measured = {name: measure(load_algorithm(AlgorithmSpec(name=name))) for name in algorithms()}
    files = {}
    for name, source in algorithms().items():
        page = directory / f"{name}.md"
        text = page.read_text(encoding="utf-8")
        parts = {
            "facts": facts(source),
            "hyperparameters": hyperparameters(source),
            "metrics": _metrics(measured[name]),
        }
        files[page] = _filled(text, parts, page.name)
    overview = directory / "README.md"
    parts = {"methods": methods(directory, measured), "support": support_matrix()}
    files[overview] = _filled(overview.read_text(encoding="utf-8"), parts, overview.name)
    return files


def facts(source: AlgorithmSource) -> str:
    """The first lines of a page: paper, file, data, records, kinds of family."""
    records = ", ".join(f"`{name}`" for name in sorted(source.record)) or "nothing"
    published = " and ".join(sorted(source.published_for, reverse=True))
    return (
        f"{_paper(source)} · [`{source.name}.py`](../../runners/dare/algorithms/{source.name}.py), "
        f"{_lines(source)} lines, derives from `{source.base}` · trains on {source.trains_on} · "
        f"records {records} · published for {published} families"
    )


def hyperparameters(source: AlgorithmSource) -> str:
    """Every field with its type, default and meaning; inherited ones too."""
    rows = ["| name | type | default | meaning |", "|---|---|---|---|"]
    for field in source.hyperparameters:
        kind = field.type if field.choices is None else ", ".join(str(choice) for choice in field.choices)
        rows.append(f"| `{field.name}` | {_cell(kind)} | {_number(field.default)} | {_cell(field.help)} |")
    return "\n".join(rows) if len(rows) > 2 else "None."


def methods(directory: Path, measured: Mapping[str, Measured]) -> str:
    """All methods, one a row."""
    rows = [
        "| method | paper | trains on | records | forwards | masked | block | published for | lines |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, source in algorithms().items():
        records = ", ".join(sorted(source.record)) or "-"
        published = ", ".join(sorted(source.published_for, reverse=True))
        masked, block = (f"{round(value, 2):g}" for value in (measured[name].masked, measured[name].block))
        link, cost = f"[{source.class_name}]({name}.md)", cost_of(directory / f"{name}.md")
        cells = (link, _paper(source), source.trains_on, records, cost, masked, block, published, _lines(source))
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def support_matrix() -> str:
    """Methods by families; below it the backbones of each family, and the reason of every unsupported pair."""
    names = list(families())
    rows = [
        f"| method | {' | '.join(f'`{n}` ({families()[n].kind})' for n in names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    reasons = []
    for name, source in algorithms().items():
        cells = []
        for family in names:
            pair = support_of(source, family)
            cells.append({"published": "published", "extension": "extension", "unsupported": "no"}[pair.level])
            if pair.level == "unsupported":
                reasons.append(f"- {source.class_name} on `{family}`: it {pair.reason}.")
        rows.append(f"| [{source.class_name}]({name}.md) | {' | '.join(cells)} |")
    known = {family: [n for n in recipe.backbone_names() if recipe.family_of(n) == family] for family in names}
    shipped = {family: [n for n, r in backbones().items() if r.family == family and r.tiny] for family in names}
    listed = [f"- `{family}`: {', '.join(known[family])}; tiny: {', '.join(shipped[family])}" for family in names]
    unsupported = reasons or ["Every sampler records everything that some method asks for, so no pair is unsupported."]
    return "\n".join([*rows, "", "Backbones, which take what their family supports:", "", *listed, "", *unsupported])


def cost_of(page: Path) -> str | None:
    """What a page declares of forwards per completion."""
    found = re.search(r"^Cost: (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return found.group(1) if found else None


def _metrics(measured: Measured) -> str:
    if not measured.metrics:
        return "None of its own; those of every run are in the [overview](README.md#reading-the-pages)."
    rows = ["| name | meaning |", "|---|---|"]
    return "\n".join([*rows, *(f"| `{name}` | {MEANING[name]} |" for name in measured.metrics)])


def _filled(text: str, parts: Mapping[str, str], file: str) -> str:
    for name, content in parts.items():
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not marked.search(text):
            raise ValueError(f"{file} has no place for its {name}: lines <!-- {name} --> and <!-- end -->")
        text = marked.sub(lambda found, content=content: f"{found[1]}{content}\n{found[2]}", text, count=1)  # type: ignore[misc]
    return text


def _paper(source: AlgorithmSource) -> str:
    found = re.search(r"arXiv (\d{4}\.\d{5})", source.text)
    return f"[{found[1]}](https://arxiv.org/abs/{found[1]})" if found else "-"


def _lines(source: AlgorithmSource) -> int:
    return len(source.text.splitlines())


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(
    directory: Annotated[Path, typer.Argument(help="The folder of the pages.")] = Path("docs/algorithms"),
) -> None:
    """Write what is generated in the pages of the methods."""
    for path, text in generated(directory).items():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            say(f"{path}: written")


if __name__ == "__main__":
    typer.run(main)
