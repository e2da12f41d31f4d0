"""A batch under audit: all proxies' statistics under any weights of its prompts.

Also what limits trust in their intervals.

A bootstrap draw is a multinomial number of copies of each prompt; every item counts as often as its
prompt was drawn. The accuracy of the error depends on the number of prompts over which a statistic
is spread: (Σ a_p)²/Σ a_p², the number of equal prompts, where a_p is the part of prompt p in a top,
or in the sum of squares or of sizes. That number less one is the degrees of freedom of its error.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from isentrope.attribution.proxies.agreement import (
    ScoreColumn,
    agreement,
    correlation,
    negative_share,
    top_counts,
)
from isentrope.attribution.ranks import Array
from isentrope.nouns.estimate import participation

MEASURED = "measured"
"""The name under which the influence itself is in the table: its concentration and reliability."""

MIN_SPREAD = 15
"""Prompts, if equal ones, over which a top must be spread for a valid bootstrap error."""

CONCENTRATED_SHARE = 0.4
"""Share of the prompts, if equal ones, below which a warning says that few of them hold a sum."""

_UNDEFINED = (
    "It is not defined: the proxy does not vary or has no sign, the influence does not vary or is "
    "nowhere negative, or its two halves do not agree."
)

Statistics = dict[tuple[str, str], float]
"""By proxy and name."""


class AuditSample:
    """Items in clusters: the statistics of all proxies under any weights.

    Attributes:
        n: Number of items.
        n_prompts: Number of clusters.
        measured: The influence.
        proxies: The proxies by name.
        halves: The influence measured on two halves of E, or None.
        tops: Shares q.
    """

    def __init__(
        self,
        place: NDArray[np.int64],
        measured: ScoreColumn,
        proxies: Mapping[str, ScoreColumn],
        halves: tuple[ScoreColumn, ScoreColumn] | None,
        tops: Sequence[float],
    ) -> None:
        """Store the columns, and compute over how many prompts each statistic is spread.

        Args:
            place: (n,) number of each item's prompt, from 0.
            measured: The influence.
            proxies: The proxies by name.
            halves: The influence measured on two halves of E, or None.
            tops: Shares q.
        """
        self.n, self.n_prompts = len(place), int(place.max()) + 1
        self.measured, self.proxies, self.halves, self.tops = measured, proxies, halves, tops
        self._place = place
        self._spread = self._spreads()

    def statistics(self, weights: Array) -> Statistics:
        """Every statistic under one set of weights.

        Args:
            weights: (n,) how often each item counts.

        Returns:
            Numbers by proxy and name; NaN where one is not defined.
        """
        counts = top_counts(float(weights.sum()), self.tops)
        y = self.measured.weighted(weights, counts.values())
        statistics: Statistics = {
            (MEASURED, f"negative_share@{q:g}"): negative_share(weights, lowest, self.measured)
            for q, lowest in zip(self.tops, y.lowest, strict=True)
        }
        for proxy, column in self.proxies.items():
            row = agreement(weights, column.weighted(weights, counts.values()), y, counts)
            varies = column.varies
            statistics |= {(proxy, name): x if varies else math.nan for name, x in row.items()}
        if self.halves is None:
            return statistics
        one, two = (half.weighted(weights, ()) for half in self.halves)
        pairs = {
            "pearson": (one.column.values, two.column.values),
            "spearman": (one.ranks, two.ranks),
        }
        for kind, (x, y) in pairs.items():
            r = correlation(weights, x, y)
            reliability = math.sqrt(2 * r / (1 + r)) if r > 0 else math.nan
            statistics[MEASURED, f"{kind}_of_halves"] = r
            statistics[MEASURED, f"{kind}_reliability"] = reliability
            for proxy in self.proxies:
                statistics[proxy, f"{kind}_corrected"] = statistics[proxy, kind] / reliability
        return statistics

    def bootstrap(self, draws: int, seed: int) -> list[Statistics]:
        """The statistics of samples of prompts drawn with replacement.

        Args:
            draws: Number of samples.
            seed: Their seed.

        Returns:
            The statistics of each.
        """
        p = self.n_prompts
        counts = np.random.default_rng(seed).multinomial(p, np.full(p, 1 / p), size=draws)
        return [self.statistics(row[self._place].astype(np.float64)) for row in counts]

    def interval_caveats(self, proxy: str, name: str, value: float) -> tuple[bool, tuple[str, ...]]:
        """Whether a statistic's interval can be trusted, and the warnings on it.

        Args:
            proxy: Name of the proxy, or "measured".
            name: Name of the statistic.
            value: Its value.

        Returns:
            Trust, and warnings.
        """
        if math.isnan(value):
            return False, (_UNDEFINED,)
        if self.n_prompts == 1:
            return False, ("There is one prompt: no error can be given.",)
        spread = self._spread.get((proxy, name), float(self.n_prompts))
        if "@" in name and spread < MIN_SPREAD:
            (k,) = top_counts(self.n, [float(name.partition("@")[2])]).values()
            return False, (
                f"The top is {k} of {self.n}, spread as over {spread:.1f} equal prompts: "
                f"no interval below {MIN_SPREAD}.",
            )
        if "@" not in name and spread < CONCENTRATED_SHARE * self.n_prompts:
            return True, (
                f"Few of the {self.n_prompts} prompts hold most of the influence (as {spread:.1f} "
                "equal ones would): the interval is likely too short. Ranks are not affected.",
            )
        return True, ()

    def degrees_of_freedom(self, proxy: str, name: str) -> float:
        """Degrees of freedom of a statistic's error, at least 1.

        Args:
            proxy: Name of the proxy, or "measured".
            name: Name of the statistic.

        Returns:
            The number of equal prompts that it is spread over, less one.
        """
        spread = self._spread.get((proxy, name), float(self.n_prompts))
        if name.startswith("negative_share"):
            negative = self._equal_prompts(np.maximum(-self.measured.values, 0.0))
            spread = min(spread, negative)
        return max(spread - 1, 1.0)

    def _equal_prompts(self, amounts: Array) -> float:
        """(Σ a_p)²/Σ a_p²."""
        by_prompt = np.bincount(self._place, amounts, minlength=self.n_prompts)
        return participation(by_prompt) if by_prompt.any() else 0.0

    def _spread_of_squares(self, values: Array) -> float:
        return self._equal_prompts(np.square(values - values.mean()))

    def _spreads(self) -> Statistics:
        """Over how many equal prompts each top, and the sums of squares and sizes, are spread."""
        weights, counts = np.ones(self.n), top_counts(self.n, self.tops).values()
        y = self.measured.weighted(weights, counts)
        of_y = self._spread_of_squares(self.measured.values)
        spread = {(MEASURED, name): of_y for name in ("pearson_of_halves", "pearson_reliability")}
        for q, lowest in zip(self.tops, y.lowest, strict=True):
            spread[MEASURED, f"negative_share@{q:g}"] = self._equal_prompts(lowest)
        of_sizes = self._equal_prompts(self.measured.sizes)
        for proxy, column in self.proxies.items():
            spread[proxy, "sign_agreement_weighted"] = of_sizes
            both = min(of_y, self._spread_of_squares(column.values))
            pearson = ("pearson", "pearson_size", "pearson_corrected")
            spread |= {(proxy, name): both for name in pearson}
            x = column.weighted(weights, counts)
            for j, q in enumerate(self.tops):
                sides = {
                    "overlap": (x.largest[j], y.largest[j]),
                    "overlap_negative": (x.lowest[j], y.lowest[j]),
                    "negative_share": (x.chosen[j],),
                }
                for kind, sets in sides.items():
                    spread[proxy, f"{kind}@{q:g}"] = min(map(self._equal_prompts, sets))
        return spread
