"""δH₁ in its kernel form and by class of pairs: against differences, and an enumerated policy."""

import numpy as np
import pytest
import torch

from isentrope import fisher_kernel
from isentrope.attribution.fisher.pair_classes import kernel_form, own_pairs, pair_classes
from isentrope.attribution.fisher.prompt_pairs import PromptPairs
from isentrope.policy.gradient import weighted_gradient
from tests.attribution import differences
from tests.attribution.test_influence import setting


def numbers(n=12, m=8, prompts=4, seed=0):
    """A block, S of its rows, weights of its columns, and prompts of both."""
    draw = np.random.default_rng(seed)
    arrays = (draw.normal(size=(n, m)), draw.normal(size=n), draw.normal(size=m) / m)
    K, S, x = (torch.from_numpy(a) for a in arrays)
    return K, S, x, torch.arange(n) % prompts, torch.arange(m) % prompts


def naive(K, S, x):
    """(n, m) parts of the double sum."""
    n = len(S)
    return np.array(
        [[-(S[i] - S.mean()) / n * K[i, j] * x[j] for j in range(len(x))] for i in range(n)]
    )


@pytest.mark.parametrize("preconditioned", [True, False])
def test_the_kernel_form_is_the_derivative_of_the_surprisal_along_the_gradients_part(
    preconditioned,
):
    """−E[(S − S̄) ∂_v S], ∂_v S by differences of the bare model's logits."""
    policy, E, U, step = setting()
    x = U.advantages / (len(U) * 9)
    weights = x[:, None] * U.mask
    P = step.preconditioner if preconditioned else None
    v = weighted_gradient(policy, U, weights)
    v = {name: g * P[name] for name, g in v.items()} if preconditioned else v
    K = fisher_kernel(policy, E, U, preconditioner=P)
    here, first, _ = differences.derivatives(policy, E, v, 1e-4)
    S, dS = here[0].sum(1), first[0].sum(1)
    found = kernel_form(K.matrix, S, x, E.prompt_index)
    assert found.value == pytest.approx(float(-((S - S.mean()) * dS).mean()), rel=1e-7)
    influences = -((S - S.mean()) * (dS - dS.mean()) - ((S - S.mean()) * dS).mean()) / len(S)
    n = len(S)
    left = [
        float(-((s - s.mean()) * d).mean())
        for s, d in ((S[k], dS[k]) for k in (torch.arange(n) != i for i in range(n)))
    ]
    assert found.se == pytest.approx(np.sqrt((n - 1) / n * np.var(left) * n), rel=1e-6)
    assert found.se == pytest.approx(float(influences.std()) * n**0.5, rel=0.5)  # first order


def test_classes_sum_to_the_kernel_form_and_are_masked_double_sums():
    K, S, x, rows, columns = numbers()
    own = torch.rand(12, 8, generator=torch.Generator().manual_seed(1)) < 0.3
    found = pair_classes(K, S, x, PromptPairs(rows, columns), own)
    parts, same = naive(K, S, x), (rows[:, None] == columns).numpy()
    masks = {
        "own": own.numpy() & same,
        "same_prompt": ~own.numpy() & same,
        "other_prompt": ~same,
    }
    for name, mask in masks.items():
        assert found[name].pairs == mask.sum()
        assert found[name].fraction == pytest.approx(mask.mean())
        assert found[name].contribution.value == pytest.approx(parts[mask].sum(), rel=1e-10)
        per_pair = parts[mask].sum() / mask.mean()
        assert found[name].per_pair.value == pytest.approx(per_pair, rel=1e-10)
    total = sum(part.contribution.value for part in found.values())
    assert total == pytest.approx(kernel_form(K, S, x, rows).value, rel=1e-10)


def test_the_error_deletes_a_prompts_rows_and_columns_and_the_mean_with_them():
    K, S, x, rows, columns = numbers()
    none = torch.zeros(12, 8, dtype=torch.bool)
    part = pair_classes(K, S, x, PromptPairs(rows, columns), none)["other_prompt"]
    left = []
    for p in range(4):
        i, j = rows != p, columns != p
        c = naive(K[i][:, j], S[i], x[j]) * len(S[i]) * len(x)
        left.append(c[(rows[i][:, None] != columns[j]).numpy()].mean())
    se = np.sqrt(3 / 4 * ((np.array(left) - np.mean(left)) ** 2).sum())
    assert part.per_pair.se == pytest.approx(se, rel=1e-9)
    assert part.contribution.se == pytest.approx(se * part.fraction, rel=1e-9)


def test_own_pairs_are_equal_responses_to_one_prompt():
    rows = [torch.tensor(r) for r in ([1, 2], [3], [1, 2])]
    columns = [torch.tensor(r) for r in ([3], [1, 2])]
    same = torch.tensor([[True, True], [True, True], [False, False]])
    assert own_pairs(rows, columns, same).tolist() == [[False, True], [True, False], [False] * 2]
