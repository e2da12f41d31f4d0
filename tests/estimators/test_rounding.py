import math

import pytest
import torch

import isentrope as ise
from isentrope import score
from isentrope.estimators.rounding_floor import rounding_floor
from isentrope.estimators.sample import score_batch
from isentrope.nouns.vectors import norm
from tests import cases


@cases.built_once
def norms_only(precision):
    """A policy whose norm weights alone are trained: all are 1, and round alike."""
    model = cases.model("qwen2")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" in name)
    return ise.Policy(model, precision=precision, eos_token_id=0, pad_token_id=0)


def floor_of(policy, batch, v, first_order=math.inf):
    """Of so large a first order, the smallest η is that of the parameters."""
    sample = score_batch(policy, batch)
    return rounding_floor(policy, batch, v, sample, first_order)


def test_rounding_of_the_parameters_counts_as_well_as_that_of_the_scores():
    """Scored in float64 at θ + ηv rounded to float32, so that no kernel's own rounding counts."""
    long, short = norms_only("float64"), norms_only("float32")
    batch = ise.sample(long, [[1, 2], [3, 4]], 400, max_new_tokens=4, seed=0)
    batch = batch.with_columns(sampler_logprobs=None)
    v = {n: -g.sign() for n, g in ise.entropy_gradient(long, batch).items()}
    sample = score_batch(long, batch)
    smallest = floor_of(short, batch, v).smallest_eta

    def change(policy, eta):
        moved = {n: p.double() for n, p in policy.parameters_along(v, eta).items()}
        there, omega = score(long, batch, moved), torch.ones(len(batch), dtype=torch.float64)
        ratios = there.logprobs - sample.sampler_logprobs
        before = sample.functional(omega, sample.log_ratios, sample.entropies)
        return float(sample.functional(omega, ratios, there.entropies) - before)

    def wrong(eta):
        return abs(change(short, eta) / change(long, eta) - 1)

    assert min(wrong(eta) for eta in (1.3e-7, 1.7e-7, 2.5e-7)) > 0.03
    assert max(wrong(factor * smallest) for factor in (1, 2)) < 0.01


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
def test_from_the_smallest_eta_on_the_rounded_step_is_the_step_to_one_percent(precision):
    policy = cases.policy("llama", precision=precision)
    v = cases.direction(policy)
    v = {n: x * 10.0**-k for k, (n, x) in enumerate(v.items())}  # of unlike sizes
    smallest = floor_of(policy, cases.ragged(), v).smallest_eta

    def lost(eta):
        moved = policy.parameters_along(v, eta)
        theta = policy.theta
        gap = {n: (moved[n].double() - theta[n].double()) / eta - v[n] for n in v}
        return norm(gap) / norm(v)

    assert max(lost(factor * smallest) for factor in (1, 1.7, 5, 60)) <= 0.01
    assert lost(smallest / 16) > 0.01


def test_a_step_that_moves_zeros_alone_is_rounded_nowhere():
    policy = cases.policy("llama", precision="float32")
    v = {n: torch.zeros_like(x) for n, x in cases.direction(policy).items()}
    name = next(iter(v))
    policy.theta[name].zero_()
    v[name] += 1.0
    floor = floor_of(policy, cases.ragged(), v, 1.0)
    assert floor.smallest_eta == 3 * floor.entropy_change


def test_the_smallest_eta_is_three_floors_of_the_first_order_or_that_of_the_parameters():
    policy, batch = cases.policy("llama", precision="float32"), cases.ragged()
    v = cases.direction(policy)
    floor = floor_of(policy, batch, v)
    slope = 3 * floor.entropy_change / floor.smallest_eta  # at which both are equal
    for first_order, factor in ((slope / 8, 8), (-slope / 8, 8), (8 * slope, 1)):
        smallest = floor_of(policy, batch, v, first_order).smallest_eta
        assert smallest == pytest.approx(factor * floor.smallest_eta)
    assert floor_of(policy, batch, v, 0.0).smallest_eta == math.inf
    assert floor_of(policy, batch, v, None).smallest_eta is None


def test_a_direction_of_zeros_is_refused():
    policy = cases.policy("llama")
    nothing = {n: torch.zeros_like(x) for n, x in cases.direction(policy).items()}
    with pytest.raises(ValueError, match="direction is zero"):
        floor_of(policy, cases.ragged(), nothing)
