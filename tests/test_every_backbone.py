"""Every method keeps its contract on every shipped backbone that it can run on; enrolled by existing."""

from __future__ import annotations

import pytest

from dare.algorithm import algorithm_names, load_algorithm
from dare.catalog import backbone_directory, backbones, load_source, unsupported
from dare.check import contract
from dare.family import load_family
from dare.spec import AlgorithmSpec

SHIPPED = [name for name, record in backbones().items() if record.tiny]


@pytest.mark.full
@pytest.mark.parametrize("backbone", SHIPPED)
@pytest.mark.parametrize("algorithm", algorithm_names())
def test_every_method_keeps_the_contract_on_every_shipped_backbone(algorithm: str, backbone: str) -> None:
    record = backbones()[backbone]
    problem = unsupported(load_source(algorithm), record)
    assert problem is None, problem
    loaded = load_family(record.family).load(backbone_directory(backbone))
    outcomes = list(contract(load_algorithm(AlgorithmSpec(name=algorithm)), loaded))
    assert outcomes
    broken = [outcome for outcome in outcomes if not outcome.passed]
    assert not broken, "; ".join(f"{outcome.name}: {outcome.sentence}" for outcome in broken)


def test_every_family_has_a_backbone_to_try() -> None:
    assert {backbones()[name].family for name in SHIPPED} == {"dream", "llada", "llada2", "sdar"}
