"""Controls by name, what all of them keep, and what is refused."""

import dataclasses

import pytest
import torch

from isentrope.control import controls
from tests.control.batches import batch


@pytest.mark.parametrize("name", controls.TOKEN)
def test_a_strength_of_0_leaves_the_plain_objective_exactly(name):
    tokens = batch(columns=True)
    made = controls.build(name).rewrite(tokens, 0.0)
    assert torch.equal(made.weights, tokens.weights)
    assert made.entropy_weights is None


@pytest.mark.parametrize("name", controls.TOKEN)
def test_the_default_changes_some_tokens_and_none_outside_of_the_mask(name):
    tokens = batch(columns=True)
    options = {"k": 2} if name == "pass_at_k" else {}
    options |= {"mu": 1.0} if name == "clip_b" else {}
    options |= {"share": 0.3} if name == "lp_reg" else {}
    control = controls.build(name, None, options)
    made = control.rewrite(tokens, control.strength)
    entropic = made.entropy_weights is not None
    assert entropic == (name == "bonus")
    assert entropic or not torch.equal(made.weights, tokens.weights)
    assert not made.weights[~tokens.mask].any()
    assert made.weights.isfinite().all()


@pytest.mark.parametrize("name", controls.TOKEN)
def test_a_negative_strength_acts_where_a_control_is_two_sided(name):
    tokens = batch(columns=True)
    control = controls.build(name, None, {"k": 2} if name == "pass_at_k" else {})
    made = control.rewrite(tokens, -0.5)
    acted = made.entropy_weights is not None or not torch.equal(made.weights, tokens.weights)
    assert acted == control.two_sided


@pytest.mark.parametrize("name", controls.TOKEN)
def test_the_order_of_sequences_does_not_matter(name):
    if name in ("clip_cov", "random_mask"):
        pytest.skip("it draws tokens by their place")
    tokens = batch(columns=True)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    shuffled = dataclasses.replace(
        tokens,
        **{n: x[order] for n, x in vars(tokens).items() if isinstance(x, torch.Tensor)},
    )
    control = controls.build(name, None, {"k": 2} if name == "pass_at_k" else {})
    here, there = (control.rewrite(x, 0.5).weights for x in (tokens, shuffled))
    torch.testing.assert_close(there, here[order], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", controls.ALL)
def test_every_control_is_built_and_compared_by_value(name):
    assert controls.build(name) == controls.build(name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        controls.build(name).anything = 1


@pytest.mark.parametrize("name", controls.FIELDS)
def test_fields_are_those_of_trl(name):
    trl = pytest.importorskip("trl")
    of_trl = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    assert set(controls.build(name).fields()) <= of_trl


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("clipcov",), "Unknown control 'clipcov': the nearest is 'clip_cov'"),
        (("repo_r", None, {"zeta": 1}), "'repo_r' has no option 'zeta': it has none"),
        (("clip_b", None, {"mo": 1}), "no option 'mo': it has mu"),
        (("clip_b", None, {"strength": 1}), "no option 'strength': it has mu"),
        (("clip_b", None, {"mu": "2"}), "mu: Input should be a valid number, got '2'"),
        (("clip_b", 1.5), "strength: Input should be less than or equal to 1, got 1.5"),
        (("repo_r", float("nan")), "strength: Input should be a finite number"),
        (("cispo", 1.0), "'cispo': strength"),
        (("bonus", None, {"mode": "full"}), "'pathwise' or 'complete', got 'full'"),
        (("clip_cov", None, {"lower": 0.9, "upper": 0.2}), "cannot go from 0.9 to 0.2"),
        (("clip_cov", None, {"upper": 5.0}), "bounds=quantile cannot go from 0.98 to 5.0"),
        (("pass_at_k", None, {"k": 1}), "k: Input should be greater than or equal to 2"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match="control") as error:
        controls.build(*arguments)
    assert message in str(error.value)
