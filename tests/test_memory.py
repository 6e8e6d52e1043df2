"""What a run needs is known before it starts: estimates without memory against what the real trainer takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from measured_memory import LARGER, Case, measure
from typer.testing import CliRunner

from dare.__main__ import app
from dare.allocations import Allocations, peak_of
from dare.catalog import backbone_directory, backbones
from dare.families.checkpoint_files import meta_model, read_config
from dare.family import family_of, model_class_of
from dare.memory import Estimate, MemoryPlanError, Plan, estimate
from dare.spec import LoraSettings
from dare.weights.files import default_sampling

PLAN = Plan(batch=4, length=48, completion=16, micro_batch=2, reference=True)
GIB = 2**30


def tiny(name: str = "llada-tiny", layers: int = 1, **changed: Any) -> Estimate:
    """Of a shipped backbone, cut to a few layers."""
    values = read_config(backbone_directory(name))
    key = "n_layers" if "n_layers" in values else "num_hidden_layers"
    values[key] = min(layers, values[key])
    return estimate(values, replace(PLAN, **changed), backbones()[name].sampling)


def total(phase: str, found: Estimate) -> int:
    return sum(found.phases[phase].values())


def test_allocations_are_counted_until_they_are_freed() -> None:
    with Allocations() as counted:
        one = torch.zeros(1000)
        two = one + 1
        assert (counted.alive, counted.peak) == (8000, 8000)
        view = two.view(10, 100)
        two.add_(1)
        assert counted.alive == 8000
        del one, two
        assert counted.alive == 4000
        del view
        assert (counted.alive, counted.peak) == (0, 8000)
        counted.start_again()
        torch.zeros(10)
        assert counted.peak == 40
    (saved, _), peak = peak_of(lambda: (torch.ones(5, requires_grad=True).exp().sum(), 0), device="meta")
    assert peak == 0
    assert saved.requires_grad


@pytest.mark.parametrize("name", sorted(backbones()))
def test_what_is_always_there_is_exact(name: str) -> None:
    numbers = backbones()[name].parameters
    values = read_config(backbone_directory(name))
    buffers = sum(buffer.nbytes for buffer in meta_model(model_class_of(values), values).buffers())
    found = tiny(name, layers=99, decodes=False)
    assert found.always == {
        "weights": 4 * numbers + buffers,
        "float32 master copies": 0,
        "optimiser state": 8 * numbers,
        "reference copy": 4 * numbers + buffers,
    }
    assert found.phases["scoring"]["gradients"] == 4 * numbers
    half = tiny(name, layers=99, dtype="bfloat16", decodes=False)
    assert half.always == {
        "weights": 2 * numbers + buffers,
        "float32 master copies": 4 * numbers,
        "optimiser state": 8 * numbers,
        "reference copy": 2 * numbers + buffers,
    }


def test_the_peak_is_what_is_always_there_and_the_phase_that_needs_most() -> None:
    found = tiny()
    most = max(total(phase, found) for phase in found.phases)
    assert found.total == sum(found.always.values()) + most
    assert total(found.deciding, found) == most


def test_more_rows_and_longer_rows_need_more_and_checkpointing_needs_less() -> None:
    base = tiny(layers=2)
    assert tiny(layers=2, batch=16).phases["rollout"] != base.phases["rollout"]
    assert total("update", tiny(layers=2, micro_batch=4)) > total("update", base)
    assert total("update", tiny(layers=2, length=96)) > total("update", base)
    assert total("update", tiny(layers=2, batch=400)) == total("update", base)  # in parts of the same size
    checkpointed = tiny(layers=2, gradient_checkpointing=True)
    assert checkpointed.phases["update"]["activations"] < base.phases["update"]["activations"] / 2
    assert checkpointed.always == base.always


def test_eager_attention_keeps_matrices_and_fused_attention_does_not() -> None:
    def grows(attention: str) -> float:
        short, long = (
            tiny(attention=attention, length=length).phases["update"]["activations"] for length in (200, 400)
        )
        return long / short

    assert grows("eager") > 2.2
    assert grows("sdpa") == grows("flash")
    assert 1.5 < grows("flash") < 2.05
    block = [tiny("sdar-tiny", attention=name, length=400).phases["update"]["activations"] for name in ("sdpa", "flex")]
    assert block[0] > block[1]  # a matrix for blocks


def test_adapters_need_no_reference_and_little_state() -> None:
    whole, adapted = tiny(), tiny(lora=LoraSettings(rank=4))
    assert adapted.always["reference copy"] == 0
    trained = adapted.phases["optimiser step"]["gradients"] // 4
    assert adapted.always["optimiser state"] == 8 * trained
    assert adapted.always["weights"] == whole.always["weights"] + 4 * trained
    config = read_config(backbone_directory("llada-tiny"))
    width, inner = config["d_model"], config["mlp_hidden_size"]
    assert trained == 4 * (4 * 2 * width + 2 * (width + inner))


def test_decoding_alone_and_offline_methods_have_fewer_phases() -> None:
    assert tiny(trains=False).phases.keys() == {"rollout"}
    assert tiny(trains=False).always.keys() == {"weights"}
    assert tiny(decodes=False).phases.keys() == {"scoring", "update", "optimiser step"}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"completion": 48}, "a prompt needs at least one"),
        ({"attention": "fast"}, "unknown attention 'fast'"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MemoryPlanError, match=sentence):
        replace(PLAN, **changed)


@pytest.mark.shared
def test_a_published_configuration_alone_is_enough(shared: Path) -> None:
    checkpoint = json.loads((shared / "goldens/llada/published.json").read_text())["checkpoints"][0]
    values = checkpoint["config"]
    family = family_of(values)
    sampling = default_sampling(family.model_class(values).config_class(**values), family)
    plan = Plan(batch=8, length=1024, completion=256, micro_batch=1, trains=False, dtype="bfloat16")
    found = estimate(values, plan, sampling)
    assert found.always["weights"] == checkpoint["total_size_published"]
    assert 15 * GIB < found.total < 20 * GIB


def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    runner = CliRunner()
    asked = ["memory", "sdar-tiny", "--length", "48", "--batch", "4", "--micro-batch", "2", "--algorithm", "d1"]
    done = runner.invoke(app, [*asked, "--json", "--set", "kl_coef=0.1", "--gen-length", "16"])
    assert done.exit_code == 0
    found, same = json.loads(done.stdout), tiny("sdar-tiny", layers=99)
    assert found["total"] == same.total
    assert found["always"] == same.always
    shown = runner.invoke(app, [*asked, "--lora", "2", "--dtype", "bfloat16"])
    assert shown.exit_code == 0
    assert "key-value cache" in shown.stdout
    assert "peak" in shown.stdout
    assert "Assumed:" in shown.stderr
    path = tmp_path / "config.json"
    path.write_text(json.dumps(read_config(backbone_directory("llada-tiny"))))
    assert runner.invoke(app, ["memory", str(path), "--length", "40", "--batch", "2"]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nobody", "--length", "40"], "unknown backbone 'nobody'"),
        (["llada-tiny", "--length", "40", "--algorithm", "bgop"], "unknown algorithm 'bgop'"),
        (["llada-tiny", "--length", "40", "--gen-length", "40"], "a prompt needs at least one"),
        (["llada-tiny", "--length", "0"], "--length is 0"),
    ],
)
def test_the_command_refuses_in_a_sentence(arguments: list[str], sentence: str) -> None:
    done = CliRunner().invoke(app, ["memory", *arguments])
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.split())


MEASURED = [
    *((architecture, {}) for architecture in LARGER),
    *((architecture, {"dtype": "bfloat16", "gradient_checkpointing": True}) for architecture in LARGER),
    ("LLaDAModelLM", {"lora": 8}),
    ("DreamModel", {"attention": "eager"}),
    ("SDARForCausalLM", {"kl_coef": 0.0, "micro_batch": 8}),
]


@pytest.mark.full
@pytest.mark.parametrize(("architecture", "changed"), MEASURED)
def test_the_estimate_is_what_two_real_steps_take(architecture: str, changed: dict[str, Any]) -> None:
    """Dense models to a few percent. Experts are never equally busy, and their lists are padded to the longest."""
    case = Case(architecture, **changed)
    found, taken = estimate(case.values(), case.plan, case.decoding(case.backbone())), measure(case)
    ratio = found.total / taken["peak"]
    sys.stdout.write(f"\n{architecture} {changed}: {found.total / 2**20:.1f} MiB estimated, {ratio:.3f} of the peak\n")
    assert abs(ratio - 1) < (0.25 if "Moe" in architecture else 0.1)


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the kernel says nothing of resident memory")
@pytest.mark.parametrize("architecture", ["LLaDAModelLM", "SDARForCausalLM"])
def test_the_estimate_is_how_much_a_process_grows(architecture: str) -> None:
    """Resident memory, with what the allocator does."""
    case = Case(architecture, batch=16)
    measured = Path(__file__).parent / "measured_memory.py"
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**16), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(measured), architecture, json.dumps({"batch": 16})],
        capture_output=True, check=True, text=True, env=environment,
    )  # fmt: skip
    taken = json.loads(done.stdout)
    found = estimate(case.values(), case.plan, case.decoding(case.backbone()))
    ratio = found.total / taken["peak"]
    sys.stdout.write(f"\n{architecture}: {found.total / 2**20:.1f} MiB estimated, {ratio:.3f} of the growth\n")
    assert abs(ratio - 1) < 0.25
