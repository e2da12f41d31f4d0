"""The entropy mask, the random mask and one factor on negatives."""

import numpy as np
import pytest
import torch

from examples.controls.masks import EntropyMask, NegativeScale, RandomMask
from tests.control.batches import batch, padded, places


@pytest.mark.parametrize("x", [1.0, 0.3])
def test_entropy_mask_keeps_tokens_from_the_quantile_on(x):
    tokens = batch()
    rows = places(tokens)
    least = np.quantile([row[4] for row in rows], 0.8)
    expected = {r[:2]: r[6] * (1 if r[4] >= least else 1 - x) for r in rows}
    made = EntropyMask().rewrite(tokens, x)
    torch.testing.assert_close(made.weights, padded(tokens, expected), rtol=1e-12, atol=0)


def test_a_random_mask_drops_its_share_and_no_token_more_often_than_others():
    total, steps = torch.zeros(batch().mask.shape), 400
    for step in range(steps):
        tokens = batch(step=step)
        dropped = tokens.mask & (RandomMask().rewrite(tokens, 0.25).weights == 0)
        assert int(dropped.sum()) == int(0.25 * int(tokens.mask.sum()))
        total += dropped
    rates = (total / steps)[batch().mask]
    share = float(rates.mean())
    # each rate has a standard deviation of √(p(1−p)/400) = .022; five of them are never reached
    assert float((rates - share).abs().max()) < 5 * (share * (1 - share) / steps) ** 0.5


@pytest.mark.parametrize("x", [0.5, -1.0])
def test_negative_scale(x):
    tokens = batch()
    expected = {r[:2]: r[6] * (1 + x if r[2] < 0 else 1) for r in places(tokens)}
    made = NegativeScale().rewrite(tokens, x)
    torch.testing.assert_close(made.weights, padded(tokens, expected), rtol=1e-12, atol=1e-15)
