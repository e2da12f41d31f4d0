"""Clusters of sequences whose score vectors point the same way (T7).

    distance_ij = 1 − K_ij / √(K_ii K_jj)

Average-linkage hierarchical clustering: the distance of two clusters is the mean distance of their
members, and the closest two are merged until one remains. The cophenetic correlation measures how
well the tree preserves the distances. The adjusted Rand index measures how well the clusters match
the prompts
(Hubert and Arabie, 1985), with N_ab the sequences in cluster a and prompt b, and C(m) = m(m − 1)/2,

    ARI = (Σ_ab C(N_ab) − E) / ((Σ_a C(N_a) + Σ_b C(N_b))/2 − E),   E = Σ_a C(N_a) Σ_b C(N_b) / C(N)

which is one for the same partition, zero on average for random labels.
"""

from dataclasses import dataclass, field

import pandas as pd
import torch
from scipy.cluster.hierarchy import cophenet, fcluster, leaves_list, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from isentrope.attribution.fisher.prompt_pairs import cosines, delete_one
from isentrope.attribution.fisher.square import SquareKernel
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import Absent, Numbers


@dataclass(frozen=True)
class ClusterPart:
    """Responses of U that move those of E alike.

    Attributes:
        members: Their number.
        reward: Their mean reward.
        weight: The sum of their weights in the step.
        delta_h: What they do to the entropy of E, in the kernel form.
    """

    members: int
    reward: float
    weight: float
    delta_h: Estimate


@dataclass(frozen=True)
class Clustering:
    """Groups of n sequences.

    Attributes:
        labels: (n,) int64, clusters numbered from 0 in the order of the tree's leaves; −1 for a
            sequence with a zero score vector, which has no cosine.
        order: (n,) positions in the order of the leaves, for a heat map; zero rows come last.
        count: Number of clusters.
        cophenetic_correlation: Pearson, between the distances and those in the tree; a property of
            this matrix, not a sampled number.
        prompt_agreement: Adjusted Rand index of clusters and prompts. Its error is the jackknife
            over prompts with the clusters held.
        parts: What each cluster is and does, of the columns of a block of two batches.
    """

    labels: Numbers = field(repr=False)
    order: Numbers = field(repr=False)
    count: int
    cophenetic_correlation: float
    prompt_agreement: Estimate
    parts: Absent[tuple[ClusterPart, ...]] = None


def cluster_sequences(kernel: SquareKernel, *, count: int) -> Clustering:
    """Cluster sequences by the cosines of their score vectors.

    Args:
        kernel: K of one batch with itself.
        count: Number of clusters (ties may give fewer), at most that of sequences with a cosine.

    Returns:
        The clusters.
    """
    diagonal = kernel.diagonal
    prompts = kernel.pairs.rows
    defined = (diagonal > 0).nonzero().flatten()
    apart = (
        (1 - cosines(kernel.matrix, diagonal, diagonal)[defined][:, defined]).clamp_min(0).numpy()
    )
    flat = squareform(apart, checks=False).round(10)  # equal sequences are equally far to rounding
    tree = linkage(flat, "average")
    leaves = leaves_list(tree)
    codes, met = pd.factorize(fcluster(tree, count, "maxclust")[leaves])
    order = defined[torch.from_numpy(leaves).long()]
    labels = torch.full((len(kernel),), -1)
    labels[order] = torch.from_numpy(codes)
    zero = (diagonal <= 0).nonzero().flatten()
    members = labels[defined]
    draws = prompts[defined]
    subsets = [torch.ones_like(draws, dtype=torch.bool), *(draws != p for p in draws.unique())]
    indices = [adjusted_rand_index(members[k], draws[k]) for k in subsets]
    agreement = torch.tensor(indices, dtype=torch.float64)
    return Clustering(
        labels,
        torch.cat([order, zero]),
        len(met),
        float(cophenet(tree, flat)[0]),
        delete_one(agreement[0], agreement[1:], len(subsets) - 1, "adjusted Rand index"),
    )


def adjusted_rand_index(first: Tensor, second: Tensor) -> float:
    """How far two partitions agree, beyond chance.

    Args:
        first: (n,) int64 labels.
        second: (n,) int64 labels.

    Returns:
        ARI; one where both partitions are the same trivial one.
    """
    _, labels = torch.stack([first, second]).unique(dim=1, return_inverse=True)
    together, a, b = (
        float(sum(c * (c - 1) / 2 for c in x.unique(return_counts=True)[1].tolist()))
        for x in (labels, first, second)
    )
    expected = a * b / (len(first) * (len(first) - 1) / 2)
    highest = (a + b) / 2
    return 1.0 if highest == expected else (together - expected) / (highest - expected)
