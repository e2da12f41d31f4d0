"""The paired comparison of two kernels: against the oracle, and against deleting each prompt."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from isentrope.attribution.fisher.kernel import FisherKernel
from studies.conditioning import compare_kernels, conditioning
from tests import cases
from tests.exact_kernel import exact_kernel

SIX = torch.tensor([0, 3, 9, 20, 22, 28])


def positive(policy):
    return {n: v.abs() + 0.1 for n, v in cases.direction(policy, seed=4).items()}


def rms_and_rank(K, prompts):
    """rms cosine of one prompt and of others, and the effective rank, by loops."""
    sums = {True: [], False: []}
    for i in range(len(K)):
        for j in range(len(K)):
            if i != j:
                cosine = K[i, j] / (K[i, i] * K[j, j]) ** 0.5
                sums[bool(prompts[i] == prompts[j])].append(float(cosine) ** 2)
    rank = np.trace(K) ** 2 / (K**2).sum()
    return np.mean(sums[True]) ** 0.5, np.mean(sums[False]) ** 0.5, rank


def test_the_two_kernels_are_those_of_enumeration():
    exact = cases.small_exact("llama")
    policy, P, U = exact.policy, positive(exact.policy), exact.rollouts.select(SIX)
    found = conditioning(policy, U, P)
    for kernel, truth in (
        (found.preconditioned, exact_kernel(exact, P, rows=SIX)),
        (found.plain, exact_kernel(exact, rows=SIX)),
    ):
        scale = float(truth.abs().max())
        torch.testing.assert_close(kernel.matrix, truth, rtol=0, atol=1e-9 * scale)
    names = ("same_prompt rms_cosine", "cross_prompt rms_cosine", "effective_rank")
    for side, K in (
        ("preconditioned", exact_kernel(exact, P, rows=SIX)),
        ("plain", exact_kernel(exact, rows=SIX)),
    ):
        by_hand = rms_and_rank(K.numpy(), U.prompt_index.numpy())
        values = [getattr(found[name], side).value for name in names]
        np.testing.assert_allclose(values, by_hand, rtol=1e-9)


def kernels(seed=0, prompts=8, group=3):
    """Two kernels of random gradients of which those of one prompt share a direction."""
    rng = torch.Generator().manual_seed(seed)
    index = torch.arange(prompts).repeat_interleave(group)
    w = torch.randn(prompts, 40, generator=rng)[index] + torch.randn(len(index), 40, generator=rng)
    P = torch.linspace(0.2, 2, 40).double()
    rows = pd.DataFrame({"prompt": index, "identity": [str(int(i)) for i in index], "length": 1})
    return [
        FisherKernel((w.double() * p) @ w.double().T, rows, rows, True, 40, 1e-9)
        for p in (P, torch.ones(40).double())
    ]


def test_the_error_of_the_difference_is_that_of_dropping_each_prompt():
    both = kernels()
    found = compare_kernels(*both)
    prompts = torch.tensor(both[0].rows["prompt"].to_numpy())
    deleted = []
    for p in range(8):
        kept = prompts != p
        first, second = (
            np.array(rms_and_rank(k.matrix[kept][:, kept].numpy(), prompts[kept].numpy()))
            for k in both
        )
        deleted.append((first - second)[:2])
    spread = np.array(deleted) - np.mean(deleted, 0)
    expected = np.sqrt(7 / 8 * (spread**2).sum(0))
    names = ("same_prompt rms_cosine", "cross_prompt rms_cosine")
    np.testing.assert_allclose([found[n].difference.se for n in names], expected, rtol=1e-9)
    for pair in found.quantities.values():
        gap = pair.preconditioned.value - pair.plain.value
        assert pair.difference.value == pytest.approx(gap, abs=1e-12)
    unpaired = np.hypot(*(getattr(found[names[0]], k).se for k in ("preconditioned", "plain")))
    assert found[names[0]].difference.se < unpaired


@pytest.mark.slow
def test_the_intervals_of_the_differences_cover_as_stated():
    found = [compare_kernels(*kernels(seed, prompts=24)) for seed in range(200)]
    names = ("same_prompt rms_cosine", "cross_prompt rms_cosine", "same_prompt mean_cosine")
    for name in (*names, "effective_rank"):
        differences = [x[name].difference for x in found]
        mean = np.mean([d.value for d in differences])
        assert 0.91 <= np.mean([d.covers(mean) for d in differences]) <= 0.99, name


def test_a_kernel_does_not_differ_from_itself():
    first, _ = kernels()
    found = compare_kernels(first, first)
    assert found.cluster_overlap == 1
    assert all(q.difference.value == q.difference.se == 0 for q in found.quantities.values())
    assert set(found.to_frame()["kernel"]) == {"preconditioned", "plain", "difference"}


def test_kernels_of_different_sequences_are_refused():
    first, second = kernels()
    shorter = second.rows.assign(length=second.rows["length"] + 1)

    with pytest.raises(ValueError, match="different sequences"):
        compare_kernels(first, replace(second, rows=shorter, columns=shorter))
    with pytest.raises(ValueError, match="one batch with itself"):
        compare_kernels(first, replace(second, symmetric=False))
