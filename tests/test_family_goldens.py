"""Every family computes what its reference implementation computes: logits, caches, losses, gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from golden_models import GOLDEN, golden_inputs, golden_logits, golden_model, golden_values
from torch import Tensor

from dare.attention import Sight
from dare.families.block import CachedBlocks
from dare.families.doubled import doubled_input
from dare.families.layers import RMSNorm
from dare.family import family_names, family_of, load_family
from dare.linear_logp import linear_logp
from dare.types import NoisyViews

pytestmark = pytest.mark.shared
goldens = pytest.mark.parametrize("folder", GOLDEN)
block_goldens = pytest.mark.parametrize("folder", [name for name in GOLDEN if name.startswith(("sdar", "llada2"))])
TOLERANCE = 5e-5


@goldens
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_logits_are_those_of_the_reference(shared: Path, folder: str, attention: str) -> None:
    golden, model = golden_logits(shared, folder), golden_model(shared, folder)
    real = golden["attention_mask"].bool()
    with torch.no_grad():
        logits = model(**golden_inputs(golden), attention=attention)
    torch.testing.assert_close(logits[real], golden["logits"][real], atol=TOLERANCE, rtol=0)


@block_goldens
def test_block_families_take_an_explicit_mask_and_may_see_everything(shared: Path, folder: str) -> None:
    golden, model = golden_logits(shared, folder), golden_model(shared, folder)
    real = golden["attention_mask"].bool()
    everything = torch.ones(1, 1, 24, 24, dtype=torch.bool)
    with torch.no_grad():
        given = model(golden["input_ids"], block_mask=golden["block_mask"], position_ids=golden["position_ids"])
        full = model(golden["input_ids"][2:], block_mask=everything)
    torch.testing.assert_close(given[real], golden["logits"][real], atol=TOLERANCE, rtol=0)
    if "logits_full_attention" in golden:
        torch.testing.assert_close(full, golden["logits_full_attention"], atol=TOLERANCE, rtol=0)
    if "logits_row2_block4" in golden:
        position = torch.arange(24)[None]
        with torch.no_grad():
            fours = model(golden["input_ids"][2:], block_mask=Sight.blocks(position, 4))
        torch.testing.assert_close(fours, golden["logits_row2_block4"], atol=TOLERANCE, rtol=0)


@goldens
def test_padding_does_not_matter(shared: Path, folder: str) -> None:
    golden, model = golden_logits(shared, folder), golden_model(shared, folder)
    with torch.no_grad():
        alone = model(golden["input_ids"][1:2, 5:])
    torch.testing.assert_close(alone, golden["logits_row1_unpadded"], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(alone, golden["logits"][1:2, 5:], atol=TOLERANCE, rtol=0)


@goldens
def test_bfloat16_rounds_where_the_reference_rounds(shared: Path, folder: str) -> None:
    """A mixture of experts is not continuous, so one flipped choice may move single logits of it; most are equal."""
    golden, model = golden_logits(shared, folder), golden_model(shared, folder, torch.bfloat16)
    names = [name for name in golden if name.startswith("logits_bf16")]
    assert names
    distance = {}
    for name in names:
        for module in model.modules():
            if isinstance(module, RMSNorm):
                module.rounds_once = name.endswith("once")
        rows = [0, 2] if name.endswith("rows_0_and_2") else [0, 1, 2]
        real = golden["attention_mask"][rows].bool()
        with torch.no_grad():
            logits = model(**{key: value[rows] for key, value in golden_inputs(golden).items()}).float()
        distance[name] = [(logits - golden[other])[real].abs().mean().item() for other in names]
        assert distance[name][names.index(name)] < 0.05
        assert min(distance[name]) == distance[name][names.index(name)]


@pytest.mark.parametrize("folder", ["llada", "llada/variant_gqa_bias", "dream"])
def test_a_part_is_computed_against_cached_keys_and_values(shared: Path, folder: str) -> None:
    golden, model = golden_logits(shared, folder), golden_model(shared, folder)
    start, end = golden["cache_block"].tolist()
    before, step = golden["cache_before_ids"], golden["cache_step_ids"]
    width = before.shape[1]
    for last, length, name in ((width, start, "prefix_cache_logits"), (end, width, "dual_cache_logits")):
        if name not in golden:
            continue
        cache = model.empty_cache(1, width)
        everything = torch.arange(width)[None]
        with torch.no_grad():
            model(before, position_ids=everything, cache=cache)
            cache.length[:] = length
            logits = model(step[:, start:last], position_ids=everything[:, start:last], cache=cache)
        torch.testing.assert_close(logits, golden[name], atol=TOLERANCE, rtol=0)


@block_goldens
def test_a_block_is_computed_against_cached_blocks(shared: Path, folder: str) -> None:
    golden, model = golden_logits(shared, folder), golden_model(shared, folder)
    start, end = golden["cached_block"].tolist()
    ids = golden["input_ids"][2:]
    blocks = CachedBlocks(model, model.config.block_size, "sdpa")
    with torch.no_grad():
        blocks.prefill(ids[:, :start], torch.tensor([start]), ids.shape[1])
        columns = torch.arange(start, end)[None]
        logits = blocks.logits(ids[:, start:end], columns, torch.ones_like(columns, dtype=torch.bool))
    torch.testing.assert_close(logits, golden["cached_block_logits"], atol=TOLERANCE, rtol=0)


def test_dream_predicts_a_token_one_to_its_left(shared: Path) -> None:
    golden, model = golden_logits(shared, "dream"), golden_model(shared, "dream")
    shift = model.logit_shift
    assert shift == 1
    left = (torch.arange(24) - shift).clamp(min=0)
    real = golden["attention_mask"].bool()
    with torch.no_grad():
        logits = model(**golden_inputs(golden))[:, left]
    torch.testing.assert_close(logits[real], golden["shifted_logits"][real], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("folder", ["llada2", "llada2_1", "llada2/variant_biases"])
def test_llada2_sends_tokens_to_the_experts_of_the_reference(shared: Path, folder: str) -> None:
    golden, model = golden_logits(shared, folder), golden_model(shared, folder)
    if "router_experts_layer1_row0" not in golden:
        pytest.skip("the variant records no routes")
    routes = []
    model.model.layers[1].mlp.gate.register_forward_hook(lambda module, given, route: routes.append(route))
    with torch.no_grad():
        model(golden["input_ids"][:1], position_ids=golden["position_ids"][:1])
    expert, by_number = routes[0].expert.sort(dim=-1)
    assert torch.equal(expert, golden["router_experts_layer1_row0"].view_as(expert))
    found = routes[0].weight.gather(1, by_number)
    torch.testing.assert_close(found, golden["router_weights_layer1_row0"].view_as(found), atol=1e-5, rtol=0)


def with_mask_token(model: Any, views: NoisyViews) -> Tensor:
    """Scores as the references compute losses: the mask token keeps its share of probability."""
    head = model.get_output_embeddings().weight
    if getattr(model.config, "block_size", None) is None:
        shifted = torch.nn.functional.pad(views.score, (0, model.logit_shift))[:, model.logit_shift :]
        hidden = model(views.ids, attention_mask=views.valid, logits_positions=shifted, return_hidden=True)
        return linear_logp(hidden, head, views.target[views.score])
    doubled = doubled_input(views, model.config.block_size)
    assert doubled is not None
    hidden = model(
        doubled.ids,
        block_mask=doubled.sight,
        position_ids=doubled.position,
        logits_positions=doubled.score,
        return_hidden=True,
    )
    return linear_logp(hidden, head, views.target.flatten()[doubled.home])[doubled.home.argsort()]


@pytest.mark.parametrize("folder", ["llada", "llada_moe", "dream"])
def test_masked_losses_and_gradients_are_those_of_the_reference(shared: Path, folder: str) -> None:
    expected = json.loads((shared / f"goldens/{folder}/loss.json").read_text())["masked_sft"]
    names = ("input_ids", "noisy_ids", "valid", "answer", "hidden", "t")
    sft = {name: torch.tensor(expected[name]) for name in names}
    hidden, valid, answer = sft["hidden"].bool(), sft["valid"].bool(), sft["answer"].bool()
    views = NoisyViews(
        ids=sft["noisy_ids"],
        target=sft["input_ids"],
        score=hidden,
        coef=hidden / sft["t"][:, None],
        unit=torch.arange(2),
        valid=valid,
        window=answer,
    )
    row = hidden.nonzero()[:, 0]
    for name in ("mean_of_sample_means", "global_answer_tokens"):
        model = golden_model(shared, folder)
        logp = with_mask_token(model, views)
        golden = torch.tensor([loss for losses in expected["token_cross_entropy_at_hidden"] for loss in losses])
        torch.testing.assert_close(-logp, golden, rtol=1e-5, atol=1e-5)
        numerator = torch.zeros(2).index_add(0, row, -logp * views.coef[hidden])
        tokens = answer.sum(1)
        means = {
            "mean_of_sample_means": (numerator / tokens).mean(),
            "global_answer_tokens": numerator.sum() / tokens.sum(),
        }
        assert means[name].item() == pytest.approx(expected["loss"][name], rel=1e-5)
        assert means[name].item() != pytest.approx(expected["loss"]["DEFECT_divided_by_masked_tokens"], rel=0.1)
        means[name].backward()
        gradients = {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None}
        if folder != "llada":
            # These references keep the padding row of the embedding from learning. It is the end of text too, which a
            # completion contains, so ours learns; the rest must agree.
            gradients["model.embed_tokens.weight"][model.config.pad_token_id] = 0.0
        norms = {key: gradient.norm().item() for key, gradient in gradients.items()}
        norms["total"] = sum(norm**2 for norm in norms.values()) ** 0.5
        golden_norms = expected["gradient_norms"][name]
        assert {key: norms[key] for key in golden_norms} == pytest.approx(golden_norms, rel=1e-4)


@pytest.mark.parametrize("folder", ["sdar", "sdar_moe", "llada2", "llada2_1"])
def test_block_losses_are_those_of_the_reference(shared: Path, folder: str) -> None:
    golden = json.loads((shared / f"goldens/{folder}/loss.json").read_text())["doubled_sequence"]
    lengths, width = golden["packed_lengths"], max(golden["packed_lengths"])

    def unpack(name: str, empty: float = 0) -> Tensor:
        rows, start = torch.full((len(lengths), width), empty), 0
        for row, length in enumerate(lengths):
            rows[row, :length] = torch.tensor(golden[name][0][start : start + length])
            start += length
        return rows

    score = unpack("target_mask").bool()
    valid = torch.arange(width) < torch.tensor(lengths)[:, None]
    answer = valid & (unpack("labels", -100) != -100)
    views = NoisyViews(
        ids=unpack("noisy_ids", 0).long(),
        target=unpack("input_ids", 0).long(),
        score=score,
        coef=score.float(),
        unit=torch.arange(2),
        valid=valid,
        window=answer,
    )
    model = golden_model(shared, folder, block=golden["block_length"])
    with torch.no_grad():
        loss = -with_mask_token(model, views)
    torch.testing.assert_close(loss, torch.tensor(golden["token_cross_entropy"]), rtol=1e-5, atol=2e-5)
    weighted = (loss / unpack("p_mask", 1.0)[score]).sum() / answer.sum()
    assert weighted.item() == pytest.approx(golden["loss"]["global_answer_tokens"], rel=1e-5)


def test_every_golden_configuration_finds_its_family_by_its_architecture(shared: Path) -> None:
    found = {family_of(golden_values(shared, folder)).name for folder in GOLDEN}
    assert found == set(family_names())
    for folder in ("llada", "llada_moe"):  # one model_type, two classes
        values = golden_values(shared, folder)
        assert values["model_type"] == "llada"
        assert load_family("llada").model_class(values).__name__ == values["architectures"][0]
