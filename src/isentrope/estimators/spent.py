"""What a step spends of entropy and earns of reward: the numbers of `estimators.price`."""

import math
import re
from dataclasses import dataclass

from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import Absent

_RATIOS = ("reward_for_a_nat", "momentum")
"""Numbers that are ratios, at the end of their names."""


@dataclass(frozen=True)
class Spent:
    """What happens at the positions of a class; of all positions, where it is the whole step.

    Attributes:
        tokens: Share of E's tokens that stand there.
        entropy: F_c at θ.
        first_order: ηδF_c, negative where entropy is spent; None without derivatives.
        share: Its share of ηδF; of the whole 1; None without derivatives.
        change: ΔF_c as measured; None where only the first order is known.
        reward: ηδJ_c; None without rewards or derivatives.
        reward_for_a_nat: −δJ_c/δF_c, positive where entropy is spent for reward; None likewise.
    """

    tokens: float
    entropy: Estimate
    first_order: Absent[Estimate] = None
    share: Absent[Estimate] = None
    change: Absent[Estimate] = None
    reward: Absent[Estimate] = None
    reward_for_a_nat: Absent[Estimate] = None


@dataclass(frozen=True)
class Price:
    """What a step spends and earns.

    Attributes:
        whole: At all positions.
        at: By class of positions; and by "group NAME", the positions in responses to the prompts of
            a group, which sum to the whole.
        reward_change: ΔJ as measured; None where only the first order is known.
        momentum: The share of momentum in ηδF.
        cosine: cos_P of the gradients of reward and entropy (`attribution.frontier`).
        top: The rate at which the parabola of J is highest (`reward_change`), of a reading.
    """

    whole: Spent
    at: dict[str, Spent]
    reward_change: Absent[Estimate] = None
    momentum: Absent[Estimate] = None
    cosine: Absent[Estimate] = None
    top: Absent[Estimate] = None

    def to_dict(self) -> dict[str, float]:
        """Flat numbers for a log, errors under names that end in _se.

        Returns:
            Keys "price/NAME" of the whole step, and "price/at_CLASS/NAME", where CLASS has letters,
            digits and _ alone: trackers refuse others, which a pattern may have. A ratio is NaN
            where it has no interval, because its denominator may be zero.
        """
        parts = {"price": self.whole} | {
            f"price/at_{re.sub('[^A-Za-z0-9]+', '_', name).strip('_')}": part
            for name, part in self.at.items()
        }
        estimates = {
            f"{place}/{name}": getattr(part, name)
            for place, part in parts.items()
            for name in ("entropy", "first_order", "change", "reward", "reward_for_a_nat")
        }
        flat: dict[str, float] = {}
        estimates |= {
            "price/reward_change": self.reward_change,
            "price/momentum": self.momentum,
            "price/best_rate": self.top,
        }
        for name, estimate in estimates.items():
            if estimate is not None:
                unknown = name.endswith(_RATIOS) and math.isnan(estimate.ci_low)
                flat[name] = math.nan if unknown else estimate.value
                flat[f"{name}_se"] = math.nan if unknown else estimate.se
        return flat
