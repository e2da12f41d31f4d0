"""Means over prompts of scores in [0, 1].

Such scores are often all but equal, so the interval is the t-interval of the prompts with one 0 and
one 1 added (as Agresti and Coull do for proportions); value and standard error are those of the
prompts alone. In simulations it covers 94–98 % from 64 prompts on, more where nearly all prompts
score alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.nouns.estimate import Estimate, t_quantile


def bounded_mean(scores: Tensor, unit: str, *, confidence: float = 0.95) -> Estimate:
    """Mean over prompts of scores in [0, 1], with the interval described above.

    Args:
        scores: (P,) float64 in [0, 1].
        unit: Name of the score.
        confidence: Nominal coverage.

    Returns:
        The estimate; its interval lies in [0, 1] and, unlike value ± se, is never empty.
    """
    n = len(scores)
    value = float(scores.mean())
    if n < 2:
        return Estimate.from_standard_error(
            value, float("nan"), n, unit=unit, method="mean over prompts"
        )
    added = torch.cat((scores.double(), torch.tensor([0.0, 1.0], dtype=torch.float64)))
    half = t_quantile(n + 1, confidence) * float(added.std()) / (n + 2) ** 0.5
    middle = float(added.mean())
    low, high = max(middle - half, 0.0), min(middle + half, 1.0)
    se = float(scores.std()) / n**0.5
    return Estimate(value, se, min(low, value), max(high, value), n, unit, "mean over prompts")
