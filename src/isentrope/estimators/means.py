"""Means over prompts: of scores in [0, 1], and what few prompts miss (T11).

Scores of prompts in [0, 1] have no tail, and are often all but equal: the interval of their mean is
the t-interval of the prompts with one 0 and one 1 added (as Agresti and Coull do for proportions);
value and standard error are those of the prompts alone. In simulations it covers 94–98 % from 64
prompts on, more where nearly all prompts score alike.

No interval of any mean knows of a rare mode that the batch has no response of.
"""

import math

import torch
from torch import Tensor

from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import t_quantile


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
    method = "mean over prompts"
    if n < 2:
        return Estimate.from_standard_error(value, math.nan, n, unit=unit, method=method)
    added = torch.cat((scores.double(), scores.new_tensor([0.0, 1.0])))
    half = t_quantile(n + 1, confidence) * float(added.std()) / (n + 2) ** 0.5
    middle = float(added.mean())
    low = min(max(middle - half, 0.0), value)
    high = max(min(middle + half, 1.0), value)
    return Estimate(value, float(scores.std()) / n**0.5, low, high, n, unit, method)


MODE = 0.02
"""Share of prompt draws that a mode has which a batch for h or J should not miss."""

MIN_UNITS_FOR_MODES = 149
"""Units from which on less than 5 % of the batches miss such a mode: log(.05)/log(1 − MODE)."""


def too_few_for_modes(n: int) -> tuple[str, ...]:
    """The warning that h, ℋ and J may lack what a rare mode of the policy adds.

    Args:
        n: Independent prompt draws.

    Returns:
        One sentence; none from 149 draws on, and of a single one, which has no interval.
    """
    if not 1 < n < MIN_UNITS_FOR_MODES:
        return ()
    return (
        f"{n} prompts are few for a mean: what {100 * MODE:g} % of prompt draws lead to, such as a "
        f"rare long response, is missing from {100 * (1 - MODE) ** n:.0f} % of such batches, and "
        "no interval of an entropy, a reward or their change knows of it. From "
        f"{MIN_UNITS_FOR_MODES} prompts on it is missing from less than 5 %.",
    )
