"""Which reward functions training had, and what each weighs, beside those of a measurement.

TRL writes the mean reward of every function into the log of `trainer_state.json` by its name, and
their weights into its arguments in the order of the functions. The log is sorted by name, so that
order is in no file: it follows where one order alone gives the sums of rewards that are logged too.
The functions themselves are in no file either, so they are given; their weights are then training's
and a function that is missing is seen.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from isentrope.checkpoint.files import TRAINER_STATE
from isentrope.checkpoint.infer.settings import Obstacle

REWARD_FUNCS = "reward_funcs"
"""The argument of TRL's trainers, and the name of the obstacle."""
_PREFIX = "rewards/"
_ENTRIES = 32
"""Entries of a log, the last ones, whose sums are compared."""
_MOST = 6
"""Functions whose orders are all tried."""
_ROUNDING = 1e-5
"""Of a sum that a trainer computes in float32, relative to its terms."""


def logged_functions(trainer_state: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the reward functions in the last entry of a trainer's log; empty for none."""
    entries = _read_means(trainer_state)
    return tuple(entries[-1][1]) if entries else ()


def order_by_sums(trainer_state: Mapping[str, Any], weights: Sequence[float]) -> tuple[str, ...]:
    """Names of the reward functions in the order of their weights, where the log tells it.

    Args:
        trainer_state: With its log.
        weights: Of training, in the trainer's order.

    Returns:
        The names; functions of equal weights in any order. Empty where no order or several orders
            of different weights give the sums, as where a function gives None for some responses.
    """
    names = logged_functions(trainer_state)
    if len(names) != len(weights) or len(names) > _MOST:
        return ()
    entries = [(total, x) for total, x in _read_means(trainer_state) if tuple(x) == names]
    orders: dict[tuple[tuple[str, float], ...], tuple[str, ...]] = {}
    for order in permutations(names):
        if all(_is_sum(total, means, order, weights) for total, means in entries[-_ENTRIES:]):
            orders[tuple(sorted(zip(order, weights, strict=True)))] = order
    return next(iter(orders.values())) if len(orders) == 1 else ()


def _read_means(trainer_state: Mapping[str, Any]) -> list[tuple[float, dict[str, float]]]:
    """The sum of rewards and the mean of each function by its name, per entry that has them."""
    log = trainer_state.get("log_history")
    entries: list[tuple[float, dict[str, float]]] = []
    for entry in log if isinstance(log, list) else ():
        means = {
            key.removeprefix(_PREFIX).removesuffix("/mean"): _as_number(value)
            for key, value in (entry.items() if isinstance(entry, dict) else ())
            if key.startswith(_PREFIX) and not key.endswith("/std")
        }
        if means:
            entries.append((_as_number(entry.get("reward")), means))
    return entries


def _as_number(value: Any) -> float:
    """A number of a log; NaN for what is none."""
    return value if isinstance(value, (int, float)) else math.nan


def _is_sum(
    total: float, means: Mapping[str, float], order: Sequence[str], weights: Sequence[float]
) -> bool:
    """Whether a logged sum is that of the weighted means, where one that gave none adds nothing."""
    pairs = zip(weights, order, strict=True)
    terms = [0.0 if math.isnan(means[name]) else weight * means[name] for weight, name in pairs]
    size = max(1e-3, *map(abs, terms))
    return math.isclose(total, sum(terms), rel_tol=0.0, abs_tol=_ROUNDING * size)


@dataclass(frozen=True)
class RewardFunctions:
    """The reward functions of a measurement beside those of training.

    Attributes:
        names: Of the measurement, in the order in which they are given.
        chosen: Their weights, where a configuration sets them; else empty.
        trained: Names of training's; empty where no file says them.
        trained_weights: Of training, in the trainer's order; empty where each counts once.
        is_ordered: Whether `trained` is in the trainer's order too, as far as weights differ.
    """

    names: tuple[str, ...]
    chosen: tuple[float, ...] = ()
    trained: tuple[str, ...] = ()
    trained_weights: tuple[float, ...] = ()
    is_ordered: bool = False

    @property
    def _are_placed(self) -> bool:
        """Whether each is one of training's by its name, and its place in the order is known."""
        distinct = len(set(self.names)) == len(self.names)
        return self.is_ordered and distinct and sorted(self.names) == sorted(self.trained)

    @property
    def trained_weights_in_order(self) -> list[float] | None:
        """Training's weights in the order of `names`; None where they are 1, set, or do not fit."""
        uneven = any(weight != 1 for weight in self.trained_weights)
        fit = 0 < len(self.names) == len(self.trained_weights)
        if self.chosen or not uneven or not fit:
            return None
        if not self._are_placed:
            return [*self.trained_weights]  # `order_note` says so
        by_name = dict(zip(self.trained, self.trained_weights, strict=True))
        return [by_name[name] for name in self.names]

    @property
    def order_note(self) -> str:
        """A sentence on weights that are given by the order of functions alone; empty if not so."""
        weights = self.trained_weights_in_order
        if weights is None or self._are_placed or len(set(weights)) == 1:
            return ""
        pairs = ", ".join(f"{x:g} {name}" for name, x in zip(self.names, weights, strict=True))
        return (
            f"Which reward function had which weight in training is in no file: {pairs}, in the "
            "order in which they are given, which has to be the trainer's."
        )

    @property
    def summed_by(self) -> tuple[float, ...]:
        """Weights of the measurement in the order of training's; empty where each counts once."""
        if not self.chosen:
            fit = self.trained_weights and self.trained_weights_in_order
            return self.trained_weights if fit else ()
        if not self._are_placed or len(self.chosen) != len(self.names):
            return self.chosen
        by_name = dict(zip(self.names, self.chosen, strict=True))
        return tuple(by_name[name] for name in self.trained)

    def compare(
        self, obstacles: Collection[Obstacle], computed: bool, rewarded: bool
    ) -> tuple[list[Obstacle], list[str]]:
        """What differs from training's functions.

        Args:
            obstacles: Those that are known; one of the weights says enough.
            computed: Whether the step is computed from these rewards.
            rewarded: Whether anything is.

        Returns:
            An obstacle where some of training's are missing and the others are training's; and a
            note where the functions have other names, which may be other functions.
        """
        if not rewarded or set(self.names) == set(self.trained):
            return [], []
        if any(obstacle.name == "reward_weights" for obstacle in obstacles):
            return [], []
        missing = [name for name in self.trained if name not in self.names]
        fewer = len(self.names) < len(self.trained)  # else some have the name of another one
        if computed and fewer and set(self.names) < set(self.trained):
            words = (
                f"training had the reward functions {', '.join(self.trained)} ({TRAINER_STATE}), "
                f"and {', '.join(missing)} is missing here: give all of them (--reward once for "
                "each, or a list in batch_config.dataset_name or in Python)"
            )
            return [Obstacle(REWARD_FUNCS, words)], []
        return [], [self.note]

    @property
    def note(self) -> str:
        """A sentence on functions of other names than training's."""
        return (
            f"Training's reward functions are called {', '.join(self.trained)} ({TRAINER_STATE}), "
            f"and those given here {', '.join(self.names)}: rewards are training's only if they "
            "give the same sums."
        )
