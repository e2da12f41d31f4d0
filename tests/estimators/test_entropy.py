import pytest
import torch

from isentrope.estimators.entropy import entropy, surprisal_entropy
from isentrope.estimators.identities import martingale_z, score_identity_z
from isentrope.estimators.sample import draw_sample
from tests import cases


@pytest.mark.parametrize("functional", cases.FUNCTIONALS)
@pytest.mark.parametrize("name", cases.POLICIES)
def test_both_estimators_find_the_entropy(name, functional):
    exact = cases.exact(name)
    batch, truth = exact.sample(2000, 0), exact.entropy(functional)
    rao_blackwell = entropy(exact.policy, batch, functional=functional)
    surprisal = surprisal_entropy(exact.policy, batch, functional=functional)
    assert abs(rao_blackwell.value - truth) < 4 * rao_blackwell.se
    assert abs(surprisal.value - truth) < 4 * surprisal.se
    assert rao_blackwell.se < surprisal.se
    assert functional.split("_")[1] in rao_blackwell.unit


def identities(exact, batch):
    sample = draw_sample(
        exact.policy,
        batch,
        functional="per_token",
        method="prefix",
        direction=cases.direction(exact.policy),
        order=1,
    )
    return abs(martingale_z(sample)), abs(score_identity_z(sample))


@pytest.mark.parametrize("name", cases.POLICIES)
def test_identities_hold_for_samples_of_the_policy_itself(name):
    exact = cases.exact(name)
    assert max(identities(exact, exact.sample(4000, 1))) < 3.5


def test_identities_fail_for_a_sampler_that_drops_unlikely_responses():
    exact = cases.exact("qwen2")
    probabilities = exact.probabilities()
    kept = probabilities * (probabilities > probabilities.median())
    kept = kept.reshape(exact.n_prompts, -1)
    drawn = exact.draw(4000, 1, (kept / kept.sum(1, keepdim=True)).flatten())
    batch = exact.rollouts.select(drawn).with_columns(prompt_index=torch.arange(4000))
    assert max(identities(exact, batch)) > 4


def test_score_identity_asks_for_derivatives():
    exact = cases.exact("table")
    sample = draw_sample(exact.policy, exact.sample(8, 0), functional="per_token", method="prefix")
    with pytest.raises(ValueError, match="derivatives"):
        score_identity_z(sample)
