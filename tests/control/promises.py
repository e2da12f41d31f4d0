"""What every token control promises, tried on a batch of random numbers."""

import dataclasses

import torch

from isentrope.control import controls
from tests.control.batches import batch


def require_plain_at_0(name, options):
    """Strength 0 leaves the plain objective exactly."""
    tokens = batch(columns=True)
    made = controls.build(name, None, options).rewrite(tokens, 0.0)
    assert torch.equal(made.weights, tokens.weights)
    assert made.entropy_weights is None


def require_change_within_mask(name, options):
    """The default strength changes some tokens and none outside of the mask."""
    tokens = batch(columns=True)
    control = controls.build(name, None, options)
    made = control.rewrite(tokens, control.strength)
    assert made.entropy_weights is not None or not torch.equal(made.weights, tokens.weights)
    assert not made.weights[~tokens.mask].any()
    assert made.weights.isfinite().all()


def require_two_sided_alone(name, options):
    """A negative strength acts where a control is two-sided."""
    tokens = batch(columns=True)
    control = controls.build(name, None, options)
    made = control.rewrite(tokens, -0.5)
    acted = made.entropy_weights is not None or not torch.equal(made.weights, tokens.weights)
    assert acted == control.two_sided


def require_any_order(name, options):
    """The order of sequences does not matter."""
    tokens = batch(columns=True)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    shuffled = dataclasses.replace(
        tokens,
        **{n: x[order] for n, x in vars(tokens).items() if isinstance(x, torch.Tensor)},
    )
    control = controls.build(name, None, options)
    first = control.rewrite(tokens, 0.5).weights
    second = control.rewrite(shuffled, 0.5).weights
    torch.testing.assert_close(second, first[order], rtol=1e-10, atol=1e-14)


def require_frozen_value(name, options):
    """A control is compared by value, and cannot be changed."""
    control = controls.build(name, None, options)
    assert control == controls.build(name, None, options)
    try:
        control.anything = 1
    except dataclasses.FrozenInstanceError:
        return
    raise AssertionError(f"{name} can be changed")


PROMISES = (
    require_plain_at_0,
    require_change_within_mask,
    require_two_sided_alone,
    require_any_order,
    require_frozen_value,
)
