"""Trained layers that are spread over processes: the policy is that of whole ones."""

import pytest

from tests.torchrun import torchrun


@pytest.mark.slow
def test_scores_derivatives_and_vectors_are_those_of_whole_layers():
    torchrun(3, "tests.policy.spread_theta")
