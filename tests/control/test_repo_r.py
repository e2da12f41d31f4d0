"""REPO-R: weights by surprisal."""

import pytest
import torch

from isentrope.control.repo_r import RepoR
from tests.control.batches import batch, padded, places


@pytest.mark.parametrize("zeta", [0.05, 0.5, -0.05, -0.5])
def test_repo_r(zeta):
    tokens = batch()
    expected = {}
    for i, k, A, s, _, w, _ in places(tokens):
        new = max(0.0, A * (1 - zeta * s)) if A > 0 else min(0.0, A * (1 + zeta * s))
        expected[i, k] = w * new
    made = RepoR().rewrite(tokens, zeta)
    torch.testing.assert_close(made.weights, padded(tokens, expected), rtol=1e-12, atol=1e-15)
