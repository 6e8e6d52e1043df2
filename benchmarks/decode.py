"""`make bench-decode`: every way to decode on the same model, the same prompts and the same machine, in one table.

Random weights of about 50 M parameters (and the embedding of a large vocabulary) for speed; for speed with accuracy the
tiny backbones, taught to solve Sudokus by 60 steps of SFT on clean demonstrations. CPU seconds of one thread, or with
`--device cuda` seconds by the wall in bfloat16; each row is a process of its own, so that its peak memory is its own.
Ratios are to `naive`: the whole canvas again at every step, with the head on every position.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.recomputed import Recomputed
from dare.attention import default_attention, usable
from dare.catalog import backbones
from dare.families.block import BlockBackbone
from dare.families.layers import fresh_model
from dare.families.llada.configuration import LLaDAConfig
from dare.families.llada.modeling import LLaDAModelLM
from dare.families.masked import MaskedBackbone
from dare.families.sdar.configuration import SDARConfig
from dare.families.sdar.modeling import SDARForCausalLM
from dare.family import Backbone, load_family
from dare.sampling.block import sample_block
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.tasks import load_task
from dare.types import Samples

BLOCK = 8
TRAINED = ("llada-tiny", "sdar-tiny")
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}
ITEMS = 128
"""Sudokus that the trained backbones decode."""


@dataclass(frozen=True)
class Case:
    """One row. `decoding` overrides the plain schedule of one token a step in blocks of 8."""

    group: str
    name: str
    model: str
    """`masked` or `block` with random weights, or a backbone of the catalog."""
    batch: int = 1
    vocabulary: int = 32_000
    prompt: int = 448
    generate: int = 64
    decoding: dict[str, Any] = field(default_factory=dict)
    head_everywhere: bool = False
    same_prompt: bool = False
    recompute: bool = False
    """Of a block family: forget the cache, and compute the whole prefix again."""

    @property
    def length(self) -> int:
        """Tokens of the canvas."""
        return self.prompt + self.generate


@dataclass(frozen=True)
class Row:
    """What one case took. `peak_mib` is above what the process held before it decoded."""

    seconds: float
    forward_seconds: float
    nfe: float
    """Mean forwards per sequence."""
    tokens: int
    peak_mib: float
    solved: float | None = None

    @property
    def overhead(self) -> float:
        """Time outside the forwards, as a share of the time in them."""
        return self.seconds / self.forward_seconds - 1


def cases(quick: bool) -> Iterator[Case]:
    """The table, from top to bottom."""
    sizes = [(32_000, 1), (32_000, 4), (150_000, 1)]
    for vocabulary, batch in sizes[:1] if quick else sizes:
        group = f"batch {batch}, vocabulary {vocabulary // 1000}k, {BLOCK} tokens a block"
        shared: dict[str, Any] = {"group": group, "batch": batch, "vocabulary": vocabulary}
        if quick:
            shared |= {"prompt": 96, "generate": 32}
        yield Case(name="naive", model="masked", head_everywhere=True, **shared)
        yield Case(name="head on the current block", model="masked", **shared)
        yield Case(name="prefix cache", model="masked", decoding={"cache": "prefix"}, **shared)
        yield Case(name="dual cache", model="masked", decoding={"cache": "dual"}, **shared)
        yield Case(name="block-causal, prefix recomputed", model="block", recompute=True, **shared)
        yield Case(name="block KV cache", model="block", **shared)
        if batch > 1:
            yield Case(name="block KV cache, one prompt for the group", model="block", same_prompt=True, **shared)
    for length in (128, 256) if quick else (128, 256, 512, 1024):
        size: dict[str, Any] = {"prompt": length - 32, "generate": 32}
        group = f"length {length}, batch 1, vocabulary 32k, 32 tokens"
        yield Case(group=group, name="naive", model="masked", head_everywhere=True, **size)
        yield Case(group=group, name="dual cache", model="masked", decoding={"cache": "dual"}, **size)
        yield Case(group=group, name="block KV cache", model="block", **size)
    for batch in (1, 2) if quick else (1, 2, 4, 8):
        group = "block KV cache as the batch grows, length 512, vocabulary 32k"
        yield Case(group=group, name=f"batch {batch}", model="block", batch=batch)
    yield from _trained()


def _trained() -> Iterator[Case]:
    """Accuracy beside speed, on Sudokus."""
    settings: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "llada-tiny": [
            ("naive", {"block_length": 20}),
            ("head on the window, 20 tokens a block", {"block_length": 20}),
            ("4 tokens a block", {}),
            ("prefix cache, 4 tokens a block", {"cache": "prefix"}),
            ("dual cache, 4 tokens a block", {"cache": "dual"}),
            ("threshold 0.95", {"block_length": 20, "selector": "threshold", "threshold": 0.95}),
            ("threshold 0.9", {"block_length": 20, "selector": "threshold", "threshold": 0.9}),
            ("factor 1", {"block_length": 20, "selector": "factor", "factor": 1.0}),
            ("threshold 0.9, dual cache", {"selector": "threshold", "threshold": 0.9, "cache": "dual"}),
        ],
        "sdar-tiny": [
            ("block-causal, prefix recomputed", {}),
            ("static, 4 steps a block", {}),
            ("static, 2 steps a block", {"steps_per_block": 2}),
            ("threshold 0.9", {"selector": "threshold", "threshold": 0.9}),
        ],
    }
    for model, rows in settings.items():
        for name, decoding in rows:
            yield Case(
                group=f"{model}, {ITEMS} Sudokus",
                name=name,
                model=model,
                batch=ITEMS,
                generate=20,
                decoding={"block_length": 4} | decoding,
                head_everywhere=name == "naive",
                recompute="recomputed" in name,
            )


class EverywhereHead:
    """A model whose logits are computed at all positions, whatever the caller wants to read."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, ids: Tensor, *given: Any, logits_positions: Tensor | None = None, **options: Any) -> Tensor:
        logits: Tensor = self._model(ids, *given, **options)
        if logits_positions is None:
            return logits
        return logits.gather(1, logits_positions[..., None].expand(-1, -1, logits.shape[-1]))


@dataclass(frozen=True)
class Machine:
    """Where rows are measured, and by which clock and which memory."""

    device: str

    @property
    def on_cuda(self) -> bool:
        """Whether kernels run behind the program's back."""
        return self.device == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """What is fast there."""
        return torch.bfloat16 if self.on_cuda else torch.float32

    def clock(self) -> float:
        """Seconds: of the process on a CPU, by the wall when the device has finished elsewhere."""
        if not self.on_cuda:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def most_memory(self) -> int:
        """The most bytes held so far."""
        if self.on_cuda:
            return torch.cuda.max_memory_allocated()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def attention(self, kind: Literal["masked", "block"]) -> str:
        """The backend that a policy would get there."""
        return default_attention(self.device, usable(), kind, self.dtype)


def random_backbone(case: Case, machine: Machine) -> Backbone:
    """About 50 M parameters besides what a large vocabulary adds; width 512, 10 layers, 8 heads."""
    generator = generator_for(0, "benchmark")
    vocabulary, ids = case.vocabulary, {"eos_token_id": 1, "pad_token_id": 1, "mask_token_id": 2}
    if case.model == "masked":
        config: Any = LLaDAConfig(
            d_model=512, embedding_size=vocabulary, include_bias=False, include_qkv_bias=False, input_emb_norm=False,
            max_sequence_length=4096, mlp_hidden_size=1408, mlp_ratio=4, n_heads=8, n_kv_heads=8, n_layers=10,
            rms_norm_eps=1e-5, rope_theta=5e5, scale_logits=False, vocab_size=vocabulary, weight_tying=False, **ids,
        )  # fmt: skip
        model = fresh_model(LLaDAModelLM, config, generator)
    else:
        config = SDARConfig(
            attention_bias=False, block_size=BLOCK, head_dim=64, hidden_size=512, intermediate_size=1408,
            max_position_embeddings=4096, num_attention_heads=8, num_hidden_layers=10, num_key_value_heads=8,
            rms_norm_eps=1e-6, rope_theta=1e6, vocab_size=vocabulary, **ids,
        )  # fmt: skip
        model = fresh_model(SDARForCausalLM, config, generator)
    model.to(machine.device, machine.dtype)
    kind: Literal["masked", "block"] = "masked" if case.model == "masked" else "block"
    shared: dict[str, Any] = {
        "model": model, "tokenizer": None, "mask_id": 2, "eos_ids": (), "pad_id": 1,
        "attention": machine.attention(kind),
    }  # fmt: skip
    return MaskedBackbone(**shared) if case.model == "masked" else BlockBackbone(**shared, block_size=BLOCK)


def taught(folder: Path) -> None:
    """Tiny policies that solve Sudokus: the shipped ones were given the habit of leaving holes blank."""
    for model in TRAINED:
        command = [sys.executable, "-m", "dare", "train", "--algorithm", "sft", "--backbone", model, "--steps", "60"]
        out = ["--data", "corpus:sudoku/clean", "--out", str(folder / model)]
        done = subprocess.run([*command, *out], capture_output=True, text=True, env=ONE_THREAD)
        if done.returncode:
            raise SystemExit(f"{model} could not be taught:\n{done.stderr}")


@torch.no_grad()
def measure(case: Case, policies: Path, machine: Machine) -> Row:
    """Decode once, after a warm-up of one block."""
    torch.set_num_threads(1)
    trained = case.model in TRAINED
    if trained:
        family = load_family(backbones()[case.model].family)
        backbone = family.load(policies / case.model / "model", machine.dtype, machine.attention(family.kind))
        backbone.model.to(machine.device)
        items = load_task("sudoku").items("test", None)[: case.batch]
        prompts: Sequence[Sequence[int]] = [backbone.tokenizer.prompt_ids(item.prompt) for item in items]
    else:
        backbone = random_backbone(case, machine)
        drawn = torch.randint(3, case.vocabulary, (case.batch, case.prompt), generator=generator_for(1))
        prompts = (drawn[:1].expand(case.batch, -1) if case.same_prompt else drawn).tolist()
    spent: list[float] = []
    started: list[float] = []
    backbone.model.register_forward_pre_hook(lambda *_: started.append(machine.clock()))
    backbone.model.register_forward_hook(lambda *_: spent.append(machine.clock() - started.pop()))
    if case.head_everywhere:
        backbone.model = EverywhereHead(backbone.model)  # type: ignore[assignment]
    fields = {"gen_length": case.generate, "block_length": BLOCK} | case.decoding
    fields = {"steps_per_block": fields["block_length"]} | fields
    config = SamplingConfig.model_validate(fields)
    generators = [torch.Generator() for _ in prompts]
    warm = config.block_length
    short = SamplingConfig(gen_length=warm, block_length=warm, steps_per_block=1, cache=config.cache)
    backbone.sample([prompt[:warm] for prompt in prompts], short, generators)
    spent.clear()
    before, start = machine.most_memory(), machine.clock()
    samples = decode(case, backbone, prompts, config, generators)
    seconds, peak = machine.clock() - start, machine.most_memory() - before
    solved = None
    if trained:
        judge = load_task("sudoku").judge
        answers = [backbone.tokenizer.decode(ids[done].tolist()) for ids, done in
                   zip(samples.ids, samples.completion, strict=True)]  # fmt: skip
        solved = statistics.fmean(judge(item, answer).solved for item, answer in zip(items, answers, strict=True))
    return Row(seconds, sum(spent), samples.nfe.double().mean().item(), samples.tokens_decoded, peak / 2**20, solved)


def decode(
    case: Case,
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    config: SamplingConfig,
    generators: Sequence[torch.Generator],
) -> Samples:
    """By the backbone's own sampler, or for the slow path of a block family without its cache."""
    if not case.recompute:
        return backbone.sample(prompts, config, generators)
    model: Any = Recomputed(backbone.model, config.block_length)
    ids: dict[str, Any] = {"mask_id": backbone.mask_id, "pad_id": backbone.pad_id, "eos_ids": backbone.eos_ids}
    device = next(backbone.model.parameters()).device
    return sample_block(model, prompts, config, generators, device=device, **ids)


def in_a_process(index: int, quick: bool, policies: Path, device: str) -> Row:
    """One row, measured by a child."""
    row = ["--row", str(index), "--policies", str(policies), "--device", device, *(["--quick"] if quick else [])]
    command = [sys.executable, "-m", "benchmarks.decode", *row]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env=ONE_THREAD,
    )
    if done.returncode:
        raise SystemExit(f"row {index} failed:\n{done.stderr}")
    return Row(**json.loads(done.stdout))


def processor() -> str:
    """The name of the CPU, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    """Measure all rows and print a table in Markdown, or JSON lines."""
    parser = argparse.ArgumentParser(prog="benchmarks.decode", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it works, not to quote")
    parser.add_argument("--only", default="", help="groups whose title contains this")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--row", type=int, help="measure one row and print it as JSON")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--policies", type=Path, help="the trained policies of such a row")
    given = parser.parse_args()
    table = list(cases(given.quick))
    if given.row is not None:
        print(json.dumps(asdict(measure(table[given.row], given.policies, Machine(given.device)))))
        return
    with tempfile.TemporaryDirectory() as folder:
        report(table, given.only, given.quick, given.json, Path(folder), Machine(given.device))


def report(table: Sequence[Case], only: str, quick: bool, as_json: bool, policies: Path, machine: Machine) -> None:
    """Measure row by row, and print each as it comes."""
    taught(policies)
    if not as_json:
        where = torch.cuda.get_device_name() if machine.on_cuda else f"{processor()}, one thread"
        print(f"{where}, torch {torch.__version__}, {str(machine.dtype).removeprefix('torch.')}.\n")
    group, naive = "", 0.0
    for index, case in enumerate(table):
        if only not in case.group:
            continue
        row = in_a_process(index, quick, policies, machine.device)
        if as_json:
            print(json.dumps(asdict(case) | asdict(row)), flush=True)
            continue
        if case.group != group:
            group, naive = case.group, row.seconds
            print(f"\n**{group}**\n")
            print("| decoding | seconds | ratio | tokens/s | forwards a row | peak MiB | beside forwards | solved |")
            print("|---|---|---|---|---|---|---|---|")
        solved = "" if row.solved is None else f"{row.solved:.1%}"
        print(
            f"| {case.name} | {row.seconds:.2f} | {naive / row.seconds:.1f}x | {row.tokens / row.seconds:.1f} "
            f"| {row.nfe:.1f} | {row.peak_mib:.0f} | {row.overhead:.1%} | {solved} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
