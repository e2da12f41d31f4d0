"""Two kernels of the same sequences under two preconditioners, and their paired difference (T7).

    K_P = W P Wᵀ     against     K_1 = W Wᵀ,     W the same gradients

Whether the optimizer's P changes the structure is one number per quantity, K_P's minus K_1's,
jackknifed over prompts as one statistic: the two kernels share their sequences, so most of the
error of each cancels in the difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isentrope.attribution.fisher.clusters import adjusted_rand_index, cluster_sequences
from isentrope.attribution.fisher.kernel import FisherKernel, fisher_kernel
from isentrope.attribution.fisher.prompt_pairs import (
    PromptPairs,
    cosines,
    delete_one,
    estimate_columns,
)
from isentrope.attribution.fisher.square import SquareKernel
from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy


@dataclass(frozen=True)
class PairedQuantity:
    """One property of both kernels.

    Attributes:
        preconditioned: Of W P Wᵀ.
        plain: Of W Wᵀ.
        difference: The first minus the second, with the error of the difference.
    """

    preconditioned: Estimate
    plain: Estimate
    difference: Estimate


@dataclass(frozen=True)
class Conditioning:
    """What a preconditioner changes in the structure of a kernel.

    Attributes:
        quantities: By name: "effective_rank", "same_prompt mean_cosine", "same_prompt rms_cosine",
            the same of "cross_prompt", and "prompt_agreement", the adjusted Rand index of as many
            clusters as prompts with the prompts, clusters held.
        cluster_overlap: Adjusted Rand index of the two clusterings, a property of these sequences.
        preconditioned: W P Wᵀ.
        plain: W Wᵀ.
    """

    quantities: dict[str, PairedQuantity]
    cluster_overlap: float
    preconditioned: FisherKernel
    plain: FisherKernel

    def __getitem__(self, name: str) -> PairedQuantity:
        return self.quantities[name]

    def to_frame(self) -> Any:
        """A pandas table, one row per quantity and kernel.

        Returns:
            Columns quantity, kernel, value, se, ci_low, ci_high, prompts.
        """
        import pandas as pd

        return pd.DataFrame(
            {"quantity": name, "kernel": kernel} | estimate_columns(getattr(pair, kernel))
            for name, pair in self.quantities.items()
            for kernel in ("preconditioned", "plain", "difference")
        )


def conditioning(
    policy: Policy,
    U: Rollouts,
    preconditioner: Vector,
    *,
    gradients: GradientOptions = GradientOptions(),
) -> Conditioning:
    """Compare the kernel of a batch under P with the one under the identity.

    Args:
        policy: The policy.
        U: Sequences of at least two prompts.
        preconditioner: P, diagonal, by parameter name, such as `Step.preconditioner`.
        gradients: How gradients are computed and held.

    Returns:
        Both kernels and the paired differences, at the cost of two kernels.

    Raises:
        ValueError: If there is one prompt only, or a sequence without gradient.
    """
    kernels = [
        fisher_kernel(policy, U, preconditioner=P, gradients=gradients)
        for P in (preconditioner, None)
    ]
    return compare_kernels(*kernels)


def compare_kernels(preconditioned: FisherKernel, plain: FisherKernel) -> Conditioning:
    """The paired differences of two kernels of the same sequences.

    Args:
        preconditioned: The first, W P Wᵀ.
        plain: The second, W Wᵀ.

    Returns:
        The comparison.

    Raises:
        ValueError: If they are of different sequences, or of two batches.
    """
    if not (preconditioned.symmetric and plain.symmetric):
        raise ValueError("Both kernels must be of one batch with itself: fisher_kernel(policy, U).")
    columns = ["prompt", "identity", "length"]
    if not preconditioned.rows[columns].equals(plain.rows[columns]):
        raise ValueError(
            "The two kernels are of different sequences, so their difference is not paired: "
            "compute both from one batch."
        )
    prompts = torch.tensor(plain.rows["prompt"].to_numpy())
    both = [
        SquareKernel.of(k.matrix, prompts, rounding=k.rounding) for k in (preconditioned, plain)
    ]
    if any(not bool((k.diagonal > 0).all()) for k in both):
        raise ValueError("A sequence has no gradient, hence no cosine: leave it out of the batch.")
    pairs = both[0].pairs
    cosine = [cosines(k.matrix, k.diagonal, k.diagonal).nan_to_num(0.0) for k in both]
    quantities = {"effective_rank": _effective_rank(both)}
    masks = both[0].masks
    for relation in ("same_prompt", "cross_prompt"):
        if bool(masks[relation].any()):
            quantities |= _cosines(cosine, pairs, masks[relation], relation)
    clusters = [cluster_sequences(k, count=pairs.n_prompts).labels for k in both]
    quantities["prompt_agreement"] = _prompt_agreement(clusters, pairs)
    overlap = adjusted_rand_index(clusters[0], clusters[1])
    return Conditioning(quantities, overlap, preconditioned, plain)


def _paired(values: list[Tensor], pairs: PromptPairs, mask: Tensor, unit: str) -> PairedQuantity:
    """Statistics (1 + P,) of both kernels, and of their difference."""
    first, second = values
    parts = {unit: values, f"difference of {unit}": [first - second]}
    return PairedQuantity(*(pairs.estimate(x, mask, u) for u, xs in parts.items() for x in xs))


def _effective_rank(both: list[SquareKernel]) -> PairedQuantity:
    ranks: list[Tensor] = []
    for kernel in both:
        trace, square = kernel.norms()
        ranks.append(trace.square() / square)
    pairs = both[0].pairs
    return _paired(ranks, pairs, torch.ones_like(pairs.same), "sequences")


def _cosines(
    both: list[Tensor], pairs: PromptPairs, mask: Tensor, relation: str
) -> dict[str, PairedQuantity]:
    means = [pairs.means(x, mask) for x in both]
    squares = [pairs.means(x.square(), mask).clamp_min(0).sqrt() for x in both]
    return {
        f"{relation} mean_cosine": _paired(means, pairs, mask, "cosine"),
        f"{relation} rms_cosine": _paired(squares, pairs, mask, "rms cosine"),
    }


def _prompt_agreement(labels: list[Tensor], pairs: PromptPairs) -> PairedQuantity:
    n = pairs.n_prompts
    kept = [pairs.rows >= 0, *(pairs.rows != p for p in range(n))]
    first, second = (
        torch.tensor([adjusted_rand_index(x[k], pairs.rows[k]) for k in kept], dtype=torch.float64)
        for x in labels
    )
    unit = "adjusted Rand index"
    return PairedQuantity(
        delete_one(first[0], first[1:], n, unit),
        delete_one(second[0], second[1:], n, unit),
        delete_one(first[0] - second[0], first[1:] - second[1:], n, f"difference of {unit}"),
    )
