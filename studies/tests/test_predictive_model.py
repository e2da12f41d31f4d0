"""The predictive model: exact where its assumptions hold, by enumeration and by planting."""

import pytest
import torch

from isentrope.oracle import TabularPolicy, enumerate_policy
from isentrope.policy.language_model import Policy
from studies.predictive_model import PredictiveModel, fit_predictive_model
from tests.exact_kernel import exact_kernel


def test_a_markov_policy_is_predicted_exactly_from_half_of_its_prompts():
    """K of every response by differences: rank v(v − 1) = 6, and no class means to fit."""
    policy = Policy(TabularPolicy(3, 3, memory=1), eos_token_id=())
    exact = enumerate_policy(policy, [[0], [1], [2], [0, 1]], 3)
    K, prompts = exact_kernel(exact), exact.rollouts.prompt_index
    fitted, new = prompts < 2, prompts >= 2
    none = torch.zeros_like(prompts)
    values, vectors = leading(K[fitted][:, fitted], 6)
    model = PredictiveModel({}, values, vectors, prompts[fitted], none[fitted])
    found = model.predict(prompts[new], none[new], K[new][:, fitted])
    truth = K[new][:, new]
    torch.testing.assert_close(found, truth, rtol=0, atol=1e-9 * float(truth.abs().max()))


def leading(matrix, rank):
    values, vectors = torch.linalg.eigh(matrix)
    return values[-rank:], vectors[:, -rank:]


def planted(prompts, responses, rank, seed=0):
    """Cosine-like matrix: classes pull the two kinds of a prompt apart, plus a few directions."""
    rng = torch.Generator().manual_seed(seed)
    index = torch.arange(prompts).repeat_interleave(responses)
    classes = torch.arange(len(index)) % 2
    sign = 1.0 - 2.0 * classes
    same = (index[:, None] == index).double() * sign[:, None] * sign
    f = torch.randn(len(index), rank, generator=rng, dtype=torch.float64)
    M = 0.5 * same + 0.5 * torch.eye(len(index)) + f @ f.T / rank
    return M.double(), index, classes, f


def test_planted_means_by_class_and_relation_are_found():
    M, prompts, classes, f = planted(6, 4, 1)
    found = fit_predictive_model(M - f @ f.T, prompts, classes, rank=0)
    assert found.means["diagonal", 0, 0] == pytest.approx(1)
    assert found.means["same_prompt", 0, 0] == pytest.approx(0.5)
    assert found.means["same_prompt", 0, 1] == pytest.approx(-0.5)
    assert found.means["cross_prompt", 0, 1] == pytest.approx(0)
    torch.testing.assert_close(found.class_means(prompts, classes), M - f @ f.T)


def test_planted_directions_are_predicted_for_prompts_that_were_not_fitted():
    M, prompts, classes, _ = planted(80, 4, 3)
    old = prompts < 40
    model = fit_predictive_model(M[old][:, old], prompts[old], classes[old], rank=3)
    found = model.predict(prompts[~old], classes[~old], M[~old][:, old])
    truth = M[~old][:, ~old]
    off = ~torch.eye(len(truth), dtype=torch.bool)
    share = 1 - float((found - truth)[off].square().sum() / truth[off].square().sum())
    means_alone = model.class_means(prompts[~old], classes[~old])
    without = 1 - float((means_alone - truth)[off].square().sum() / truth[off].square().sum())
    assert share > 0.95
    assert without < 0.2


def test_what_does_not_fit_is_refused():
    M, prompts, classes, _ = planted(6, 4, 1)
    with pytest.raises(ValueError, match="n = 24, got 25"):
        fit_predictive_model(M, prompts, classes, rank=25)
    with pytest.raises(ValueError, match="classes"):
        fit_predictive_model(M, prompts, classes[:3], rank=1)
    model = fit_predictive_model(M, prompts, classes, rank=1)
    with pytest.raises(ValueError, match="split by prompts"):
        model.predict(prompts, classes, M)
    with pytest.raises(ValueError, match="shape"):
        model.predict(prompts + 10, classes, M[:, :3])
