"""The gradient noise scale during training, from the micro-batches of each step (T8).

A step has n micro-batches over all processes, each the mean gradient g_m of b prompt groups, and
ḡ is their mean. With S the mean of |g_m|² over the micro-batches whose gradient is known
separately,

    |G|² = (n |ḡ|² − S)/(n − 1),     tr Σ = b n (S − |ḡ|²)/(n − 1),     B_simple = tr Σ/|G|²

which is (T8) with groups of b prompts as the unit, and stays unbiased when S is a mean over some of
them: under DDP the last micro-batch of a process is known only after averaging with the others'.
tr Σ and |G|² are averaged over steps by exponential weights w_k = β^(t−k), separately, and then
divided: R = Σ w_k num_k / Σ w_k den_k. Its error is that of a ratio of weighted sums,

    SE² = f/(f − 1) · Σ w_k² (num_k − R den_k)² / (Σ w_k den_k)²,     f = (Σ w_k)²/Σ w_k²

and its interval is Fieller's: every R at which num − R den is on average not distinguishable from
zero by a t-test with quantile t,

    (Σ w_k (num_k − R den_k))² ≤ c Σ w_k² (num_k − R den_k)²,     c = f t²/(f − 1 + t²)

t has the degrees of freedom that the tails of num_k − R den_k and num_k in the last 2f steps leave
(`estimators.tail`), at most f − 1. There is no upper end where |G|² is not distinguishable
from zero, and R ± t SE misses the truth long before that: in simulated runs such intervals were
wrong up to 20 times in 100. Fieller's with f − 1 degrees of freedom was wrong 2–6 times in 100 with
Gaussian gradients and 3–26 times with heavy tails; with those of the tail 0–7 times in all
(docs/results/intervals.md). Where |G|² or tr Σ came out at or below zero there is no B_simple. θ
moves meanwhile: these are means over 1/(1 − β) steps.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isentrope.estimators.ratio import fieller, quantile_from
from isentrope.estimators.tail import degrees_of_freedom_of_sums, tail_degrees_of_freedom
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import t_quantile
from isentrope.parallel.sharded import read_numbers
from isentrope.system.processes import gather
from isentrope.system.saved_fields import SavedFields

UNIT = "prompts"
METHOD = "running ratio"
MIN_EFFECTIVE_STEPS = 16
"""Effective steps f from which on there is an interval: fewer rarely show a heavy tail."""

MAX_TAIL_STEPS = 400
"""Largest number of recent steps from which the tail is estimated."""

_COLUMNS = ("w", "ww", "num", "den", "nn", "nd", "dd")


def micro_batch_moments(
    mean_square: float, square_of_mean: float, n: int, groups: int
) -> tuple[float, float]:
    """One step's unbiased tr Σ and |G|².

    Args:
        mean_square: S, the mean of |g_m|².
        square_of_mean: |ḡ|².
        n: Micro-batches of the step, over all processes, at least two.
        groups: Prompt groups per micro-batch.

    Returns:
        (tr Σ of one prompt group's gradient, |G|²).
    """
    trace = groups * n * (mean_square - square_of_mean) / (n - 1)
    return trace, (n * square_of_mean - mean_square) / (n - 1)


class OnlineNoiseScale(SavedFields):
    """Running B_simple over steps."""

    SAVED = ("_memory", "_steps", "_sums", "_recent")

    def __init__(self, decay: float = 0.95) -> None:
        """Start with no step.

        Args:
            decay: β in [0, 1).
        """
        self._memory = decay
        self._steps = 0
        self._sums: dict[str, float] = dict.fromkeys(_COLUMNS, 0.0)
        self._tail_steps = math.ceil(min(2 * (1 + decay) / (1 - decay), MAX_TAIL_STEPS))
        self._recent: list[list[float]] = []

    def update(self, trace: float, square: float) -> None:
        """Add a step: its unbiased tr Σ and |G|²."""
        terms = {
            "w": 1.0,
            "ww": 1.0,
            "num": trace,
            "den": square,
            "nn": trace * trace,
            "nd": trace * square,
            "dd": square * square,
        }
        beta = self._memory
        for name, term in terms.items():  # squares have the weights w²
            decay = beta if name in ("w", "num", "den") else beta * beta
            self._sums[name] = decay * self._sums[name] + term
        self._steps += 1
        self._recent = [*self._recent, [trace, square]][-self._tail_steps :]

    def estimate(self) -> Estimate | None:
        """B_simple with its interval.

        Returns:
            The estimate in prompts, NaN for an interval that has no end or f < 16, and infinite
            without an interval where |G|² or tr Σ came out at or below zero; None before the third
            step, or with β = 0.
        """
        s = self._sums
        effective = s["w"] ** 2 / (s["ww"] or 1.0)
        if self._steps < 3 or effective < 2:
            return None
        if min(s["num"], s["den"]) <= 0:  # by chance: no ratio of them is a noise scale
            return Estimate(math.inf, math.inf, math.nan, math.nan, round(effective), UNIT, METHOD)
        has_tail = len(self._recent) >= min(self._steps, self._tail_steps)
        has_interval = has_tail and effective >= MIN_EFFECTIVE_STEPS
        low, high = self._find_interval(effective) if has_interval else (math.nan, math.nan)
        ratio = s["num"] / s["den"]
        spread = s["nn"] - 2 * ratio * s["nd"] + ratio**2 * s["dd"]
        small_sample = effective / (effective - 1)
        error = (small_sample * max(spread, 0.0)) ** 0.5 / s["den"]
        return Estimate(ratio, error, low, high, round(effective), UNIT, METHOD)

    def _find_interval(self, effective: float) -> tuple[float, float]:
        """The ends of the interval; NaN where |G|² may be zero."""
        s = self._sums
        recent = torch.tensor(self._recent, dtype=torch.float64)
        residuals = recent[:, 0] - s["num"] / s["den"] * recent[:, 1]
        df = max(tail_degrees_of_freedom(residuals), degrees_of_freedom_of_sums(recent[:, 0]))
        t = t_quantile(min(df, effective - 1))
        # from sums of squares the distance of |G|² is u² = f τ²/(f − 1 + τ²), τ in its errors
        square = s["den"] ** 2 / s["dd"]
        difference = effective - square
        distance = math.sqrt((effective - 1) * square / difference) if difference > 0 else math.inf
        t = quantile_from(t, distance)
        if math.isinf(t):
            return math.nan, math.nan
        c = effective * t * t / (effective - 1 + t * t)
        spread = torch.tensor([[s["nn"], s["nd"]], [s["nd"], s["dd"]]], dtype=torch.float64)
        low, high = fieller(s["num"], s["den"], spread, c**0.5)
        return (low, high) if low <= high < math.inf else (math.nan, math.nan)

    def latest(self) -> dict[str, float]:
        """The estimate as flat numbers for a log, NaN for none; empty before the third step."""
        estimate = self.estimate()
        if estimate is None:
            return {}
        weight = self._sums["w"]
        columns = estimate.columns("noise_scale/b_simple")
        numbers = {name: x if math.isfinite(x) else math.nan for name, x in columns.items()}
        return numbers | {
            "noise_scale/trace": self._sums["num"] / weight,
            "noise_scale/gradient_square": self._sums["den"] / weight,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved sums, of the same decay."""
        # a state of version 0.1 has no recent steps: no interval until there are enough
        super().load_state_dict({"recent": [], **state, "memory": self._memory})


class NoiseScaleMonitor(OnlineNoiseScale):
    """B_simple of a training run, from its accumulated gradients."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        accumulation: int,
        processes: int,
        groups: int,
        decay: float = 0.95,
    ) -> None:
        """Set how a step is composed.

        Args:
            parameters: The trainable parameters, whose .grad accumulates over a step.
            accumulation: Micro-batches per step on each process, 2 or more; the loss of each was
                divided by it.
            processes: Processes whose gradients are averaged.
            groups: Prompt groups per micro-batch.
            decay: β of the moving averages, in [0, 1).
        """
        self._parameters = list(parameters)
        self._accumulation = accumulation
        self._processes = processes
        self._groups = groups
        super().__init__(decay)
        self._before: list[Tensor] | None = None
        self._squares: list[float] = []

    def after_backward(self, last: bool) -> None:
        """Read .grad after a micro-batch; every process must call this.

        Args:
            last: Whether the step's gradient is complete, averaged over processes.
        """
        gradient = [p.grad for p in self._parameters if p.grad is not None]
        if not (last and self._processes > 1):
            before = self._before or [torch.zeros((), device=g.device) for g in gradient]
            square = _sum_squares(g - b for g, b in zip(gradient, before, strict=True))
            self._squares.append(self._accumulation**2 * square)
        if not last:
            self._before = [g.clone() for g in gradient]
            return
        squares = [x for of_process in gather(self._squares) for x in of_process]
        n = self._accumulation * self._processes
        mean_square = sum(squares) / len(squares)
        self.update(*micro_batch_moments(mean_square, _sum_squares(gradient), n, self._groups))
        self._before = None
        self._squares = []


def _sum_squares(gradient: Iterable[Tensor]) -> float:
    return sum(read_numbers(g.double().square().sum() for g in gradient))
