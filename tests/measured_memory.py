"""What two steps of the real trainer take on a model of some million parameters.

`python tests/measured_memory.py ARCHITECTURE '{"dtype": "bfloat16"}'` prints as JSON how much the process grew.
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from dare.algorithm import load_algorithm
from dare.allocations import peak_of
from dare.data.corpus import alphabet
from dare.executor import PolicyCore
from dare.families.layers import fresh_model
from dare.family import Backbone, family_names, load_family
from dare.memory import Plan
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.spec import AlgorithmSpec, LoraSettings, TrainSettings
from dare.types import NoisyViews, Rollout

LARGER = {
    "LLaDAModelLM": {"d_model": 256, "mlp_hidden_size": 704, "n_heads": 8, "n_kv_heads": 8},
    "DreamModel": {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8, "num_key_value_heads": 2},
    "SDARForCausalLM": {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8, "head_dim": 32},
    "SDARMoeForCausalLM": {"hidden_size": 256, "moe_intermediate_size": 128, "num_attention_heads": 8},
    "LLaDA2MoeModelLM": {"hidden_size": 256, "moe_intermediate_size": 128, "num_attention_heads": 8},
}
ROWS, LAYERS = 8192, 4


@dataclass(frozen=True)
class Case:
    """One run."""

    architecture: str
    batch: int = 8
    length: int = 160
    completion: int = 96
    micro_batch: int = 4
    dtype: str = "float32"
    lora: int | None = None
    gradient_checkpointing: bool = False
    attention: str = "sdpa"
    kl_coef: float = 0.1

    @property
    def family(self) -> str:
        """Its folder."""
        return next(n for n in family_names() if self.architecture in load_family(n).architectures)

    @property
    def plan(self) -> Plan:
        """The same for the estimate."""
        return Plan(
            batch=self.batch,
            length=self.length,
            completion=self.completion,
            micro_batch=self.micro_batch,
            reference=self.kl_coef > 0,
            dtype=self.dtype,  # type: ignore[arg-type]
            lora=LoraSettings(rank=self.lora) if self.lora else None,
            gradient_checkpointing=self.gradient_checkpointing,
            attention=self.attention,
        )

    def config(self) -> Any:
        """The tiny configuration with larger numbers."""
        tiny = load_family(self.family).tiny(alphabet(), generator_for(0, "measure"), self.architecture).model.config
        values = {
            **tiny.to_dict(),
            **LARGER[self.architecture],
            "vocab_size": ROWS,
            "architectures": [self.architecture],
        }
        layers = "n_layers" if "n_layers" in values else "num_hidden_layers"
        values |= {layers: LAYERS} | ({"embedding_size": ROWS} if "embedding_size" in values else {})
        return type(tiny)(**{key: value for key, value in values.items() if key != "model_type"})

    def values(self) -> dict[str, Any]:
        """As a config.json says it."""
        return {**self.config().to_dict(), "architectures": [self.architecture]}

    def backbone(self) -> Backbone:
        """With random weights."""
        family: Any = load_family(self.family)
        tokenizer = family.tiny(alphabet(), generator_for(0, "measure"), self.architecture).tokenizer
        model = fresh_model(family.architectures[self.architecture].model, self.config(), generator_for(1, "measure"))
        backbone: Backbone = family.backbone(model.to(getattr(torch, self.dtype)), tokenizer, self.attention)
        return backbone

    def decoding(self, backbone: Backbone) -> SamplingConfig:
        """Few steps: their number does not matter."""
        block = backbone.block_size or 32
        return SamplingConfig(gen_length=self.completion, block_length=block, steps_per_block=1, temperature=1.0)


def step(case: Case, backbone: Backbone) -> None:
    """What the trainer does: decode, score, score by the reference, update; twice, so that gradients are there."""
    algorithm = load_algorithm(AlgorithmSpec(name="d1", hyperparameters={"kl_coef": case.kl_coef}))
    settings = TrainSettings(
        learning_rate=1e-3,
        micro_batch=case.micro_batch,
        dtype=case.dtype,  # type: ignore[arg-type]
        lora=LoraSettings(rank=case.lora) if case.lora else None,
        gradient_checkpointing=case.gradient_checkpointing,
    )
    core = PolicyCore(backbone, algorithm, settings, case.decoding(backbone), 0)
    prompts = (case.batch + 7) // 8
    width = case.length - case.completion
    prompt = torch.randint(10, 40, (prompts, width), generator=generator_for(2)).repeat_interleave(8, dim=0)[
        : case.batch
    ]
    lengths = torch.full((case.batch,), width)
    for _ in range(2):
        sampled = core.sample(prompt, lengths, torch.arange(case.batch))
        ids = sampled["ids"]
        window = torch.arange(case.length) >= width
        everything = window.expand_as(ids)
        rollout = Rollout(
            ids=ids,
            valid=torch.ones_like(ids, dtype=torch.bool),
            window=everything,
            completion=everything,
            group=torch.arange(prompts).repeat_interleave(8)[: case.batch],
            reward=torch.rand(case.batch, generator=generator_for(3)),
        )
        credit = algorithm.credit(rollout, generator_for(4))
        generators = [generator_for(5, str(row)) for row in range(len(credit.row))]
        views = algorithm.forward_process(rollout, credit, backbone.mask_id, generators)
        rows = {f.name: getattr(views, f.name) for f in fields(NoisyViews)}
        rows["old"] = core.score(**rows)["logp"]
        if case.kl_coef:
            rows["ref"] = core.score_reference(**{name: value for name, value in rows.items() if name != "old"})["logp"]
        units = {f.name: getattr(credit, f.name) for f in fields(credit)}
        each = torch.ones(len(credit.row))
        core.update(rows, units | {"learning_rate": 1e-3 * each, "progress": 0 * each})


def measure(case: Case) -> dict[str, int]:
    """Bytes of tensors at the peak, the weights among them."""
    backbone = case.backbone()
    weights = sum(tensor.nbytes for tensor in backbone.model.state_dict().values())
    _, peak = peak_of(lambda: step(case, backbone))
    return {"weights": weights, "peak": weights + peak}


def grown(case: Case) -> dict[str, int]:
    """How much larger the process became than it was with weights alone."""
    torch.set_num_threads(1)
    small = Case(case.architecture, batch=2, length=40, completion=32, kl_coef=0.0)
    step(small, small.backbone())  # imports, thread pools and lazy initialisation
    gc.collect()
    backbone = case.backbone()
    weights = sum(tensor.nbytes for tensor in backbone.model.state_dict().values())
    before = _resident("VmRSS")
    step(case, backbone)
    return {"weights": weights, "peak": weights + _resident("VmHWM") - before}


def _resident(which: str) -> int:
    """Bytes now, or at most so far. `getrusage` would count those of the process that started this one."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(which))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    sys.stdout.write(json.dumps(grown(Case(sys.argv[1], **json.loads(sys.argv[2])))))
