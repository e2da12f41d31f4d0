"""The entropy bonus: loops over tokens, and its expectation against exact gradients."""

import math
from dataclasses import replace

import pytest
import torch

from isentrope import Policy, score
from isentrope.control.base import Tokens
from isentrope.control.bonus import Bonus
from isentrope.nouns.vectors import Vector
from isentrope.oracle import enumerate_policy
from isentrope.policy.gradient import weighted_gradient
from tests import cases
from tests.control.batches import batch, padded, places


def relative(found: Vector, expected: Vector) -> float:
    flat = [torch.cat([x[n].flatten() for n in expected]) for x in (found, expected)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


@pytest.mark.parametrize("beta", [0.01, -0.3])
@pytest.mark.parametrize("per", ["token", "sequence"])
def test_pathwise_is_a_weight_on_every_entropy(beta, per):
    tokens = batch()
    made = Bonus(per=per).rewrite(tokens, beta)
    unit = len(places(tokens)) if per == "token" else 20
    assert torch.equal(made.weights, tokens.weights)
    torch.testing.assert_close(
        made.entropy_weights, tokens.mask.double() * (beta / unit), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("per", ["token", "sequence"])
def test_complete_gives_each_token_what_follows_it(per):
    tokens = batch()
    rows = places(tokens)
    H = {row[:2]: row[4] for row in rows}
    h = math.fsum(H.values()) / len(H) if per == "token" else 0.0
    unit = len(H) if per == "token" else 20

    def later(i, k):
        return math.fsum(H[i, j] - h for j in range(k + 1, 7) if (i, j) in H)

    def baseline(i, k):
        first = 4 * (i // 4)
        others = [j for j in range(first, first + 4) if j != i and (j, k) in H]
        return math.fsum(later(j, k) for j in others) / len(others) if others else 0.0

    expected = {(i, k): c + 0.3 / unit * (later(i, k) - baseline(i, k)) for i, k, *_, c in rows}
    made = Bonus(mode="complete", per=per).rewrite(tokens, 0.3)
    torch.testing.assert_close(made.weights, padded(tokens, expected), rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(
        made.entropy_weights, tokens.mask.double() * (0.3 / unit), rtol=1e-12, atol=0
    )


def tokens_of(scores, rows, group):
    """A batch of enumerated responses without rewards."""
    zero = torch.zeros(len(rows), dtype=torch.float64)
    one = torch.ones_like(zero)
    table = scores.logprobs[rows], scores.entropies[rows], scores.mask[rows]
    return Tokens(*table, one, zero, zero, group, step=1)


@pytest.mark.parametrize("name", ["table", "qwen2"])
def test_complete_is_unbiased_for_the_entropy_of_a_sequence(name):
    """Over all pairs of responses to a prompt, weighted by their probability, it is ∂ℋ exactly."""
    exact = cases.small_exact(name)
    pi, index = exact.probabilities(), exact.rollouts.prompt_index
    scores = score(exact.policy, exact.rollouts)
    a, d = (torch.zeros_like(scores.logprobs) for _ in range(2))
    rule = Bonus(mode="complete", per="sequence")
    for prompt in range(exact.n_prompts):
        here = (index == prompt).nonzero()[:, 0].tolist()
        for i in here:
            for j in here:
                tokens = tokens_of(scores, [i, j], torch.zeros(2, dtype=torch.int64))
                made = rule.rewrite(tokens, 1.0)
                chance = float(pi[i] * pi[j]) / exact.n_prompts
                for row, place in ((0, i), (1, j)):
                    a[place] += chance * made.weights[row]
                    d[place] += chance * made.entropy_weights[row]
    found = weighted_gradient(exact.policy, exact.rollouts, a, d)
    expected = exact.entropy_gradient("sequence")
    assert relative(found, expected) < 1e-7
    pathwise = weighted_gradient(exact.policy, exact.rollouts, torch.zeros_like(a), d)
    assert relative(pathwise, expected) > 0.1  # what a bonus without the score part is off by


def dyadic():
    """A table with probabilities of halves, quarters and eighths, so that replicas are exact."""
    model = cases.model("table", 3)
    rows = torch.tensor([[0.5, 0.25, 0.25], [0.75, 0.125, 0.125], [0.25, 0.5, 0.25]])
    chosen = torch.arange(len(model.table)) * 7 % 3
    with torch.no_grad():
        model.table.copy_(rows[chosen].double().log())
    return enumerate_policy(Policy(model, eos_token_id=0), [[1]], max_new_tokens=3)


def test_complete_is_the_gradient_of_entropy_per_token_on_a_whole_population():
    """512 responses that hold every response as often as it is likely: means are expectations."""
    exact = dyadic()
    copies = (512 * exact.probabilities()).round().long()
    torch.testing.assert_close(copies / 512.0, exact.probabilities(), check_dtype=False)
    rows = torch.arange(len(copies)).repeat_interleave(copies)
    population = exact.rollouts.select(rows)
    scores = score(exact.policy, exact.rollouts)
    tokens = tokens_of(scores, rows, torch.zeros(512, dtype=torch.int64))
    expected = exact.entropy_gradient("token")
    made = Bonus(mode="complete", baseline="none").rewrite(tokens, 1.0)
    found = weighted_gradient(exact.policy, population, made.weights, made.entropy_weights)
    assert relative(found, expected) < 1e-7
    none = torch.zeros_like(made.weights)
    pathwise = weighted_gradient(exact.policy, population, none, made.entropy_weights)
    assert relative(pathwise, expected) > 0.1
    # the baseline leaves the own response out, which differs by O(1/n) of the score part alone
    made = Bonus(mode="complete").rewrite(tokens, 1.0)
    found = weighted_gradient(exact.policy, population, made.weights, made.entropy_weights)
    assert relative(found, expected) < 0.05


def test_the_bonus_comes_on_top_of_the_objective():
    tokens = batch()
    rule = Bonus(mode="complete")
    idle = replace(tokens, advantages=torch.zeros(20, dtype=torch.float64))
    alone = rule.rewrite(idle, 0.3).weights
    torch.testing.assert_close(rule.rewrite(tokens, 0.3).weights, tokens.weights + alone)
