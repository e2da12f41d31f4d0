"""What a batch without the sampler's log-probabilities would show, and what would pass unseen.

A fault of relative size δ moves the mean of a test by δ times the summed variance of its terms, so
z by δ √ΣV. It is found with a probability of 80 % where δ √ΣV = 4 + 0.84:

    temperature T/(1 + δ)         ΣV of the log-probabilities
    EOS drawn 1 + δ times as often   ΣV of 1[EOS]

To first order in δ; benchmarks/power.py simulates the same. A filter is found where the batch has
room for it: the weakest setting that a sound batch would hardly stay within.
"""

from __future__ import annotations

import math

from isentrope.checks.draws import Draws
from isentrope.estimators.identities import P_LIMIT, Z_LIMIT
from isentrope.estimators.sample import EntropySample

POWER = 0.8
Z_FOUND = Z_LIMIT + 0.8416
"""Mean of z at which |z| > 4 with a probability of POWER."""


def sensitivity(sample: EntropySample, draws: Draws) -> str:
    """The smallest faults that a batch of these prefixes finds, in words.

    Args:
        sample: A scored batch, with variances.
        draws: Its counts.

    Returns:
        A sentence.
    """
    variances = sample.series[0].variances
    assert variances is not None
    found = [_temperature(float(variances.sum()))]
    if draws.eos is not None and (eos := _eos(draws.eos.variance)):
        found.append(eos)
    for filter_ in draws.filters:
        setting = filter_.weakest_found(P_LIMIT)
        if setting is not None:
            relation = "or more" if filter_.name == "min_p" else "or less"
            found.append(f"{filter_.name} {setting:.4g} {relation}")
    return (
        f"Without them, {len(sample.prompt_index)} sequences show in {POWER:.0%} of cases: "
        f"{'; '.join(x for x in found if x)}. Smaller faults pass unseen."
    )


def _temperature(variance: float) -> str:
    if variance == 0:
        return ""
    size = Z_FOUND / math.sqrt(variance)
    higher = f" or above {1 / (1 - size):.3g}" if size < 1 else ""
    return f"a temperature below {1 / (1 + size):.3g}{higher} times the scorer's"


def _eos(variance: float) -> str:
    size = Z_FOUND / math.sqrt(variance) if variance > 0 else math.inf
    lower = f"less than {1 - size:.2g} times or " if size < 1 else ""
    return f"EOS drawn {lower}more than {1 + size:.2g} times as often" if size < 10 else ""
