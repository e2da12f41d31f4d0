import numpy as np
import pytest
import torch

import isentrope as ise
from isentrope import score
from isentrope.policy.chi_square import score_moved
from tests import cases


@pytest.fixture(scope="module")
def arrays():
    """One batch as a user would hand it over: numpy arrays, garbage outside the mask."""
    exact = cases.exact("qwen2")
    policy, batch, v = exact.policy, exact.sample(64, 0), cases.direction(exact.policy)
    base, moved = score(policy, batch), score(policy, batch, policy.parameters_along(v, 0.05))
    ratios = (moved.logprobs - base.logprobs).numpy().copy()
    ratios[~base.mask.numpy()] = np.nan
    given = (ratios, moved.entropies.numpy(), base.entropies.numpy(), base.mask.numpy())
    return exact, batch, v, given


@pytest.mark.parametrize("per", cases.PERS)
@pytest.mark.parametrize("method", ["sequence", "prefix"])
def test_arrays_give_what_the_model_gives(arrays, method, per):
    exact, batch, v, given = arrays
    estimator = ise.EstimatorOptions(per, method)
    ours = ise.estimate_entropy_change(*given, batch.prompt_index, estimator=estimator)
    sweep = ise.entropy_change(exact.policy, batch, v, [0.05], estimator, order=0)
    theirs = sweep.points[0].change
    assert (ours.value, ours.se) == pytest.approx((theirs.value, theirs.se), rel=1e-12)
    assert ours.n == 64
    assert ours.ess == pytest.approx(theirs.ess)


def test_doubly_robust_fits_its_own_baseline(arrays):
    exact, batch, v, given = arrays
    estimate = ise.estimate_entropy_change(
        *given, batch.prompt_index, estimator=ise.EstimatorOptions(method="doubly-robust")
    )
    truth = exact.entropy_change(v, 0.05)
    assert abs(estimate.value - truth) < 4 * estimate.se


@pytest.mark.parametrize("per", cases.PERS)
def test_whole_sequence_sums_give_the_sequence_estimator(arrays, per):
    _, batch, _, (ratios, moved, base, mask) = arrays
    sums = [np.where(mask, x, 0).sum(1, keepdims=True) for x in (ratios, moved, base)]
    ours = ise.estimate_entropy_change(
        *sums,
        np.ones((64, 1)),
        batch.prompt_index,
        batch.lengths,
        estimator=ise.EstimatorOptions(per),
    )
    theirs = ise.estimate_entropy_change(
        ratios,
        moved,
        base,
        mask,
        batch.prompt_index,
        estimator=ise.EstimatorOptions(per, method="sequence"),
    )
    assert ours.method == "sequence"
    assert (ours.value, ours.se) == pytest.approx((theirs.value, theirs.se), rel=1e-12)


@pytest.mark.parametrize("eta", [0.1, 0.3])
def test_chi_square_gives_the_verdict_of_the_model(eta):
    exact = cases.exact("qwen2")
    policy, batch, v = exact.policy, exact.sample(256, 0), cases.direction(exact.policy)
    ((moved, divergence),) = score_moved(policy, batch, v, [eta])
    base = score(policy, batch)
    given = (moved.logprobs - base.logprobs, moved.entropies, base.entropies, base.mask)
    blind = ise.estimate_entropy_change(*given, batch.prompt_index)
    chi_square = divergence.jumps[..., 0]
    ours = ise.estimate_entropy_change(*given, batch.prompt_index, chi_square=chi_square)
    theirs = ise.entropy_change(policy, batch, v, [eta], order=0).points[0].change
    assert np.isnan(blind.ci_low)
    np.testing.assert_allclose([ours.ci_low, ours.se], [theirs.ci_low, theirs.se], rtol=1e-9)
    assert np.isfinite(ours.ci_low) == (eta == 0.1)


def test_arrays_that_do_not_fit_are_refused(arrays):
    _, batch, _, (ratios, moved, base, mask) = arrays
    with pytest.raises(ValueError, match="share one shape"):
        ise.estimate_entropy_change(ratios[:, 1:], moved, base, mask, batch.prompt_index)
    with pytest.raises(ValueError, match="share one shape"):
        ise.estimate_entropy_change(ratios, moved, base, mask, batch.prompt_index[1:])
    with pytest.raises(ValueError, match="not finite"):
        ise.estimate_entropy_change(ratios, moved, base, np.ones_like(mask), batch.prompt_index)
    with pytest.raises(ValueError, match="t = 1"):
        ise.estimate_entropy_change(ratios, moved, base, mask, batch.prompt_index, batch.lengths)
    with pytest.raises(ValueError, match="chi_square is negative"):
        ise.estimate_entropy_change(
            ratios, moved, base, mask, batch.prompt_index, chi_square=-np.ones_like(base)
        )


def test_padding_on_the_left_is_refused_where_positions_matter():
    ones, mask = torch.ones(4, 3), torch.tensor([[False, True, True]] * 4)
    arrays = (0 * ones, ones, ones, mask, torch.arange(4))
    with pytest.raises(ValueError, match="pad on the right"):
        ise.estimate_entropy_change(*arrays)
    assert (
        ise.estimate_entropy_change(
            *arrays, estimator=ise.EstimatorOptions(method="sequence")
        ).value
        == 0
    )


def test_places_without_a_token_have_no_chi_square():
    """One token of two places each; its χ² is too large for an interval, and 0 follows it."""
    values = torch.linspace(0.1, 1, 32, dtype=torch.float64)[:, None].expand(32, 2)
    mask, spread = torch.tensor([[True, False]] * 32), torch.full((32, 2), 0.5)
    found = ise.estimate_entropy_change(
        *(0 * values, values.square(), values, mask, torch.arange(32)), chi_square=spread
    )
    assert np.isfinite(found.se)
    assert np.isnan(found.ci_low)
