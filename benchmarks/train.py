"""`make bench-train`: one optimiser step of every method, the plain way and ours, in one table.

A model of about 50 M parameters with random weights, sequences of 48 and 256 tokens (41 % padding in a batch), 32 of
them generated. The plain way: padded, logits at every position, all views in one graph, a clean half for each view of a
block family. Ours: two phases, packed, the head on scored positions in chunks, one clean half for all views of a
completion. Both start from the same weights and the same views; a row is refused where loss or gradient norm differ.
CPU seconds of one thread, or with `--device cuda` seconds by the wall; each measurement is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from benchmarks.decode import BLOCK, ONE_THREAD, Case, Machine, processor, random_backbone
from benchmarks.resident import peak_of
from dare.algorithm import Algorithm, algorithm_names, load_algorithm
from dare.executor import PolicyCore
from dare.families.doubled import doubled_input
from dare.family import Backbone
from dare.sampling.tree import tree_of
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.spec import AlgorithmSpec, TrainSettings
from dare.types import PER_ROW, Credit, NoisyViews, Rollout, Trace

Way = Literal["plain", "ours"]
HEADER = """\
| method | views | plain s | ours s | faster | tokens/s | plain MiB | ours MiB | less |
|---|---|---|---|---|---|---|---|---|"""
SETTINGS: dict[str, dict[str, Any]] = {"d_tree_rpo": {"root_children": 2, "children": 2, "distillation": 0.0}}
"""A smaller tree, and without the objective on whole distributions, which the plain way does not have."""


@dataclass(frozen=True)
class Step:
    """One row: a method on a kind of family."""

    group: str
    method: str
    kind: Literal["masked", "block"]
    vocabulary: int = 32_000
    prompts: tuple[int, ...] = (16, 224)
    generate: int = 32
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    plain: bool = True
    """False for rows that only show how ours grows."""

    @property
    def algorithm(self) -> Algorithm:
        """With its hyperparameters."""
        return load_algorithm(AlgorithmSpec(name=self.method, hyperparameters=self.hyperparameters))


@dataclass(frozen=True)
class Measured:
    """What one step took. `peak_mib` is above weights, gradients and the optimiser's state."""

    seconds: float
    tokens: int
    """Real tokens of all views: prompt and window."""
    views: int
    peak_mib: float
    loss: float
    gradient_norm: float


def steps(quick: bool) -> Iterator[Step]:
    """The table, from top to bottom."""
    for kind in ("masked", "block"):
        for method in ("d1", "bgpo") if quick else algorithm_names():
            settings = SETTINGS.get(method, {})
            yield Step(f"{kind}, vocabulary 32k", method, kind, hyperparameters=settings)  # type: ignore[arg-type]
    for kind in ("masked", "block"):
        for method in ("d1", "bgpo"):
            given = {"mc_samples": 4} if method == "bgpo" else {}
            yield Step(f"{kind}, vocabulary 150k", method, kind, 150_000, hyperparameters=given)  # type: ignore[arg-type]
    for views in (4, 16) if quick else (4, 16, 64):
        yield Step("as the number of views grows", "bgpo", "masked", hyperparameters={"mc_samples": views}, plain=False)
    for vocabulary, length in ((32_000, 224), (150_000, 224), (150_000, 448)):
        sizes: dict[str, Any] = {"vocabulary": vocabulary, "prompts": (16, length)}
        yield Step("as vocabulary and length grow", "d1", "masked", plain=False, **sizes)


def rollout_of(step: Step, core: PolicyCore) -> Rollout:
    """Completions of the random model: one group of two, for preferences two pairs, for trees a tree of each prompt."""
    paired, shape = step.algorithm.trains_on == "preferences", core.asked.tree if core.asked else None
    copies = 2 if paired else 1 if shape is None else shape.leaves
    lengths = [length for length in step.prompts for _ in range(copies)]
    prompt = torch.randint(3, step.vocabulary, (len(step.prompts), max(lengths)), generator=generator_for(1))
    rows = torch.arange(len(lengths))
    sampled = core.sample(prompt.repeat_interleave(copies, dim=0), torch.tensor(lengths), rows)
    reward = torch.where(rows % 2 == 0, 1.0, -1.0 if paired else 0.0)
    trace = Trace(**{name: sampled.get(name) for name in PER_ROW})  # type: ignore[arg-type]
    if shape is not None:
        trace = replace(trace, tree=tree_of(sampled["path"], reward, shape))
    if trace.x0 is not None:
        trace = replace(trace, x0_reward=torch.rand(trace.x0.shape[:2], generator=generator_for(4)))
    return Rollout(
        ids=sampled["ids"],
        valid=sampled["valid"],
        window=sampled["window"],
        completion=sampled["completion"],
        group=rows // max(copies, 2),
        reward=reward,
        trace=trace,
    )


def plain_logprobs(backbone: Backbone, model: Any, views: NoisyViews) -> Tensor:
    """As `Backbone.logprobs`, with logits at every position of padded inputs, a view at a time where blocks are."""
    if backbone.block_size is None:
        return _read(backbone, model(views.ids, attention_mask=views.valid), views.target) * views.score
    rows = []
    for view in (views.rows(slice(i, i + 1)) for i in range(len(views))):
        whole = NoisyViews(**{f.name: getattr(view, f.name) for f in fields(view)} | {"score": view.window})
        doubled = doubled_input(whole, backbone.block_size)
        assert doubled is not None
        logits = model(doubled.ids, block_mask=doubled.sight, position_ids=doubled.position)
        target = view.target.flatten()[doubled.home]
        everywhere = torch.zeros_like(doubled.ids).masked_scatter(doubled.score, target)
        logp = _read(backbone, logits, everywhere)[doubled.score]
        flat = torch.zeros(view.ids.numel(), dtype=logp.dtype, device=logp.device)
        rows.append(flat.index_copy(0, doubled.home, logp).view(view.score.shape) * view.score)
    return torch.cat(rows)


def _read(backbone: Backbone, logits: Tensor, target: Tensor) -> Tensor:
    logits = logits.float()
    logits[..., backbone.mask_id] = -torch.inf
    return torch.log_softmax(logits, -1).gather(-1, target[..., None]).squeeze(-1).clamp(min=-1e4)


def plain_step(core: PolicyCore, views: NoisyViews, credit: Credit) -> tuple[float, float]:
    """Behaviour policy, reference, loss and gradient on all views at once."""
    model, needs = core.backbone.model, core.algorithm.requires
    with torch.no_grad():
        old = plain_logprobs(core.backbone, model, views) if "old" in needs else None
        ref = plain_logprobs(core.backbone, core.reference, views) if "ref" in needs else None
    model.train()
    core.optimiser.zero_grad(set_to_none=True)
    terms = core.algorithm.loss(plain_logprobs(core.backbone, model, views), old, ref, credit, views)
    loss = terms.num.sum() / terms.den.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(core.weights.masters, core.settings.gradient_clip)
    core.optimiser.step()
    return float(loss), float(norm)


def our_step(core: PolicyCore, views: NoisyViews, credit: Credit) -> tuple[float, float]:
    """What the executor does."""
    rows = {f.name: getattr(views, f.name) for f in fields(views)}
    scores = core.score_reference(**rows) if "ref" in core.algorithm.requires else {}
    units = {f.name: getattr(credit, f.name) for f in fields(credit)}
    each = torch.ones(len(credit.row))
    units |= {"learning_rate": core.settings.learning_rate * each, "progress": 0 * each}
    report = core.update(rows | ({"ref": scores["logp"]} if scores else {}), units)
    return report["loss"], report["gradient_norm"]


def measure(step: Step, way: Way, machine: Machine) -> Measured:
    """One step, after the optimiser's state and the gradients are there."""
    torch.set_num_threads(1)
    case = Case(step.group, step.method, step.kind, vocabulary=step.vocabulary)
    backbone = random_backbone(case, machine)
    settings = TrainSettings(
        learning_rate=1e-6, micro_batch=4, dtype=str(machine.dtype).removeprefix("torch.")  # type: ignore[arg-type]
    )  # fmt: skip
    config = SamplingConfig(gen_length=step.generate, block_length=BLOCK, steps_per_block=4, temperature=1.0)
    core = PolicyCore(backbone, step.algorithm, settings, config, 0)
    rollout = rollout_of(step, core)
    credit = core.algorithm.credit(rollout, generator_for(2))
    parts = zip(credit.row.tolist(), credit.part.tolist(), strict=True)
    generators = [generator_for(3, row, part) for row, part in parts]
    views = core.algorithm.forward_process(rollout, credit, backbone.mask_id, generators)
    for parameter in core.weights.masters:
        parameter.grad = torch.zeros_like(parameter)
    core.optimiser.step()
    views, credit = (_moved(part, machine.device) for part in (views, credit))

    def timed() -> tuple[float, float, float]:
        start = machine.clock()
        loss, norm = (plain_step if way == "plain" else our_step)(core, views, credit)
        return machine.clock() - start, loss, norm

    (seconds, loss, norm), peak = peak_of(timed, machine.device)
    return Measured(seconds, int(views.valid.sum()), len(views), peak / 2**20, loss, norm)


Part = TypeVar("Part", NoisyViews, Credit)


def _moved(part: Part, device: str) -> Part:
    return type(part)(**{f.name: getattr(part, f.name).to(device) for f in fields(part)})


def in_a_process(index: int, way: Way, quick: bool, device: str) -> Measured:
    """One measurement, by a child."""
    row = ["--row", str(index), "--way", way, "--device", device, *(["--quick"] if quick else [])]
    command = [sys.executable, "-m", "benchmarks.train", *row]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], env=ONE_THREAD)
    if done.returncode:
        raise SystemExit(f"row {index}, {way}, failed:\n{done.stderr}")
    return Measured(**json.loads(done.stdout))


def main() -> None:
    """Measure all rows and print a table in Markdown, each as it comes."""
    parser = argparse.ArgumentParser(prog="benchmarks.train", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two methods: to see that it works, not to quote")
    parser.add_argument("--only", default="", help="rows whose group or method contains this")
    parser.add_argument("--row", type=int, help="measure one row and print it as JSON")
    parser.add_argument("--way", choices=("plain", "ours"), default="ours")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    table, machine = list(steps(given.quick)), Machine(given.device)
    if given.row is not None:
        print(json.dumps(asdict(measure(table[given.row], given.way, machine))))
        return
    print(f"{processor()}, one thread, torch {torch.__version__}, {machine.dtype}.", flush=True)
    group = ""
    for index, step in enumerate(table):
        if given.only in f"{step.group}: {step.method}":
            if step.group != group:
                group = step.group
                print(f"\n**{group}**\n\n{HEADER}")
            ours = in_a_process(index, "ours", given.quick, given.device)
            plain = in_a_process(index, "plain", given.quick, given.device) if step.plain else None
            print(line(step, ours, plain), flush=True)


def line(step: Step, ours: Measured, plain: Measured | None) -> str:
    """One row of the table; SystemExit where the two ways did not do the same work."""
    name = step.method if plain else f"{step.method}, {ours.views} views, {step.vocabulary // 1000}k, {step.prompts[1]}"
    own = f"{ours.tokens / ours.seconds:.0f}"
    if plain is None:
        return f"| {name} | {ours.views} |  | {ours.seconds:.1f} |  | {own} |  | {ours.peak_mib:.0f} |  |"
    for what, a, b in (("loss", ours.loss, plain.loss), ("gradient", ours.gradient_norm, plain.gradient_norm)):
        if not math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-5):
            raise SystemExit(f"{step.method} on {step.kind}: {what} {a} by ours, {b} by the plain way")
    return (
        f"| {name} | {ours.views} | {plain.seconds:.1f} | {ours.seconds:.1f} | {plain.seconds / ours.seconds:.1f}x "
        f"| {own} | {plain.peak_mib:.0f} | {ours.peak_mib:.0f} | {plain.peak_mib / max(ours.peak_mib, 1):.1f}x |"
    )


if __name__ == "__main__":
    main()
