"""Clip-Cov: which tokens lose their weight."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch

from isentrope.control.covariance import ClipCov
from tests.control.batches import batch, places


def covariances(tokens):
    rows = places(tokens)
    A, s = (statistics.fmean(row[column] for row in rows) for column in (2, 3))
    return {row[:2]: (row[2] - A) * (row[3] - s) for row in rows}


@pytest.mark.parametrize("rho", [1e-6, 0.02, 0.05])
def test_clip_cov_drops_so_many_random_tokens_between_its_quantiles(rho):
    tokens = batch()
    made = ClipCov(lower=0.6, upper=0.9).rewrite(tokens, rho)
    dropped = {tuple(x) for x in ((made.weights == 0) & tokens.mask).nonzero().tolist()}
    cov = covariances(tokens)
    low, high = np.quantile(list(cov.values()), [0.6, 0.9])
    candidates = {place for place, value in cov.items() if low < value <= high}
    assert made.numbers == {"candidates": len(candidates)}
    assert len(dropped) == max(math.floor(rho * len(cov)), 1)
    assert dropped <= candidates
    kept = tokens.mask & (made.weights != 0)
    assert torch.equal(made.weights[kept], tokens.weights[kept])


def test_clip_cov_takes_all_where_the_interval_holds_fewer():
    tokens = batch()
    made = ClipCov(lower=0.9, upper=0.95).rewrite(tokens, 0.5)
    assert int(((made.weights == 0) & tokens.mask).sum()) == made.numbers["candidates"] > 0


def test_published_bounds_are_values_of_the_covariance():
    tokens = batch()
    made = ClipCov(bounds="published", upper=1.5).rewrite(tokens, 1.0)
    dropped = {tuple(x) for x in ((made.weights == 0) & tokens.mask).nonzero().tolist()}
    assert dropped == {p for p, value in covariances(tokens).items() if 1.0 < value < 1.5}
    assert dropped


def test_clip_cov_draws_by_seed_and_step():
    rule = ClipCov(lower=0.2)

    def dropped(step, seed=0):
        return rule.rewrite(replace(batch(step=step), seed=seed), 0.1).weights == 0

    assert torch.equal(dropped(1), dropped(1))
    assert not torch.equal(dropped(1), dropped(2))
    assert not torch.equal(dropped(1), dropped(1, seed=9))
