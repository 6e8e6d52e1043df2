"""Adapters: only they train, the base is the reference, and what is exported is what was trained."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_executor import algorithm_named, executor
from tiny import FAMILIES, tiny, train_job, write_job
from torch import Tensor, nn
from typer.testing import CliRunner

from dare.__main__ import app
from dare.algorithm import GRPO, algorithm_names
from dare.catalog import backbone_directory, backbones
from dare.data.corpus import alphabet
from dare.executor import Executor
from dare.family import Backbone, family_names, load_family
from dare.lora import (
    CONFIG,
    WEIGHTS,
    AdapterFileError,
    Adapters,
    LoraError,
    MergeError,
    SilentBaseError,
    TargetError,
    attach,
    load_adapter,
)
from dare.run import load_backbone, rehearse_adapters, run
from dare.seeds import generator_for
from dare.spec import Event, JobSpec, LoraSettings, TrainSettings
from dare.weights.merge import MERGE_TOLERANCE, distance, export, logits_on, probe_of

PROMPTS = ["S0321003004002100", "C1 2 3=6"]
BASE = backbones()["llada-tiny"].ref
MODELS = [(family, architecture) for family in family_names() for architecture in load_family(family).architectures]
every_model = pytest.mark.parametrize(("family", "architecture"), MODELS)
LORA = LoraSettings(rank=4, alpha=8)


def fresh(family: str, architecture: str | None = None) -> Backbone:
    return load_family(family).tiny(alphabet(), generator_for(0, "tests", family), architecture)


def adapted(backbone: Backbone, settings: LoraSettings = LORA, seed: int = 0) -> Adapters:
    return attach(backbone.model, settings, generator_for(seed, "lora"))


def busy(adapters: Adapters, seed: int = 3) -> Adapters:
    """The same adapters with a part that is not zero."""
    generator = generator_for(seed, "busy")
    with torch.no_grad():
        for tensor in adapters.tensors.values():
            tensor.copy_(torch.empty(tensor.shape).uniform_(-0.1, 0.1, generator=generator))
    return adapters


def frozen(adapters: Adapters) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in adapters.model.named_parameters() if "lora_" not in n}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# The model


@every_model
def test_every_target_is_matched_once_in_every_layer_and_nothing_else_is(family: str, architecture: str) -> None:
    expected = {
        "LLaDAModelLM": 4 * 6,  # not ff_out, which is also the name of the head
        "LLaDAMoEModelLM": 4 * 4,  # experts are stacked: attention alone
        "DreamModel": 4 * 7,
        "SDARForCausalLM": 4 * 7,
        "SDARMoeForCausalLM": 4 * 4,
        "LLaDA2MoeModelLM": 4 * 2,  # one matrix for queries, keys and values
    }
    backbone = fresh(family, architecture)
    adapters = adapted(backbone)
    assert len(adapters.layers) == expected[architecture]
    trains = {name for name, parameter in backbone.model.named_parameters() if parameter.requires_grad}
    assert trains == {name.replace(".weight", ".default.weight") for name in adapters.tensors}
    head = backbone.model.get_output_embeddings()  # type: ignore[operator]
    assert not any(layer.get_base_layer() is head for layer in adapters.layers.values())


@every_model
def test_adapters_that_have_not_trained_change_no_bit_and_switched_off_ones_never_do(
    family: str, architecture: str
) -> None:
    backbone = fresh(family, architecture)
    probe = probe_of(backbone, PROMPTS)
    base = logits_on(probe, backbone)
    adapters = adapted(backbone)
    assert torch.equal(logits_on(probe, backbone), base)
    busy(adapters)
    assert distance(logits_on(probe, backbone), base) > 0.01
    with adapters.switched_off():
        assert torch.equal(logits_on(probe, backbone), base)
    assert all(parameter.requires_grad for parameter in adapters.tensors.values())


@every_model
def test_the_merged_model_is_the_adapted_one_and_merging_leaves_no_trace(family: str, architecture: str) -> None:
    backbone = fresh(family, architecture)
    probe = probe_of(backbone, PROMPTS)
    plain = dict(backbone.model.state_dict())
    adapters = busy(adapted(backbone))
    before, weights = logits_on(probe, backbone), frozen(adapters)
    with adapters.merged():
        assert distance(logits_on(probe, backbone), before) < MERGE_TOLERANCE
        assert backbone.model.state_dict().keys() == plain.keys()
    assert torch.equal(logits_on(probe, backbone), before)
    assert same(frozen(adapters), weights)


def test_the_scale_is_alpha_over_rank() -> None:
    """The adapters' part is linear in alpha: doubling it doubles what is added to the weights."""
    added = []
    for alpha in (4, 8):
        adapters = busy(adapted(tiny("llada"), LoraSettings(rank=4, alpha=alpha)))
        layer = next(iter(adapters.layers.values()))
        before = layer.get_base_layer().weight.detach().clone()
        with adapters.merged():
            added.append(layer.get_base_layer().weight.detach() - before)
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        torch.testing.assert_close(added[-1], (alpha / 4 * b @ a).detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(added[1], 2 * added[0], rtol=1e-4, atol=1e-6)
    assert (LoraSettings(rank=4).scale, LoraSettings(rank=4, alpha=8).scale) == (1, 2)


def test_the_start_depends_on_the_generator_alone_and_leaves_global_randomness_alone() -> None:
    starts = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        random.seed(noise)
        state, python = torch.random.get_rng_state(), random.getstate()
        starts.append({name: tensor.clone() for name, tensor in adapted(tiny("sdar")).state().items()})
        assert torch.equal(torch.random.get_rng_state(), state)
        assert random.getstate() == python
    assert same(*starts)
    assert not same(starts[0], adapted(tiny("sdar"), seed=1).state())


@pytest.mark.parametrize(
    ("family", "targets", "sentence"),
    [
        ("llada", ("ff_out",), r"'ff_out' matches model\.transformer\.ff_out, which is in no layer"),
        ("sdar", ("q_proj", "lm_head"), "'lm_head' matches lm_head, which is in no layer"),
        ("sdar", ("attn_out",), "'attn_out' matches 0 linear layers of 4 layers; there are down_proj, gate_proj"),
        ("llada", ("attn_norm",), "'attn_norm' matches 0 linear layers"),
    ],
)
def test_a_target_that_is_no_layer_is_refused_with_the_names_there_are(
    family: str, targets: tuple[str, ...], sentence: str
) -> None:
    backbone = tiny(family)
    with pytest.raises(TargetError, match=sentence):
        adapted(backbone, LoraSettings(rank=2, targets=targets))
    assert all(parameter.requires_grad for parameter in backbone.model.parameters())  # it is as it was


def test_a_target_that_some_layers_lack_is_refused() -> None:
    backbone = tiny("llada")
    backbone.model.model.transformer.blocks[1].up_proj = nn.Identity()  # type: ignore[union-attr, index]
    with pytest.raises(TargetError, match=r"'up_proj' matches 3 linear layers of 4 layers \(model\.transformer\."):
        adapted(backbone)


def test_adapters_go_onto_a_plain_model_only() -> None:
    backbone = tiny("llada")
    adapted(backbone)
    with pytest.raises(LoraError, match="has adapters already"):
        adapted(backbone)


def test_dropout_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"dropout is 0\.05, but only 0 can be used"):
        LoraSettings(rank=4, dropout=0.05)


# On disk


def saved(tmp_path: Path, backbone: Backbone) -> Adapters:
    adapters = busy(adapted(backbone))
    adapters.save(tmp_path / "adapter", BASE)
    return adapters


# peft's own wrapper asks transformers 5.24 for a property by its older name
wrapped_by_peft = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")


@wrapped_by_peft
@every_model
def test_a_saved_adapter_is_read_by_us_and_by_peft(family: str, architecture: str, tmp_path: Path) -> None:
    from peft import PeftModel

    backbone = fresh(family, architecture)
    saved(tmp_path, backbone)
    probe = probe_of(backbone, PROMPTS)
    expected = logits_on(probe, backbone)
    ours, theirs = fresh(family, architecture), fresh(family, architecture)
    load_adapter(ours.model, tmp_path / "adapter", BASE)
    assert torch.equal(logits_on(probe, ours), expected)
    PeftModel.from_pretrained(theirs.model, str(tmp_path / "adapter"))  # adapts the model in place
    assert torch.equal(logits_on(probe, theirs), expected)


@wrapped_by_peft
def test_an_adapter_that_peft_saved_is_read_by_us(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    backbone = tiny("sdar")
    theirs = get_peft_model(backbone.model, LoraConfig(r=2, lora_alpha=3, target_modules=["q_proj", "up_proj"]))
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_B" in name:
                parameter.uniform_(-0.1, 0.1, generator=torch.Generator().manual_seed(0))
    theirs.save_pretrained(str(tmp_path))
    probe = probe_of(backbone, PROMPTS)
    ours = tiny("sdar")
    load_adapter(ours.model, tmp_path, BASE)
    assert torch.equal(logits_on(probe, ours), logits_on(probe, backbone))


def test_all_saves_of_one_adapter_are_the_same_bytes(tmp_path: Path) -> None:
    adapters = busy(adapted(tiny("sdar")))
    for name in range(4):
        adapters.save(tmp_path / str(name), BASE)
    for file in (CONFIG, WEIGHTS):
        assert len({(tmp_path / str(name) / file).read_bytes() for name in range(4)}) == 1
    targets = json.loads((tmp_path / "0" / CONFIG).read_text())["target_modules"]
    assert targets == sorted(targets)


def _configured(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        known = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps({**known, **values}))

    return change


def _without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors.pop(sorted(tensors)[0])
    save_file(tensors, folder / WEIGHTS)


def _cut(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:100])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_configured(use_dora=True), "use_dora = True; only plain LoRA is read"),
        (_configured(peft_type="IA3"), "peft_type = 'IA3'"),
        (_configured(target_modules="all-linear"), "target_modules = 'all-linear'"),
        (_configured(r=2), r"is \(4, 64\) instead of \(2, 64\)"),
        (_without_a_tensor, r"the adapter lacks model\.transformer\.blocks\.0\.attn_out\.lora_A\.weight"),
        (_cut, "holds no adapter that can be read"),
        (shutil.rmtree, "holds no adapter that can be read"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(change: Callable[[Path], None], sentence: str, tmp_path: Path) -> None:
    saved(tmp_path, tiny("llada"))
    change(tmp_path / "adapter")
    with pytest.raises(AdapterFileError, match=sentence):
        load_adapter(tiny("llada").model, tmp_path / "adapter", BASE)


def test_an_adapter_of_another_base_is_refused_with_both_hashes(tmp_path: Path) -> None:
    saved(tmp_path, tiny("llada"))
    other = BASE.model_copy(update={"name": "other", "weights_sha256": "0" * 64})
    with pytest.raises(AdapterFileError, match=rf"hash to {BASE.weights_sha256[:12]}; those of other hash to 0{{12}}"):
        load_adapter(tiny("llada").model, tmp_path / "adapter", other)


# The export


@every_model
def test_the_export_loads_as_the_trained_policy(family: str, architecture: str, tmp_path: Path) -> None:
    backbone = fresh(family, architecture)
    adapters = busy(adapted(backbone))
    probe = probe_of(backbone, PROMPTS)
    done = export(adapters, backbone, probe, tmp_path)
    again = load_family(family).load(tmp_path)
    done.check(logits_on(probe, again))
    assert distance(logits_on(probe, again), logits_on(probe, backbone)) < MERGE_TOLERANCE


def test_a_trained_adapter_whose_merge_is_the_base_is_refused(tmp_path: Path) -> None:
    backbone = tiny("llada")
    adapters = adapted(backbone)  # B is zero, as after reentrant checkpointing that lets no gradient through
    probe = probe_of(backbone, PROMPTS)
    with pytest.raises(SilentBaseError, match="exactly the logits of the base: nothing was exported"):
        export(adapters, backbone, probe, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    export(adapters, backbone, probe, tmp_path / "model", trained=False)


def test_an_export_that_loads_as_the_base_or_as_anything_else_is_refused(tmp_path: Path) -> None:
    backbone = tiny("sdar")
    base = tiny("sdar")
    probe = probe_of(backbone, PROMPTS)
    done = export(busy(adapted(backbone)), backbone, probe, tmp_path)
    with pytest.raises(SilentBaseError, match="load as the base"):
        done.check(logits_on(probe, base))
    with torch.no_grad():
        next(base.model.parameters()).mul_(1.01)
    with pytest.raises(MergeError, match="give logits that differ by"):
        done.check(logits_on(probe, base))


def test_a_merge_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    backbone = tiny("sdar")
    adapters = busy(adapted(backbone))
    layer = next(iter(adapters.layers.values()))
    kept = layer.get_delta_weight
    layer.get_delta_weight = lambda name: 2 * kept(name)  # a scale that is applied twice
    with pytest.raises(MergeError, match="merged and adapted model differ by"):
        export(adapters, backbone, probe_of(backbone, PROMPTS), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_what_a_bfloat16_base_would_round_away_survives_the_export(tmp_path: Path) -> None:
    backbone = tiny("llada")
    backbone.model.to(torch.bfloat16)
    adapters = busy(adapted(backbone))
    assert {tensor.dtype for tensor in adapters.tensors.values()} == {torch.float32}
    with torch.no_grad():
        for name, tensor in adapters.tensors.items():
            tensor.mul_(1e-3 if "lora_B" in name else 1)
    name, layer = next(iter(adapters.layers.items()))
    base = layer.get_base_layer().weight.detach().clone()
    added = layer.get_delta_weight("default").detach()
    assert float(((base.float() + added).bfloat16() != base).float().mean()) < 0.1  # nearly all gone, in bfloat16
    probe = probe_of(backbone, PROMPTS)
    done = export(adapters, backbone, probe, tmp_path)
    done.check(logits_on(probe, load_family("llada").load(tmp_path)))
    torch.testing.assert_close(load_file(tmp_path / "model.safetensors")[f"{name}.weight"], base.float() + added)
    assert layer.get_base_layer().weight.dtype == torch.bfloat16
    assert torch.equal(layer.get_base_layer().weight, base)


# Training


def trains(family: str, name: str, **settings: Any) -> Executor:
    small = {"lora": LORA, "learning_rate": 1e-2, "inner_epochs": 1, "prompts_per_step": 2}
    return executor(family, algorithm_named(name), **{**small, **settings})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", algorithm_names())
def test_only_adapters_train_whatever_the_algorithm(name: str, family: str) -> None:
    run = trains(family, name, learning_rate=1e-3)  # small: an update must leave rewards that differ
    assert run.core.adapters is not None
    base, start = frozen(run.core.adapters), {n: t.clone() for n, t in run.core.adapters.state().items()}
    first = run.step().metrics
    assert first.get("log_ratio_abs", 0) == 0  # before the first update there is one policy
    for _ in range(6):  # a batch without a difference in reward moves nothing
        if run.used.moving_updates < 2:
            run.step()
    assert run.used.moving_updates == 2
    assert same(frozen(run.core.adapters), base)
    moved = [n for n, tensor in run.core.adapters.state().items() if not torch.equal(tensor, start[n])]
    assert moved == list(start)  # the first update moves every B, the second every A


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", algorithm_names())
def test_the_adapters_gradient_does_not_depend_on_the_micro_batch(name: str, family: str) -> None:
    ends = []
    for size in (1000, 5):
        run = trains(family, name, micro_batch=size)
        assert run.core.adapters is not None
        busy(run.core.adapters)
        run.core.optimiser = torch.optim.SGD(run.core.weights.masters, lr=0.1)
        run.step()
        ends.append(torch.cat([tensor.flatten() for tensor in run.core.adapters.state().values()]))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("family", ["llada", pytest.param("sdar", marks=pytest.mark.full)])
def test_the_reference_is_the_base_without_a_second_model(family: str) -> None:
    """After updates, scores of the reference are those of the untouched backbone, bit by bit."""
    algorithm = GRPO(kl_coef=0.1)
    run = executor(family, algorithm, lora=LORA, learning_rate=1e-2)
    assert run.core.reference is None
    for _ in range(2):
        report = run.step()
    assert report.metrics["kl"] > 0
    rollout, _, _ = run._rollout(0, [0, 1])
    credit = algorithm.credit(rollout, torch.Generator())
    views = run._views(rollout, credit, 0, 0)
    rows = {name: getattr(views, name) for name in views.__dataclass_fields__}
    base = tiny(family)
    with torch.no_grad():
        expected = base.logprobs(base.model, views)
    assert torch.equal(run.core.score_reference(**rows)["logp"], expected)
    assert not torch.equal(run.core.score(**rows)["logp"], expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_with_checkpointing_every_adapter_still_gets_a_gradient(family: str) -> None:
    """Frozen embeddings give the first layer an input without gradient: where reentrant checkpointing loses all."""
    gradients = []
    for switch in (False, True):
        run = trains(family, "d1", gradient_checkpointing=switch)
        assert run.core.adapters is not None
        busy(run.core.adapters)
        run.core.optimiser = torch.optim.SGD(run.core.weights.masters, lr=1.0)
        run.step()
        gradients.append({name: p.grad for name, p in run.core.adapters.tensors.items()})
    assert all(bool(gradient.any()) for gradient in gradients[1].values() if gradient is not None)
    assert None not in gradients[1].values()
    assert same(*gradients)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [pytest.param("d1", marks=pytest.mark.full), "sft"])
def test_two_steps_a_restore_and_two_steps_are_four(name: str) -> None:
    whole, half = trains("sdar", name), trains("sdar", name)
    for now in (whole, whole, whole, whole, half, half):
        now.step()
    state = half.core.state()
    assert all("lora_" in tensor for tensor in state["model"])
    assert not state["reference"]
    resumed = trains("sdar", name)
    resumed.used = half.used
    resumed.core.restore(state)
    for _ in range(2):
        resumed.step()
    assert whole.core.adapters is not None
    assert resumed.core.adapters is not None
    assert same(whole.core.adapters.state(), resumed.core.adapters.state())


# Runs


def lora_job(family: str, algorithm: str = "d1", steps: int = 2, **settings: Any) -> JobSpec:
    settings = {"lora": {"rank": 4}, "learning_rate": 1e-2, **settings}
    return train_job(family, algorithm, steps, **settings)


@pytest.mark.parametrize("family", ["llada", pytest.param("sdar", marks=pytest.mark.full)])
def test_a_run_leaves_an_adapter_and_the_merged_model(family: str, tmp_path: Path) -> None:
    job = lora_job(family)
    result = run(write_job(tmp_path, job))
    assert result.outcome == "succeeded", result.message
    paths = {artifact.path for artifact in result.artifacts}
    assert paths >= {f"adapter/{CONFIG}", f"adapter/{WEIGHTS}", "model/model.safetensors", "model/config.json"}
    base = load_backbone(job, backbone_directory(f"{family}-tiny"))
    merged = load_family(family).load(tmp_path / "model")
    probe = probe_of(base, PROMPTS)
    untrained = logits_on(probe, base)
    load_adapter(base.model, tmp_path / "adapter", job.backbone)
    assert distance(logits_on(probe, base), logits_on(probe, merged)) < MERGE_TOLERANCE
    assert distance(untrained, logits_on(probe, merged)) > 100 * MERGE_TOLERANCE


@pytest.mark.full
def test_a_run_that_is_stopped_and_continued_ends_as_the_undisturbed_one(tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    job = lora_job("sdar", "bgpo", steps=4)
    run(write_job(whole, job))

    def stop(event: Event) -> None:
        if event.kind == "step" and event.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run(write_job(halves, job), stop)
    result = run(halves)
    assert result.outcome == "succeeded", result.message
    for file in ("adapter/" + WEIGHTS, "model/model.safetensors"):
        assert same(load_file(whole / file), load_file(halves / file))


def test_a_run_whose_updates_had_no_gradient_says_so(tmp_path: Path) -> None:
    """Equal rewards everywhere: the exported policy is the base, and the result says it."""
    body = (
        "from dataclasses import dataclass, replace\nfrom dare.algorithm import GRPO\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Mine(GRPO):\n"
        "    def credit(self, rollout, generator):\n"
        "        return super().credit(replace(rollout, reward=rollout.reward * 0), generator)\n"
    )
    job = lora_job("llada", steps=1)
    assert job.train is not None
    spec = job.train.model_copy(update={"algorithm": replace_source(job)})
    result = run(write_job(tmp_path, job.model_copy(update={"train": spec}), body))
    assert result.outcome == "succeeded", result.message
    assert "No update had a gradient: the policy is the untrained one." in result.message


def replace_source(job: JobSpec) -> Any:
    assert job.train is not None
    return job.train.algorithm.model_copy(update={"name": "mine", "source": "entry"})


def test_a_wrong_target_ends_the_run_with_its_sentence(tmp_path: Path) -> None:
    result = run(write_job(tmp_path, lora_job("llada", lora={"rank": 4, "targets": ["o_proj"]})))
    assert (result.outcome, result.cause) == ("failed", "internal")
    assert "LoRA target 'o_proj' matches 0 linear layers of 4 layers" in result.message


class Lossy:
    """A backbone whose export is the base: it writes the weights of another one."""

    def __init__(self, backbone: Backbone, other: Backbone) -> None:
        self._backbone, self._other = backbone, other

    def __getattr__(self, name: str) -> object:
        return getattr(self._backbone, name)

    def save(self, directory: Path, dtype: torch.dtype | None = None) -> None:
        self._other.save(directory, dtype)


def test_step_zero_finds_out_that_the_export_would_be_the_base(tmp_path: Path) -> None:
    job = lora_job("sdar")
    backbone, other = (load_backbone(job, backbone_directory("sdar-tiny")) for _ in range(2))
    adapters = adapted(backbone)
    probe = probe_of(backbone, PROMPTS)
    before = logits_on(probe, backbone)
    rehearse_adapters(adapters, backbone, job, tmp_path, probe)
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(logits_on(probe, backbone), before)
    with pytest.raises(SilentBaseError, match="load as the base"):
        rehearse_adapters(adapters, Lossy(backbone, other), job, tmp_path, probe)  # type: ignore[arg-type]


def test_the_command_line_trains_adapters_and_scores_what_they_became(tmp_path: Path) -> None:
    settings = tmp_path / "s.yaml"
    settings.write_text("settings: {lora: {rank: 8}, prompts_per_step: 2, group_size: 2, learning_rate: 0.01}\n")
    words = ["--algorithm", "sft", "--backbone", "sdar-tiny", "--data", "corpus:sudoku/clean", "--steps", "2"]
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["train", *words, "--out", str(out), "--settings", str(settings)])
    assert done.exit_code == 0, done.output
    assert (out / "adapter" / WEIGHTS).is_file()
    scored = CliRunner().invoke(app, ["evaluate", str(out), "--task", "countdown", "--limit", "2", "--samples", "0"])
    assert scored.exit_code == 0, scored.output
    assert "countdown" in scored.output
    settings.write_text("settings: {lora: {rank: 0}}\n")
    refused = CliRunner().invoke(app, ["train", *words, "--out", str(tmp_path / "b"), "--settings", str(settings)])
    assert refused.exit_code == 2
    assert "lora.rank is 0: Input should be greater than 0" in refused.output


def test_an_adapter_is_merged_from_the_command_line(tmp_path: Path) -> None:
    settings = tmp_path / "s.yaml"
    settings.write_text("settings: {lora: {rank: 4}, prompts_per_step: 2, learning_rate: 0.01}\n")
    words = ["--algorithm", "sft", "--backbone", "llada-tiny", "--data", "corpus:sudoku/clean", "--steps", "1"]
    trained, merged = tmp_path / "trained", tmp_path / "merged"

    def dare(*given: str | Path) -> Any:
        return CliRunner().invoke(app, [str(word) for word in given])

    assert dare("train", *words, "--out", trained, "--settings", settings).exit_code == 0
    done = dare("backbone", "merge", "llada-tiny", trained / "adapter", merged)
    assert done.exit_code == 0, done.output
    assert "24 adapters merged" in done.output
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (merged, trained / "model"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    again = dare("backbone", "merge", "llada-tiny", trained / "adapter", merged)
    assert again.exit_code == 2
    assert "exists already" in again.output
    other = dare("backbone", "merge", "dream-tiny", trained / "adapter", tmp_path / "other")
    assert other.exit_code == 2
    assert "the adapter was trained on weights that hash to" in other.output
    weights = trained / "adapter" / WEIGHTS
    with safe_open(weights, framework="pt") as file:
        facts = file.metadata()
    nothing = {name: torch.zeros_like(value) for name, value in load_file(weights).items()}
    save_file(nothing, weights, metadata=facts)
    silent = dare("backbone", "merge", "llada-tiny", trained / "adapter", tmp_path / "silent")
    assert silent.exit_code == 2
    assert "exactly the logits of the base" in silent.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["merged", "s.yaml", "trained"]


def test_settings_without_adapters_have_the_digest_that_they_had_before_there_were_any() -> None:
    old = {"learning_rate": 3e-4, "schedule": "constant", "warmup_steps": 0, "weight_decay": 0.0, "betas": [0.9, 0.95],
           "gradient_clip": 1.0, "prompts_per_step": 8, "group_size": 8, "inner_epochs": 1, "minibatches": 1,
           "micro_batch": 128, "score_temperature": False}  # fmt: skip
    settings = TrainSettings(learning_rate=3e-4)
    assert settings.model_dump(mode="json") == old
    assert TrainSettings(learning_rate=3e-4, lora=LORA).digest() != settings.digest()
    again = TrainSettings.model_validate_json(TrainSettings(learning_rate=3e-4, lora=LORA).model_dump_json())
    assert again.lora == LORA


@pytest.mark.full
def test_only_a_run_with_adapters_imports_peft() -> None:
    text = "import sys, dare.run, dare.check; assert 'peft' not in sys.modules, 'peft'"
    subprocess.run([sys.executable, "-c", text], check=True)


def test_a_probe_covers_the_masked_tail_of_every_prompt() -> None:
    backbone = tiny("llada")
    probe = probe_of(backbone, PROMPTS)
    assert probe.masked.sum(1).tolist() == [8, 8]
    assert torch.equal(probe.ids == backbone.mask_id, probe.masked)
