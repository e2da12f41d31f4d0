"""Split-half reliability: would the other half of E have named the same tokens?

E's groups are split in two equal halves at random, influences are summed within each, and the
Spearman rank correlation between the halves is taken; its mean over splits is the reliability of
an E of half the size. A table of twice that size has 2r/(1 + r) (Spearman and Brown).
"""

from __future__ import annotations

import torch
from scipy.stats import rankdata
from torch import Tensor

from isentrope.estimate import Estimate


def split_half(by_group: Tensor, splits: int = 20, seed: int = 0) -> Estimate:
    """Mean rank correlation between the two halves of a batch.

    Args:
        by_group: (G, m) what each group contributes to each of m influences.
        splits: Random splits.
        seed: Seed of the splits.

    Returns:
        The correlation of two halves, its spread over splits as `se`, without an interval; NaN
        with one group, or where nothing varies.
    """
    groups = len(by_group)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(splits if groups > 1 and by_group.shape[1] > 1 else 0):
        order = torch.randperm(groups, generator=generator)
        one, other = by_group[order[: groups // 2]], by_group[order[groups // 2 :]]
        ranks = [torch.from_numpy(rankdata(half.sum(0).numpy())) for half in (one, other)]
        found.append(float(torch.corrcoef(torch.stack(ranks))[0, 1]))
    values = torch.tensor(found or [float("nan")], dtype=torch.float64)
    return Estimate.from_standard_error(
        float(values.mean()),
        float(values.std(correction=0)),
        groups,
        unit="rank correlation",
        method="split halves of E",
        trusted=False,
    )
