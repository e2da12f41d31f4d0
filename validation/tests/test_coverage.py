"""Right on average, and as uncertain as stated: 1000 batches against the exact oracle."""

import pytest

from tests import cases
from validation.coverage import QUANTITIES, exceptions, mse_ratio, reference_of, study

BATCHES = 1000
KNOWN_EXCEPTIONS = {("llama", "per_token", "prefix", "middle η")}
"""No theorem says that prefix weights beat whole-sequence weights for a ratio such as h: here they
have 1.14 of its mean squared error. The doubly-robust method has no exception."""


@pytest.mark.slow
@pytest.mark.parametrize("functional", ["per_token", "per_sequence"])
@pytest.mark.parametrize("policy", cases.POLICIES)
def test_estimators_are_unbiased_and_their_intervals_cover(policy, functional):
    rows = study(policy, functional, BATCHES)
    weighted = [row for row in rows if row.method != "resampled"]
    for row in weighted:
        if row.quantity in QUANTITIES[:4]:  # entropy, both orders, small η
            assert abs(row.bias_z) < 4, row
            assert row.printed == 1, row
            assert 0.92 <= row.coverage <= 0.98, row
    for row in rows:
        if row.printed > 0.5:
            assert 0.92 <= row.coverage <= 0.98, row
    for row in exceptions(rows):
        assert (row.policy, row.functional, row.method, row.quantity) in KNOWN_EXCEPTIONS, row
    for row in weighted:
        ratio, error = mse_ratio(row, reference_of(row, rows))
        key = (row.policy, row.functional, row.method, row.quantity)
        if row.method != "sequence" and row.ess_sequence < 0.9 and key not in KNOWN_EXCEPTIONS:
            assert ratio + 2 * error < 1, row
