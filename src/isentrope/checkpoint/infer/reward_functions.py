"""Which reward functions training had, and what each weighs, beside those of a measurement.

TRL writes the mean reward of every function into the log of `trainer_state.json`, by its name and
in the trainer's order, and their weights into its arguments. The functions themselves are in no
file, so they are given; their weights are then training's, and a function that is missing is seen.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from isentrope.checkpoint.files import TRAINER_STATE
from isentrope.checkpoint.infer.settings import Obstacle

REWARD_FUNCS = "reward_funcs"
"""The argument of TRL's trainers, and the name of the obstacle."""
_PREFIX = "rewards/"


def logged_functions(trainer_state: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the reward functions in the log of a trainer, in its order; empty for none."""
    log = trainer_state.get("log_history")
    for entry in log if isinstance(log, list) else ():
        keys = [key for key in entry if key.startswith(_PREFIX)] if isinstance(entry, dict) else []
        names = (key.removeprefix(_PREFIX).removesuffix("/mean") for key in keys)
        if keys:
            return tuple(name for name in names if not name.endswith("/std"))
    return ()


@dataclass(frozen=True)
class RewardFunctions:
    """The reward functions of a measurement beside those of training.

    Attributes:
        names: Of the measurement, in the order in which they are given.
        chosen: Their weights, where a configuration sets them; else empty.
        trained: Names of training's, in the trainer's order; empty where no file says them.
        trained_weights: Of training, in the trainer's order; empty where each counts once.
    """

    names: tuple[str, ...]
    chosen: tuple[float, ...] = ()
    trained: tuple[str, ...] = ()
    trained_weights: tuple[float, ...] = ()

    @property
    def _are_trained(self) -> bool:
        """Whether they are training's by their names, each of which is one function's."""
        return len(set(self.names)) == len(self.names) and sorted(self.names) == sorted(
            self.trained
        )

    @property
    def trained_weights_in_order(self) -> list[float] | None:
        """Training's weights in the order of `names`; None where they are 1, set, or do not fit."""
        uneven = any(weight != 1 for weight in self.trained_weights)
        fit = 1 < len(self.names) == len(self.trained_weights)
        if self.chosen or not uneven or not fit:
            return None
        if not self._are_trained:  # in the trainer's order, as far as is known
            return [*self.trained_weights]
        by_name = dict(zip(self.trained, self.trained_weights, strict=True))
        return [by_name[name] for name in self.names]

    @property
    def summed_by(self) -> tuple[float, ...]:
        """Weights of the measurement in the order of training's; empty where each counts once."""
        if not self.chosen:
            fit = self.trained_weights and self.trained_weights_in_order
            return self.trained_weights if fit else ()
        if not self._are_trained or len(self.chosen) != len(self.names):
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
        if computed and set(self.names) < set(self.trained):
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
