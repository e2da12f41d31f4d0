"""Var δH₁, against every batch of two of a table of logits and the gradient of its entropy."""

import itertools

import pytest
import torch

from studies.theory_policies import all_responses
from studies.theory_typical import PROMPT, V, markov_scores
from studies.theory_variance import rewards, variance

LENGTH = 2


def log_probabilities(table, tokens):
    """(n,) of responses of two tokens to a Markov table."""
    rows = table.log_softmax(-1)
    return rows[PROMPT[-1]][tokens[:, 0]] + rows[tokens[:, 0], tokens[:, 1]]


@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_the_variance_over_every_batch_of_two(seed):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(V, V, generator=generator, dtype=torch.float64, requires_grad=True)
    responses = all_responses(PROMPT, V, LENGTH)
    tokens = torch.stack(responses.response_ids)
    log_pi = log_probabilities(table, tokens)
    entropy = -(log_pi.exp() @ log_pi)
    (slope,) = torch.autograd.grad(entropy, table, retain_graph=True)
    scores = torch.stack(
        [torch.autograd.grad(x, table, retain_graph=True)[0].flatten() for x in log_pi]
    )
    pi = log_pi.detach().exp()
    for reward in rewards(tokens, seed).values():
        parts = (reward - pi @ reward) * (scores @ slope.flatten())
        pairs = list(itertools.product(range(len(pi)), repeat=2))
        changes = torch.stack([(parts[i] + parts[j]) / 2 for i, j in pairs])
        chances = torch.stack([pi[i] * pi[j] for i, j in pairs])
        truth = chances @ changes.square() - (chances @ changes) ** 2
        w, by_counts = markov_scores(table.detach(), responses)
        assert variance(w, by_counts, reward).exact / 2 == pytest.approx(float(truth), rel=1e-9)
