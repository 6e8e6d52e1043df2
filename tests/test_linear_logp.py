"""The chunked head equals the dense one, forwards and backwards, whatever the chunk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dare.linear_logp import linear_logp


def dense(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    temperature: float = 1.0,
    excluded: int | None = None,
) -> Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias) * scale / temperature
    if excluded is not None:
        logits = logits.masked_fill(torch.arange(weight.shape[0]) == excluded, -torch.inf)
    return logits.log_softmax(-1).gather(1, target[:, None]).squeeze(1)


def example(dtype: torch.dtype = torch.float64, rows: int = 11) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "hidden": torch.randn(rows, 6, dtype=dtype, generator=generator).requires_grad_(),
        "weight": torch.randn(9, 6, dtype=dtype, generator=generator).requires_grad_(),
        "bias": torch.randn(9, dtype=dtype, generator=generator).requires_grad_(),
        "target": torch.randint(1, 9, (rows,), generator=generator),
        "upstream": torch.randn(rows, dtype=dtype, generator=generator),
    }


@pytest.mark.parametrize("chunk", [1, 2, 4, 11, 100, None])
@pytest.mark.parametrize("excluded", [None, 0])
@pytest.mark.parametrize("with_bias", [False, True])
def test_any_chunk_gives_the_values_and_gradients_of_the_dense_head(
    chunk: int | None, excluded: int | None, with_bias: bool
) -> None:
    x = example()
    inputs = [x["hidden"], x["weight"], *([x["bias"]] if with_bias else [])]
    bias = x["bias"] if with_bias else None
    options = {"bias": bias, "scale": 0.7, "temperature": 1.3, "excluded": excluded}
    ours = linear_logp(x["hidden"], x["weight"], x["target"], chunk=chunk, **options)  # type: ignore[arg-type]
    theirs = dense(x["hidden"], x["weight"], x["target"], **options)  # type: ignore[arg-type]
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, inputs, x["upstream"]), torch.autograd.grad(theirs, inputs, x["upstream"])
    )


def test_gradcheck_in_float64() -> None:
    x = example(rows=5)

    def logp(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return linear_logp(hidden, weight, x["target"], bias=bias, temperature=0.8, excluded=0, chunk=2)

    assert torch.autograd.gradcheck(logp, (x["hidden"], x["weight"], x["bias"]))


@pytest.mark.shared
@pytest.mark.parametrize("chunk", [1, 8, 37, None])
def test_it_agrees_with_the_reference_numbers(shared: Path, chunk: int | None) -> None:
    golden = load_file(shared / "goldens/algorithms/linear_cross_entropy.safetensors")
    hidden, weight = golden["hidden"].double().requires_grad_(), golden["weight"].double().requires_grad_()
    logp = linear_logp(hidden, weight, golden["targets"], chunk=chunk)
    torch.testing.assert_close(logp, golden["token_log_probs"], atol=1e-9, rtol=1e-9)
    loss = -(logp / golden["p_mask"].double()).sum()
    torch.testing.assert_close(loss[None], golden["loss_sum_over_p"], atol=1e-9, rtol=1e-9)
    found = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    torch.testing.assert_close(found, (golden["grad_hidden"], golden["grad_weight"]), atol=1e-9, rtol=1e-9)
    found = torch.autograd.grad(logp, (hidden, weight), golden["upstream"].double())
    expected = (golden["grad_hidden_of_logprob_sum"], golden["grad_weight_of_logprob_sum"])
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


def test_low_precision_inputs_give_float32_numbers_and_gradients_of_their_own_dtype() -> None:
    x = example(torch.bfloat16)
    logp = linear_logp(x["hidden"], x["weight"], x["target"], chunk=4)
    assert logp.dtype == torch.float32
    hidden, weight = torch.autograd.grad(logp.sum(), (x["hidden"], x["weight"]))
    assert hidden.dtype == weight.dtype == torch.bfloat16


def test_a_frozen_head_still_passes_gradients_to_the_hidden_states() -> None:
    x = example()
    weight = x["weight"].detach()
    ours = torch.autograd.grad(linear_logp(x["hidden"], weight, x["target"]).sum(), x["hidden"])
    torch.testing.assert_close(ours, torch.autograd.grad(dense(x["hidden"], weight, x["target"]).sum(), x["hidden"]))


def test_the_excluded_token_has_no_probability_and_the_others_share_all_of_it() -> None:
    x = example(rows=1)
    every = x["hidden"].expand(9, -1)
    logp = linear_logp(every, x["weight"], torch.arange(9), excluded=4)
    assert logp[4] == -torch.inf
    torch.testing.assert_close(logp.exp().sum(), torch.tensor(1.0, dtype=torch.float64))


def test_no_rows_is_no_error() -> None:
    x = example(rows=0)
    logp = linear_logp(x["hidden"], x["weight"], x["target"])
    assert logp.shape == (0,)
    hidden, weight = torch.autograd.grad(logp.sum(), (x["hidden"], x["weight"]))
    assert hidden.shape == (0, 6)
    assert (weight == 0).all()


def test_a_temperature_of_zero_is_refused() -> None:
    x = example()
    with pytest.raises(ValueError, match="temperature is 0"):
        linear_logp(x["hidden"], x["weight"], x["target"], temperature=0)
