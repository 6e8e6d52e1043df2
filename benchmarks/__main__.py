"""`make bench`: every speed-up against the slow path, on the same work in the same run, as a ratio.

CPU seconds of this process, one thread. Each pair alternates (A B A B ...), and the ratio is the median of the pairs,
so that a machine whose speed drifts does not decide.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import attention
from benchmarks.pairs import Row, paired, seconds
from benchmarks.recomputed import Recomputed
from dare.algorithm import algorithm_names, load_algorithm
from dare.catalog import backbone_directory, backbones
from dare.data import load_data
from dare.executor import Executor
from dare.family import Backbone, load_family
from dare.linear_logp import linear_logp
from dare.sampling.block import sample_block
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.spec import AlgorithmSpec, Budget, TrainSettings
from dare.tasks import load_task

DATA = {"prompts": "prompts:sudoku", "demonstrations": "corpus:sudoku/clean", "preferences": "preferences:sudoku"}


def load(name: str) -> Backbone:
    """A shipped backbone."""
    return load_family(backbones()[name].family).load(backbone_directory(name))


def prompts(backbone: Backbone, count: int) -> list[list[int]]:
    """Prompts of the Sudoku test."""
    return [backbone.tokenizer.prompt_ids(item.prompt) for item in load_task("sudoku").items("test", None)[:count]]


def block_cache(pairs: int) -> Row:
    """Decode 64 Sudokus with the exact cache and by recomputation; the tokens must be equal."""
    backbone = load("sdar-tiny")
    ids, config = prompts(backbone, 64), SamplingConfig(gen_length=20, block_length=4, steps_per_block=4)
    answers = []

    def cached() -> None:
        answers.append(backbone.sample(ids, config, [generator_for(0, row) for row in range(64)]).ids)

    @torch.no_grad()
    def recomputed() -> None:
        model: Any = Recomputed(backbone.model, 4)
        generators = [generator_for(0, row) for row in range(64)]
        samples = sample_block(
            model, ids, config, generators,
            mask_id=backbone.mask_id, pad_id=backbone.pad_id, eos_ids=backbone.eos_ids,
        )  # fmt: skip
        answers.append(samples.ids)

    row = paired("decode sdar-tiny: exact KV cache against recomputing the prefix", cached, recomputed, pairs)
    if not all(torch.equal(answers[0], other) for other in answers):
        raise SystemExit("cached and recomputed decoding differ")
    return row


def head_on_scored_positions(pairs: int) -> Row:
    """Log-probabilities and gradients at 128 of 1,024 positions of a vocabulary of 32,000."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1024, 256, generator=generator)
    weight = torch.randn(32_000, 256, generator=generator) / 16
    target = torch.randint(0, 32_000, (1024,), generator=generator)
    scored = torch.arange(0, 1024, 8)

    def gradient(logp: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        h, w = hidden.clone().requires_grad_(True), weight.clone().requires_grad_(True)
        logp(h, w).sum().backward()  # type: ignore[no-untyped-call]
        assert h.grad is not None
        return h.grad[scored]

    def ours() -> Tensor:
        return gradient(lambda h, w: linear_logp(h[scored], w, target[scored]))

    def full() -> Tensor:
        return gradient(lambda h, w: torch.log_softmax(h @ w.T, -1).gather(1, target[:, None])[scored, 0])

    torch.testing.assert_close(ours(), full(), rtol=1e-4, atol=1e-5)
    return paired("head: scored positions in chunks against all positions at once", ours, full, pairs)


def shared_clean_half(pairs: int) -> Row:
    """Score eight views of 16 completions: one clean half for all against one for each."""
    backbone = load("sdar-tiny")
    executor = _executor(backbone, "bgpo", {"mc_samples": 8})
    rollout, _, _ = executor._rollout(0, [0, 1])
    credit = executor.algorithm.credit(rollout, generator_for(0))
    views = executor._views(rollout, credit, 0, 0)

    @torch.no_grad()
    def together() -> Tensor:
        return backbone.logprobs(backbone.model, views)

    @torch.no_grad()
    def apart() -> Tensor:
        parts = [views.rows(torch.arange(k, len(views), 8)) for k in range(8)]
        return torch.cat([backbone.logprobs(backbone.model, part) for part in parts])

    order = torch.cat([torch.arange(k, len(views), 8) for k in range(8)])
    torch.testing.assert_close(together()[order], apart(), rtol=0, atol=1e-5)
    return paired("score 8 views a completion on sdar-tiny: shared clean half against one each", together, apart, pairs)


def two_phase_memory(_: int) -> Row:
    """Peak of what autograd keeps for 16 views a completion: chunks of 16 views against all at once."""
    few, all_at_once = (_kept_by_autograd(micro_batch) / 2**20 for micro_batch in (16, 10_000))
    name = "update with 256 views: tensors kept for the backward pass, in chunks against at once"
    return Row(name, few, all_at_once, all_at_once / few, "MiB", 1)


def _kept_by_autograd(micro_batch: int) -> int:
    """Most bytes that were saved for a backward pass at any moment of one step."""
    executor = _executor(load("llada-tiny"), "bgpo", {"mc_samples": 16}, micro_batch)
    now, peak = 0, 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal now, peak
        now += tensor.numel() * tensor.element_size()
        peak = max(peak, now)
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        nonlocal now
        now -= tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        executor.step()
    return peak


def steps() -> Iterator[tuple[str, str, float]]:
    """CPU seconds of one training step of the tiny track, per method and backbone: no ratio, a price list."""
    settings = {"bgpo": {"mc_samples": 2}}
    for backbone in ("llada-tiny", "sdar-tiny"):
        for name in algorithm_names():
            executor = _executor(load(backbone), name, settings.get(name, {}), prompts_per_step=8, inner_epochs=2)
            executor.step()
            yield backbone, name, statistics.median(seconds(executor.step) for _ in range(3))


def _executor(
    backbone: Backbone, name: str, hyperparameters: dict[str, Any], micro_batch: int = 128, **settings: int
) -> Executor:
    algorithm = load_algorithm(AlgorithmSpec(name=name, hyperparameters=hyperparameters))
    data = load_data(DATA[algorithm.trains_on], Path())
    block, per_block = (20, 4) if backbone.block_size is None else (4, 2)
    return Executor(
        backbone=backbone,
        algorithm=algorithm,
        data=data,
        settings=TrainSettings(**{"prompts_per_step": 2, **settings}, learning_rate=3e-4, micro_batch=micro_batch),
        sampling=SamplingConfig(gen_length=20, block_length=block, steps_per_block=per_block, temperature=1.0),
        budget=Budget(optimiser_steps=100, wall_seconds=3600),
        seed=0,
    )


def runner(pairs: int) -> Iterator[Row]:
    """What a training step is made of."""
    for compare in (block_cache, shared_clean_half, head_on_scored_positions, two_phase_memory):
        yield compare(pairs)


TABLES = {"runner": runner, "attention": attention.rows}


def main() -> None:
    """Print a table, or JSON lines."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("table", nargs="?", choices=sorted(TABLES), default="runner")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"# {platform.machine()}, torch {torch.__version__}, one thread, median of {given.pairs} pairs")
    for row in TABLES[given.table](given.pairs):
        if given.json:
            print(json.dumps(asdict(row)))
        else:
            print(f"{row.ratio:6.2f}x  {row.fast:8.3f} against {row.slow:8.3f} {row.unit}  {row.name}", flush=True)
    if given.table == "runner":
        for backbone, name, taken in steps():
            print(f"{taken:8.3f} CPU s a step  {name} on {backbone} (8 prompts x 8, 2 inner epochs)", flush=True)


if __name__ == "__main__":
    main()
