"""Prefixes, edits, and the kernel of a policy whose prefixes share nothing."""

import numpy as np
import pytest
import torch

from studies import theory_distance
from tests import cases
from tests.exact_kernel import exact_kernel


def test_the_kernel_of_a_table_is_that_of_the_shared_prefix():
    exact = cases.small_exact("table")
    policy, all_ = exact.policy, exact.rollouts
    K, log_p = exact_kernel(exact), theory_distance.next_token_log_p(policy, all_)
    found = torch.zeros_like(K)
    for i in range(len(all_)):
        for j in range(len(all_)):
            if all_.prompt_index[i] == all_.prompt_index[j]:
                rows, a, b = list(log_p[i]), all_.response_ids[i], all_.response_ids[j]
                found[i, j] = theory_distance.prefix_kernel(rows, a, b)
    torch.testing.assert_close(found, K, rtol=0, atol=1e-9 * float(K.abs().max()))


@pytest.mark.parametrize(
    ("a", "b", "prefix", "edits"),
    [
        ([1, 2, 3], [1, 2, 3], 3, 0),
        ([1, 2, 3], [1, 4, 3], 1, 1),
        ([1, 2, 3], [2, 3], 0, 1),
        ([1, 2, 3, 4], [4, 3, 2, 1], 0, 4),
        ([1], [1, 1, 1], 1, 2),
        ([1, 2, 1, 2], [2, 1, 2, 1], 0, 2),
    ],
)
def test_prefixes_and_edits_by_hand(a, b, prefix, edits):
    a, b = torch.tensor(a), torch.tensor(b)
    assert theory_distance.common_prefix(a, b) == prefix
    assert theory_distance.edit_distance(a, b) == theory_distance.edit_distance(b, a) == edits


def test_a_fit_has_the_slopes_of_least_squares_and_the_error_of_dropping_each_prompt():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=rng, dtype=torch.float64)
    prompts = torch.arange(60) // 6
    y = 1 + 2 * x[:, 0] - x[:, 1] + torch.randn(60, generator=rng, dtype=torch.float64)
    found = theory_distance.fit(y, x, prompts)

    def slopes(kept):
        design = np.column_stack([np.ones(len(x)), x])[kept]
        return np.linalg.lstsq(design, y.numpy()[kept])[0]

    values = slopes(np.ones(60, dtype=bool))
    deleted = np.array([slopes((prompts != p).numpy()) for p in range(10)])
    se = np.sqrt(0.9 * ((deleted - deleted.mean(0)) ** 2).sum(0))
    np.testing.assert_allclose([e.value for e in found[:3]], values)
    np.testing.assert_allclose([e.se for e in found[:3]], se)
