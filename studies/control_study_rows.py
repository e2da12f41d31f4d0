"""The numbers of the control study: paired differences, and the law of vanilla runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

Content = Mapping[str, Any]
Metric = Callable[[Content], float | None]
RESAMPLES = 2000
FEWEST = 3
"""Seeds from which on there are intervals."""
FAMILY = ("vanilla", "earlier_stop", "lower_rate")
"""Runs to which the law is fitted."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, with 95 % bounds where there are enough of them."""

    value: float
    low: float
    high: float
    n: int

    @property
    def sign(self) -> int:
        """+1 or −1 where the interval leaves out 0, else 0."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def __str__(self) -> str:
        bounds = "" if math.isnan(self.low) else f" [{self.low:+.3f}, {self.high:+.3f}]"
        return "–" if self.n == 0 else f"{self.value:+.3f}{bounds}"


def t_interval(values: Sequence[float]) -> Interval:
    """Mean over seeds and its 95 % t interval."""
    n = len(values)
    if n < FEWEST:
        return Interval(float(np.mean(values)) if n else math.nan, math.nan, math.nan, n)
    half = float(stats.sem(values) * stats.t.ppf(0.975, n - 1))
    mean = float(np.mean(values))
    return Interval(mean, mean - half, mean + half, n)


def wilson(successes: int, n: int) -> tuple[float, float]:
    """95 % Wilson interval of a share."""
    found = stats.binomtest(successes, n).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def reading(name: str, temperature: str = "1") -> Metric:
    """A number of the evaluation; None where the run has none."""
    return lambda cell: cell["readings"].get(temperature, {}).get(name)


def second(step: int) -> Metric:
    """pass@1 of the new rule of `relay` after so many steps of phase 2."""

    def value(cell: Content) -> float | None:
        points = {p["step"]: p["pass_1"] for p in cell.get("second", {}).get("points", [])}
        return points.get(step)

    return value


def best_pass_64(cell: Content) -> float | None:
    """pass@64 at the temperature at which it is highest."""
    found = [r["pass_64"] for r in cell["readings"].values() if r["pass_64"] is not None]
    return max(found, default=None)


METRICS: dict[str, dict[str, Metric]] = {
    task: {"pass@1": reading("pass_1"), "pass@64": reading("pass_64"), "best T": best_pass_64}
    | more
    for task, more in {
        "split": {
            "coverage": reading("coverage"),
            "forbidden": lambda cell: cell.get("forbidden", {}).get("pass_1"),
            "forbidden@64": lambda cell: cell.get("forbidden", {}).get("pass_64"),
        },
        "countdown": {"coverage": reading("coverage")},
        "shortcut": {"reward": reading("reward")},
        "relay": {"new rule, 40": second(40), "new rule, 120": second(120)},
    }.items()
}
"""Columns of each task; "best T" is pass@64 at the best temperature of each."""


def with_baselines(cells: Sequence[Content]) -> list[Content]:
    """The cells, and earlier stops and other temperatures of vanilla as cells of their own."""
    found = list(cells)
    for cell in cells:
        if cell["control"] != "vanilla":
            continue
        key = {"task": cell["task"], "seed": cell["seed"]}
        for share, stop in cell.get("stops", {}).items():
            own = {"control": "earlier_stop", "strength": float(share), "readings": {"1": stop}}
            found.append(key | own | {"tokens": stop["tokens"]})
        for temperature, other in cell["readings"].items():
            if temperature != "1":
                own = {"control": "temperature", "strength": float(temperature)}
                found.append(key | own | {"readings": {"1": other}, "tokens": cell["tokens"]})
    return found


def paired(cells: Sequence[Content], vanilla: Mapping[int, Content], metric: Metric) -> Interval:
    """Differences to vanilla of the same seed."""
    pairs = [(metric(c), metric(vanilla[c["seed"]])) for c in cells if c["seed"] in vanilla]
    return t_interval([a - b for a, b in pairs if a is not None and b is not None])


def law_residual(
    cells: Sequence[Content], family: Sequence[Content], seed: int = 0
) -> tuple[Interval, tuple[float, float]]:
    """How far pass@1 lies above the law of vanilla runs at the same entropy.

    R = b − a e^h is fitted to vanilla at several learning rates and stops; the interval is a
    bootstrap of seeds, which takes all runs of a seed together and fits the law again.

    Args:
        cells: Runs of one setting.
        family: Vanilla, its stops, and lower learning rates.
        seed: Fixes the bootstrap.

    Returns:
        Mean residual, and (a, b).
    """
    points = [(c["seed"], *_point(c)) for c in cells if _point(c)]
    known = [(c["seed"], *_point(c)) for c in family if _point(c)]
    seeds = sorted({p[0] for p in points} & {p[0] for p in known})
    nothing = Interval(math.nan, math.nan, math.nan, 0), (math.nan, math.nan)
    if not seeds or len({round(p[1], 6) for p in known}) < FEWEST:
        return nothing

    sums = {
        s: np.array([_sums([p[1:] for p in k if p[0] == s]) for k in (known, points)])
        for s in seeds
    }
    per_seed = np.stack([sums[s] for s in seeds])  # (seeds, family or points, sums)
    value, a, b = (float(x[0]) for x in _residual(per_seed.sum(0, keepdims=True)))
    entropies = [{p[1] for p in known if p[0] == s} for s in seeds]
    if len(seeds) < FEWEST or min(map(len, entropies)) < 2:  # a seed alone must give a line
        return Interval(value, math.nan, math.nan, len(seeds)), (a, b)
    rng = np.random.default_rng(seed)
    times = rng.multinomial(len(seeds), [1 / len(seeds)] * len(seeds), RESAMPLES)
    draws = _residual(np.einsum("rs,skm->rkm", times, per_seed))[0]
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(value, float(low), float(high), len(seeds)), (a, b)


def _sums(points: Sequence[tuple[float, ...]]) -> list[float]:
    """Of (h, R): count, Σx, ΣR, Σx², ΣxR with x = e^h."""
    h, r = np.array(points).T
    x = np.exp(h)
    return [len(r), x.sum(), r.sum(), (x * x).sum(), (x * r).sum()]


def _residual(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean residual, a and b of each of (m, 2, 5) sums over the family and over the points."""
    n, x, r, xx, xr = np.moveaxis(sums[:, 0], -1, 0)
    slope = (n * xr - x * r) / (n * xx - x * x)
    b = (r - slope * x) / n
    own = sums[:, 1]
    return (own[:, 2] - slope * own[:, 1]) / own[:, 0] - b, -slope, b


def _point(cell: Content) -> tuple[float, ...]:
    found = cell["readings"].get("1")
    return (found["entropy"], found["pass_1"]) if found else ()


@dataclass(frozen=True)
class Row:
    """One setting of a task, beside vanilla."""

    control: str
    strength: float
    cells: Sequence[Content]
    differences: Mapping[str, Interval]
    residual: Interval

    def fewer_tokens(self, vanilla: Row) -> list[Content]:
        """The runs that generated less than 95 % of the tokens of vanilla with the same seed."""
        whole = {c["seed"]: c["tokens"] for c in vanilla.cells}
        return [c for c in self.cells if c["tokens"] < 0.95 * whole.get(c["seed"], 0.0)]

    def mean(self, metric: Metric) -> float:
        """Mean over the seeds that have the number."""
        values = [v for c in self.cells if (v := metric(c)) is not None]
        return float(np.mean(values)) if values else math.nan


def rows_of(task: str, cells: Sequence[Content]) -> list[Row]:
    """The settings of a task, in the order of their first appearance."""
    own = [c for c in with_baselines(cells) if c["task"] == task]
    vanilla = {c["seed"]: c for c in own if c["control"] == "vanilla"}
    family = [c for c in own if c["control"] in FAMILY]
    settings: dict[tuple[str, float], list[Content]] = {}
    for cell in own:
        settings.setdefault((cell["control"], cell["strength"]), []).append(cell)
    return [
        Row(
            control,
            strength,
            found,
            {n: paired(found, vanilla, m) for n, m in METRICS[task].items()},
            # at another temperature h is not that of the law
            law_residual(found if control != "temperature" else [], family)[0],
        )
        for (control, strength), found in sorted(
            settings.items(), key=lambda item: (item[0][0] != "vanilla", *item[0])
        )
    ]
