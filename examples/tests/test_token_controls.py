"""Controls that weight tokens: STARE, STEER, EntroPIC, Lp-Reg, Clip_B, influence."""

import math
import statistics
from dataclasses import replace

import pytest
import torch

from examples.controls.clip_b import ClipB
from examples.controls.entropic import EntroPIC
from examples.controls.influence import InfluenceClip
from examples.controls.lp_reg import LpReg
from examples.controls.stare import Stare
from examples.controls.steer import Steer
from tests.control.batches import batch, padded, places


def close(tokens, made, expected):
    torch.testing.assert_close(made.weights, padded(tokens, expected), rtol=1e-12, atol=1e-15)


def share_of(rows, q, key):
    """The first max(⌊q m⌋, 1) rows by a key."""
    return {r[:2] for r in sorted(rows, key=key)[: max(math.floor(q * len(rows) + 1e-9), 1)]}


@pytest.mark.parametrize("x", [0.1, -0.3])
@pytest.mark.parametrize("sides", ["positive", "both"])
def test_stare(x, sides):
    tokens = batch()
    rows = places(tokens)
    of_positive = share_of([r for r in rows if r[2] > 0], 0.2, lambda r: r[3])
    of_negative = share_of([r for r in rows if r[2] < 0], 0.2, lambda r: r[3])
    expected = {r[:2]: r[6] * (1 + x if r[:2] in of_positive else 1) for r in rows}
    if sides == "both":
        expected = {p: c * (1 - x if p in of_negative else 1) for p, c in expected.items()}
    close(tokens, Stare(share=0.2, sides=sides).rewrite(tokens, x), expected)


@pytest.mark.parametrize("x", [0.2, 1.0])
@pytest.mark.parametrize("smallest", [0.02, 50.0])
def test_steer(x, smallest):
    tokens = batch()
    omega = {}
    for i, k, A, s, H, *_ in places(tokens):
        p = math.exp(s)
        omega[i, k] = abs(A / p * p * (1 - p) * (math.log(p) + H))
    largest = max(*omega.values(), smallest)
    assert (largest == smallest) == (smallest == 50.0)
    kept = {place: (1 - x) ** (size / largest) for place, size in omega.items()}
    expected = {r[:2]: r[6] * kept[r[:2]] for r in places(tokens)}
    close(tokens, Steer(smallest=smallest).rewrite(tokens, x), expected)


@pytest.mark.parametrize("x", [0.1, -0.7])
def test_entropic_by_share(x):
    tokens = batch()
    rows = places(tokens)
    likely = share_of(rows, 0.5, lambda r: -r[3])
    expected = {r[:2]: r[6] - x * r[5] * abs(r[2]) * (r[:2] in likely) for r in rows}
    close(tokens, EntroPIC().rewrite(tokens, x), expected)


def test_entropic_by_threshold():
    tokens = batch()
    rows = places(tokens)
    expected = {r[:2]: r[6] - 0.3 * r[5] * abs(r[2]) * (math.exp(r[3]) > 0.25) for r in rows}
    close(tokens, EntroPIC(threshold=0.25).rewrite(tokens, 0.3), expected)


def test_lp_reg():
    tokens = batch(columns=True)
    rows = places(tokens)
    rare = share_of([r for r in rows if r[2] < 0], 0.3, lambda r: r[3])
    expected, pulled = {}, 0
    for i, k, _, s, _, w, c in rows:
        kept = float(tokens.kept_mass[i, k])
        expected[i, k] = c
        if (i, k) in rare and kept > 0:
            proxy = s - math.log(kept)
            assert s < proxy
            pulled += 1
            expected[i, k] += w * 1.5 * (math.exp(proxy - s) - 1)
    assert 0 < pulled < len(rare)
    made = LpReg(share=0.3).rewrite(tokens, 1.5)
    close(tokens, made, expected)
    assert made.numbers == {"pulled": pulled}


def test_the_derivative_of_the_penalty_of_lp_reg():
    """β(e^d − d − 1), d = log π_proxy − s with the proxy fixed, has −∂/∂s = β(1/M − 1)."""
    s, mass = torch.tensor(-2.3, dtype=torch.float64, requires_grad=True), 0.9
    d = (s.detach() - math.log(mass)) - s
    (1.5 * (d.exp() - d - 1)).backward()
    assert -float(s.grad) == pytest.approx(1.5 * (1 / mass - 1))


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
