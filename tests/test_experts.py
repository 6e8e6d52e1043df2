"""A mixture of experts is the sum that its definition says, however it is computed and stored."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dare.families import experts as module
from dare.families.experts import Experts
from dare.seeds import generator_for


def some_experts(count: int = 5, width: int = 6, inner: int = 4) -> Experts:
    experts = Experts(count, width, inner)
    generator = generator_for(0, "experts")
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.normal_(generator=generator)
    return experts


def by_definition(experts: Experts, x: Tensor, chosen: Tensor, weight: Tensor) -> Tensor:
    """Token by token, expert by expert, from the published matrices."""
    part = experts.state_dict()
    out = torch.zeros_like(x)
    for token in range(len(x)):
        for expert, share in zip(chosen[token].tolist(), weight[token], strict=True):
            gate, up, down = (part[f"{expert}.{name}_proj.weight"] for name in ("gate", "up", "down"))
            out[token] += share * (down @ (F.silu(gate @ x[token]) * (up @ x[token])))
    return out


@given(seed=st.integers(0, 10_000), tokens=st.integers(0, 9), each=st.integers(1, 4), crowd=st.booleans())
def test_the_mixture_is_what_its_definition_says(seed: int, tokens: int, each: int, crowd: bool) -> None:
    experts, generator = some_experts(), generator_for(seed, "tokens")
    x = torch.randn(tokens, 6, generator=generator)
    scores = torch.rand(tokens, 5, generator=generator) + (torch.arange(5) < each if crowd else 0)
    weight, chosen = scores.topk(each, dim=-1)
    expected = by_definition(experts, x, chosen, weight)
    with torch.no_grad():
        torch.testing.assert_close(experts(x, chosen, weight), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("spare", [0, 10**9])
def test_both_ways_to_compute_it_agree_in_value_and_gradient(spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(7, 6, generator=generator_for(1), requires_grad=True)
    weight, chosen = torch.rand(7, 5, generator=generator_for(2)).topk(2, dim=-1)
    weight.requires_grad_(True)
    found = []
    for way in (module.SPARE, spare):
        monkeypatch.setattr(module, "SPARE", way)
        experts = some_experts()
        answer = experts(x, chosen, weight)
        found.append((answer, *torch.autograd.grad(answer.square().sum(), (x, weight, *experts.parameters()))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_a_token_does_not_depend_on_its_company() -> None:
    experts = some_experts()
    x = torch.randn(9, 6, generator=generator_for(3))
    weight, chosen = torch.rand(9, 5, generator=generator_for(4)).topk(2, dim=-1)
    with torch.no_grad():
        whole = experts(x, chosen, weight)
        alone = torch.cat([experts(x[i : i + 1], chosen[i : i + 1], weight[i : i + 1]) for i in range(9)])
    torch.testing.assert_close(alone, whole, atol=1e-5, rtol=1e-5)


def test_the_state_dict_has_published_names_and_shares_memory() -> None:
    experts = some_experts(count=3)
    state = experts.state_dict()
    assert set(state) == {f"{e}.{name}_proj.weight" for e in range(3) for name in ("gate", "up", "down")}
    state["1.up_proj.weight"].fill_(7.0)
    assert (experts.gate_up[1, 4:] == 7.0).all()
    assert (experts.gate_up[1, :4] != 7.0).all()
    merged = experts.merged_tensors("")
    assert torch.equal(merged["up_proj"][1], experts.state_dict()["1.up_proj.weight"])


def test_a_state_dict_is_loaded_strictly() -> None:
    source, target = some_experts(count=3), Experts(3, 6, 4)
    state = source.state_dict()
    target.load_state_dict(state)
    assert all(torch.equal(value, state[name]) for name, value in target.state_dict().items())
    missing = {name: value for name, value in state.items() if name != "2.down_proj.weight"}
    with pytest.raises(RuntimeError, match=r"Missing key.*2\.down_proj"):
        target.load_state_dict(missing)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*3\.down_proj"):
        target.load_state_dict(state | {"3.down_proj.weight": torch.zeros(6, 4)})
    with pytest.raises(RuntimeError, match=r"2\.down_proj\.weight has shape \(1,\)"):
        target.load_state_dict(state | {"2.down_proj.weight": torch.zeros(1)})
