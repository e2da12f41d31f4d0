"""KL-Cov: its term in the loss of a micro-batch, and that it is idle on-policy."""

import math
import statistics

import torch

from isentrope.control.covariance import KlCov
from tests.control.batches import batch, places


def micro_batch(tokens, seed=5):
    """s at the current θ, with a graph, and log r."""
    generator = torch.Generator().manual_seed(seed)
    moved = torch.randn(tokens.mask.shape, generator=generator, dtype=torch.float64)
    now = (tokens.logprobs + 0.1 * moved * tokens.mask).requires_grad_()
    return now, now - tokens.logprobs


def test_tokens_of_the_largest_covariance_are_held_to_their_sampler():
    tokens = batch()
    now, log_ratio = micro_batch(tokens)
    columns = tokens.advantages, tokens.sequence_weights, tokens.mask
    term = KlCov(share=0.05).loss_term(now, log_ratio, *columns)
    rows = places(tokens)
    s = {row[:2]: float(now.detach()[row[:2]]) for row in rows}
    r = {row[:2]: float(log_ratio.detach()[row[:2]]) for row in rows}
    mean_A, mean_s = statistics.fmean(row[2] for row in rows), statistics.fmean(s.values())
    cov = {row[:2]: (row[2] - mean_A) * (s[row[:2]] - mean_s) for row in rows}
    held = sorted(cov, key=lambda p: -cov[p])[: math.floor(0.05 * len(rows))]
    w = {row[:2]: row[5] for row in rows}
    torch.testing.assert_close(float(term.detach()), math.fsum(w[p] * abs(r[p]) for p in held))
    (gradient,) = torch.autograd.grad(term, now)
    expected = torch.zeros_like(gradient)
    for p in held:
        expected[p] = w[p] * math.copysign(1, r[p])
    torch.testing.assert_close(gradient, expected)


def test_nothing_is_held_where_every_ratio_is_one():
    tokens = batch()
    now = tokens.logprobs.clone().requires_grad_()
    columns = tokens.advantages, tokens.sequence_weights, tokens.mask
    (gradient,) = torch.autograd.grad(KlCov().loss_term(now, now - tokens.logprobs, *columns), now)
    assert not gradient.any()
    assert torch.equal(KlCov().rewrite(tokens, 1.0).weights, tokens.weights)
