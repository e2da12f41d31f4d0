"""A batch under audit: all proxies' statistics under any weights of its prompts.

Also what limits trust in their intervals.

A bootstrap draw is a multinomial number of copies of each prompt; every item counts as often as its
prompt was drawn. The accuracy of the error depends on the number of prompts over which a statistic
is spread: (Σ a_p)²/Σ a_p², the number of equal prompts, where a_p is the part of prompt p in a top,
or in the sum of squares or of sizes. That number less one is the degrees of freedom of its error.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from isentrope.attribution.proxies.agreement import (
    ScoreColumn,
    Statistic,
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

Statistics = dict[tuple[str, str], Statistic]
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
        """Store the columns.

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

    def statistics(self, weights: Array) -> Statistics:
        """Every statistic under one set of weights.

        Args:
            weights: (n,) how often each item counts.

        Returns:
            Statistics by proxy and name; NaN where one is not defined.
        """
        counts = top_counts(float(weights.sum()), self.tops)
        y = self.measured.weighted(weights, counts.values())
        statistics: Statistics = {}
        for q, lowest in zip(self.tops, y.lowest, strict=True):
            share = negative_share(weights, lowest, self.measured)
            statistics[MEASURED, f"negative_share@{q:g}"] = share, (lowest,)
        for proxy, column in self.proxies.items():
            row = agreement(weights, column.weighted(weights, counts.values()), y, counts)
            varies = column.varies
            for name, (x, sets) in row.items():
                statistics[proxy, name] = x if varies else math.nan, sets
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
            of_y = (self.measured.squares,) if kind == "pearson" else ()
            statistics[MEASURED, f"{kind}_of_halves"] = r, of_y
            statistics[MEASURED, f"{kind}_reliability"] = reliability, of_y
            for proxy in self.proxies:
                value, sets = statistics[proxy, kind]
                statistics[proxy, f"{kind}_corrected"] = value / reliability, sets
        return statistics

    def bootstrap(self, draws: int, seed: int) -> list[dict[tuple[str, str], float]]:
        """The statistics of samples of prompts drawn with replacement.

        Args:
            draws: Number of samples.
            seed: Their seed.

        Returns:
            The numbers of each.
        """
        p = self.n_prompts
        counts = np.random.default_rng(seed).multinomial(p, np.full(p, 1 / p), size=draws)
        rows = (self.statistics(row[self._place].astype(np.float64)) for row in counts)
        return [{name: x for name, (x, _) in row.items()} for row in rows]

    def interval_caveats(self, name: str, statistic: Statistic) -> tuple[bool, tuple[str, ...]]:
        """Whether a statistic's interval can be trusted, and the warnings on it.

        Args:
            name: Name of the statistic.
            statistic: Its value, and what it is a sum over.

        Returns:
            Trust, and warnings.
        """
        value, sets = statistic
        if math.isnan(value):
            return False, (_UNDEFINED,)
        if self.n_prompts == 1:
            return False, ("There is one prompt: no error can be given.",)
        spread = self._spread(sets)
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

    def degrees_of_freedom(self, name: str, statistic: Statistic) -> float:
        """Degrees of freedom of a statistic's error, at least 1.

        Args:
            name: Name of the statistic.
            statistic: Its value, and what it is a sum over.

        Returns:
            The number of equal prompts that it is spread over, less one.
        """
        sets = statistic[1]
        if name.startswith("negative_share"):
            sets = (*sets, np.maximum(-self.measured.values, 0.0))
        return max(self._spread(sets) - 1, 1.0)

    def _spread(self, sets: Iterable[Array]) -> float:
        """The least (Σ a_p)²/Σ a_p² of some sets of amounts; all prompts for none."""
        by_prompt = (np.bincount(self._place, x, minlength=self.n_prompts) for x in sets)
        equal = (participation(a) if a.any() else 0.0 for a in by_prompt)
        return min(equal, default=float(self.n_prompts))
