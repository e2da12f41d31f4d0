"""A projected step, against what its derivation says of typical and of other responses."""

import pytest
import torch

from studies.theory_projection import kept, span
from studies.theory_typical import policies, typical
from studies.theory_variance import enumerated, rewards


@pytest.fixture(scope="module")
def small():
    """Scores, log-probabilities, rewards and the weights of a step, of a Markov table."""
    w, log_pi, tokens = enumerated(policies(0)["Markov table"], 2)
    reward = rewards(tokens, 0)["independent"]
    pi = log_pi.exp()
    return w, log_pi, reward, pi * (reward - pi @ reward)


def test_typical_responses_move_as_before_and_others_make_the_difference(small):
    w, log_pi, reward, weights = small
    pi = log_pi.exp()
    chosen = typical(pi)
    basis = span(w[chosen])
    step = weights @ w
    rest = step - basis @ (basis.T @ step)
    torch.testing.assert_close(w[chosen] @ rest, torch.zeros(len(chosen), dtype=torch.float64))
    others = torch.ones(len(pi), dtype=torch.bool)
    others[chosen] = False
    centred = log_pi - pi @ log_pi
    lost = -((pi * centred)[others] @ (w[others] @ rest))
    whole = -((pi * centred) @ (w @ step))
    assert kept(w, log_pi, reward, weights).entropy == pytest.approx(float(1 - lost / whole))


def test_a_set_that_spans_everything_loses_nothing(small):
    w, log_pi, reward, weights = small
    few = w @ torch.eye(w.shape[1], dtype=w.dtype)[:, :1]
    result = kept(few, log_pi, reward, weights)
    assert (result.size, result.entropy, result.reward) == pytest.approx((1, 1, 1))
