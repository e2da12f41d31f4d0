"""The delete-a-group jackknife, against the standard error of a mean."""

import pytest
import torch

from isentrope.attribution.frontier.deleted_groups import DeletedGroups


def test_the_error_of_a_mean_over_groups_is_the_one_of_their_spread():
    x = torch.randn(11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    number = DeletedGroups.of(lambda groups: x[groups].mean(), len(x))
    torch.testing.assert_close(number.influences, (x - x.mean()) / len(x))
    assert number.value == pytest.approx(float(x.mean()))
    assert number.variance == pytest.approx(float(x.var()) / len(x))
    assert number.errors_from_zero == pytest.approx(float(x.mean() / x.std()) * len(x) ** 0.5)
