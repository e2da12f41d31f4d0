"""Controls that drop or damp a few tokens: Clip-Cov, Clip_B, influence."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch

from isentrope.control.clips import ClipB, ClipCov, InfluenceClip
from tests.control.batches import batch, padded, places


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


@pytest.mark.parametrize("x", [1.0, 0.4])
def test_clip_b_damps_punished_tokens_of_low_s(x):
    tokens = batch()
    made = ClipB(mu=1.0).rewrite(tokens, x)
    rows = places(tokens)
    S = {row[:2]: math.exp(row[3]) * (row[4] + row[3]) for row in rows}
    mean, sigma = statistics.fmean(S.values()), statistics.stdev(S.values())
    low = {row[:2] for row in rows if row[2] < 0 and S[row[:2]] - mean < -sigma}
    assert low
    expected = {r[:2]: r[6] * (1 - x) if r[:2] in low else r[6] for r in rows}
    torch.testing.assert_close(made.weights, padded(tokens, expected), rtol=1e-12, atol=0)


def test_influence_damps_the_tokens_with_the_lowest():
    tokens = batch(columns=True)
    made = InfluenceClip(share=0.1).rewrite(tokens, 0.5)
    rows = places(tokens)
    influence = {row[:2]: float(tokens.influence[row[:2]]) for row in rows}
    worst = sorted(influence, key=influence.__getitem__)[: math.floor(0.1 * len(rows))]
    expected = {r[:2]: r[6] * (0.5 if r[:2] in worst else 1) for r in rows}
    torch.testing.assert_close(made.weights, padded(tokens, expected), rtol=1e-12, atol=0)
    assert made.numbers["influence_damped"] == pytest.approx(sum(influence[p] for p in worst))
    assert made.numbers["influence"] == pytest.approx(sum(influence.values()))


def test_influence_leaves_tokens_that_add_entropy():
    tokens = batch(columns=True)
    tokens = replace(tokens, influence=tokens.influence.abs() + tokens.mask)
    assert torch.equal(InfluenceClip().rewrite(tokens, 1.0).weights, tokens.weights)


def test_influence_needs_its_column():
    with pytest.raises(ValueError, match="influence"):
        InfluenceClip().rewrite(batch(), 1.0)
