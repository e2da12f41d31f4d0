"""Sums over the members of a class, with the errors of an influence's groups (T6), (T11).

    x = Σ_g x_g,  x_g = Σ_{ik} w_ik δH_ik by group g of E's prompts,     share = x / Σ_ik δH_ik

Members of U are held: errors are those of deleting groups, and a share has Fieller's interval.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from isentrope.attribution.influence.contributions import Attribution, Influence
from isentrope.estimators.ratio import interval_of_ratio
from isentrope.nouns.estimate import NET_SHARE, Estimate, freedom_of_groups, t_quantile
from isentrope.nouns.saved import Absent

_NO_SHARE = "The whole is not distinguishable from zero: a share of it has no interval."


@dataclass(frozen=True)
class ClassPart:
    """What the members of a class do together.

    Attributes:
        members: Their number; tokens tied at the end of a selection count in part.
        weight: Their share of Σ|c|, the sizes of the step's weights.
        delta_h: Their δH per unit η.
        share_h: The same as a share of the gradient's part of δH₁.
        fall: Their part of Σ min(δH, 0), the share of what lowers entropy. Errors of δH lengthen
            both sums; the classes' shares sum to one.
        delta_j: Their δJ per unit η; None without rewards.
        share_j: The same as a share of the gradient's part of δJ₁.
    """

    members: float
    weight: float
    delta_h: Estimate
    share_h: Estimate
    fall: Estimate
    delta_j: Absent[Estimate] = None
    share_j: Absent[Estimate] = None


def tokens_of(attribution: Attribution) -> Tensor:
    """(G, n, t) of each token, where tokens were attributed."""
    assert attribution.by_group_and_token is not None
    return attribution.by_group_and_token


class Sums:
    """Sums over members with weights."""

    def __init__(
        self,
        influence: Influence,
        by_group: Callable[[Attribution], Tensor],
        sizes: Tensor,
        confidence: float,
    ) -> None:
        """Keep the influences of the m members.

        Args:
            influence: Of entropy, and of reward where that was attributed.
            by_group: (G, m) of the members, from an attribution.
            sizes: (m,) |c|, the sizes of the step's weights.
            confidence: Nominal coverage of the intervals.
        """
        self._sizes, self._confidence = sizes.double(), confidence
        of = {"h": influence.entropy, "j": influence.reward}
        self._of = {name: x for name, x in of.items() if x is not None}
        self._by_group = {name: by_group(x) for name, x in self._of.items()}

    def part(self, members: np.ndarray) -> ClassPart:
        """What some of the members do together.

        Args:
            members: (m,) between 0 and 1, how far each is one of them.

        Returns:
            Their sums and shares.
        """
        w = torch.from_numpy(members.astype(np.float64))
        weight = float(w @ self._sizes) / (float(self._sizes.sum()) or math.nan)
        delta_h, share_h = self._change("h", w)
        falling = (self._by_group["h"].sum(0) < 0).double()
        _, fall = self._change("h", w * falling, falling)
        delta_j, share_j = self._change("j", w) if "j" in self._by_group else (None, None)
        return ClassPart(float(w.sum()), weight, delta_h, share_h, fall, delta_j, share_j)

    def spread(self, k: float) -> float:
        """How the share of the fall varies over random choices.

        Args:
            k: Members that are chosen.

        Returns:
            Its standard deviation.
        """
        values = self._by_group["h"].sum(0).clamp_max(0)
        n, total = len(values), float(values.sum())
        if n < 2 or total == 0:
            return math.nan
        return math.sqrt(k * (1 - k / n) * float(values.var())) / abs(total)

    @property
    def count(self) -> int:
        """Members of all classes."""
        return len(self._sizes)

    def _change(self, of: str, w: Tensor, among: Tensor | None = None) -> tuple[Estimate, Estimate]:
        """Σ w δ, and the same over Σ δ; of those among which it is, weights (m,), all if None."""
        attribution, by_group = self._of[of], self._by_group[of]
        whole, part = by_group.sum(1) if among is None else by_group @ among, by_group @ w
        change = attribution.groups.estimate(part, self._confidence)
        share = _share(attribution, change, part, whole, self._confidence)
        return change, share if among is None else replace(share, unit="share")


def _share(
    attribution: Attribution, change: Estimate, part: Tensor, whole: Tensor, confidence: float
) -> Estimate:
    """A part over the whole, both by group, with Fieller's interval."""
    a, b = float(part.sum()), float(whole.sum())
    groups = len(part)
    value = a / b + 0.0 if b else math.nan  # a sum of none over a fall is −0
    one, two = map(attribution.groups.deviations, (part, whole))
    scale = groups / (groups - 1) if groups > 1 else math.nan
    aa, ab, bb = (float(scale * (x @ y)) for x, y in ((one, one), (one, two), (two, two)))
    se = float(scale**0.5 * (one - value * two).norm()) / abs(b) if b else math.nan
    method = f"{change.method}, Fieller"
    ratio = replace(change, value=value, se=se, unit=NET_SHARE, method=method)
    if not math.isfinite(change.ci_low):
        return ratio
    t = t_quantile(freedom_of_groups(one - value * two), confidence)
    low, high = interval_of_ratio(a, b, (aa, ab, bb), t, sign="any")
    warnings = change.warnings if math.isfinite(low) else (*change.warnings, _NO_SHARE)
    return replace(ratio, ci_low=low + 0.0, ci_high=high + 0.0, warnings=warnings)
