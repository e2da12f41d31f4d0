"""The terms of long responses, against the kernel of every response by differences."""

import pytest
import torch

from isentrope.oracle import TabularPolicy, enumerate_policy
from isentrope.policy.language_model import Policy
from studies import theory_long
from studies.theory_policies import transformer
from tests.exact_kernel import exact_kernel

V, LENGTH = 3, 3
PROMPTS = [[0], [1]]


def listed(memory):
    """A table whose responses have three tokens each, with all of them."""
    policy = Policy(TabularPolicy(V, LENGTH, memory=memory), eos_token_id=())
    return enumerate_policy(policy, PROMPTS, LENGTH)


def by_sums(exact):
    """The six terms as sums over pairs of responses: K by differences, π and rewards by hand."""
    K, pi = exact_kernel(exact), exact.probabilities()
    prompt = exact.rollouts.prompt_index
    reward = torch.stack([(r == 0).double().mean() for r in exact.rollouts.response_ids])
    mean = torch.zeros(2).double().index_add(0, prompt, pi * reward)
    entropy = torch.zeros(2).double().index_add(0, prompt, -pi * pi.log())
    left = -pi * (pi.log() + entropy[prompt])
    right = pi * (reward - mean[prompt])
    same, weights = prompt[:, None] == prompt, pi[:, None] * pi
    square, pairs = weights * K.square(), left[:, None] * K * right

    def rms(p, q):
        return float(square[prompt == p][:, prompt == q].sum()) ** 0.5

    return theory_long.Terms(
        float(pi @ K.diagonal()) / 2,
        (rms(0, 0) + rms(1, 1)) / 2,
        rms(0, 1),
        float((left * (reward - mean[prompt])) @ K.diagonal()) / 2,
        float(pairs[same].sum()) / 2,
        float(pairs[~same].sum()) / 2,
    )


def agree(found, truth, names):
    for name in names:
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=1e-9, abs=1e-11), (
            name
        )


ALL = ("diagonal", "same", "other", "own_pair", "same_pair", "other_pair")


def test_a_table_with_a_row_per_prefix_has_these_terms():
    exact = listed(None)
    model, found = exact.policy.model, []
    for prompt in PROMPTS:
        prefixes = [[prompt]]
        for _ in range(LENGTH - 1):
            prefixes.append([[*x, a] for x in prefixes[-1] for a in range(V)])
        levels = [model(torch.tensor(x)).logits[:, -1].detach() for x in prefixes]
        found.append(theory_long.context_terms(levels))
    mean = theory_long.Terms(*(sum(getattr(x, n) for x in found) / 2 for n in ALL))
    agree(mean, by_sums(exact), ALL)


def test_a_markov_table_has_these_terms():
    exact = listed(1)
    logits = exact.policy.model.table[1:].detach()  # row 0 is of no token
    found, _ = theory_long.markov_terms(logits, (0, 1), LENGTH)
    truth = by_sums(exact)
    agree(found, truth, [n for n in ALL if n != "own_pair"])
    own = sum(theory_long.markov_own_pair(logits, p, LENGTH, 200_000, 0) for p in (0, 1)) / 2
    assert own == pytest.approx(truth.own_pair, abs=0.01)


def test_terms_from_score_vectors_are_those_of_the_sums():
    exact = listed(1)
    policy = exact.policy
    found = theory_long.enumerated_terms(policy, PROMPTS, LENGTH, backend="loop")
    agree(found, by_sums(exact), ALL)


@pytest.mark.slow
def test_sampled_terms_are_correct_on_average():
    policy, prompts = transformer(V, 4), [[0, 1], [1, 2]]
    truth = theory_long.enumerated_terms(policy, prompts, LENGTH)
    found = [theory_long.sampled_terms(policy, prompts, LENGTH, seed) for seed in range(150)]
    for name in ("diagonal", "own_pair", "same_pair", "other_pair"):
        values = torch.tensor([getattr(x, name) for x in found])
        error = float(values.std()) / len(values) ** 0.5
        assert abs(float(values.mean()) - getattr(truth, name)) < 4 * error, name


def test_off_the_diagonal_a_context_table_stays_and_a_shared_one_grows():
    """Twice the length: the diagonal doubles in both, the rest in the shared table only."""
    short, long = (theory_long.context_terms(theory_long.random_levels(2, D, 0)) for D in (6, 12))
    assert long.diagonal / short.diagonal == pytest.approx(2, abs=0.2)
    assert long.same / short.same == pytest.approx(1, abs=0.05)
    logits = theory_long.random_levels(3, 2, 0)[1]
    short, long = (theory_long.markov_terms(logits, (0, 1), D)[0] for D in (64, 128))
    for name in ("diagonal", "same", "other", "same_pair", "other_pair"):
        ratio = getattr(long, name) / getattr(short, name)
        assert ratio == pytest.approx(2, abs=0.15), name
