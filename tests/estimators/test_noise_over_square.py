"""The number of prompts at which noise is a share of the mean."""

import pytest
import torch

from isentrope.estimators.noise_over_square import noise_over_square


def test_the_value_and_its_error_are_those_of_the_ratio_without_each_prompt():
    x = torch.randn(400, dtype=torch.float64) + 1
    n = len(x)

    def prompts(values):
        return 9 * values.var() / (values.mean() ** 2 - values.var() / len(values))

    deleted = torch.stack([prompts(torch.cat([x[:i], x[i + 1 :]])) for i in range(n)])
    error = float(((1 - 1 / n) * (deleted - deleted.mean()).square().sum()).sqrt())
    ratio = noise_over_square(x, 9.0, 0.95)
    assert ratio.value == pytest.approx(float(prompts(x)))
    assert ratio.se == pytest.approx(error, rel=0.02)
