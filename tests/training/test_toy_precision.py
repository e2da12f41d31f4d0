"""The toy policy in true float64: tiny steps stand clear of rounding."""

import itertools

import pytest
import torch

import isentrope as ise
from isentrope.estimators.rounding_floor import rounding_floor
from isentrope.nouns.vectors import dot
from isentrope.sampling.tasks.addition import Addition
from isentrope.training.models import build_toy_policy
from tests import cases
from tests.adapters import with_lora


@pytest.fixture(scope="module")
def toy():
    policy = with_lora(build_toy_policy(0), seed=0)
    with torch.no_grad():
        for name, p in policy.model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.05, generator=torch.Generator().manual_seed(1))
    policy.convert("float64")
    batch = ise.sample(policy, Addition("test").prompts, 16, max_new_tokens=12, seed=0)
    return policy, batch, cases.direction(policy)


@pytest.mark.parametrize("per", cases.PERS)
def test_change_over_first_order_is_one_down_to_1e_8(toy, per):
    policy, batch, v = toy
    etas = [1e-5, 1e-6, 1e-7, 1e-8]
    sweep = ise.entropy_change(policy, batch, v, etas, ise.EstimatorOptions(per), order=1)
    for point in sweep.points:
        assert point.change.value / (point.eta * sweep.first_order.value) == pytest.approx(
            1, abs=1e-3
        )
    floor = rounding_floor(policy, batch, v, sweep.sample, sweep.first_order.value)
    assert floor.log_weight < 1e-10
    assert floor.smallest_eta < 1e-8


def test_remainder_falls_eightfold_and_reverse_equals_forward(toy):
    policy, batch, v = toy
    sweep = ise.entropy_change(policy, batch, v, [4e-4, 2e-4, 1e-4, 5e-5])
    residuals = [p.residual.value for p in sweep.points]
    ratios = [a / b for a, b in itertools.pairwise(residuals)]
    assert ratios == pytest.approx([8, 8, 8], abs=0.5)
    assert dot(ise.entropy_gradient(policy, batch), v) == pytest.approx(
        sweep.first_order.value, rel=1e-9
    )
