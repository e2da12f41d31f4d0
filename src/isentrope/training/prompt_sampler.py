"""Selection of the prompts of each training step: in random order, or weighted by difficulty.

    uniform      epochs over the set, each in a new random order
    difficulty   without replacement within a step, probability ∝ w(p̂) = 4 p̂(1 − p̂) + ε

p̂ is the running pass rate of a prompt, (r̄ c + 1/2)/(c + 1): r̄ the exponentially weighted mean of
its groups' mean rewards, clipped to [0, 1], and c the number of its groups so far, weighted with
the same decay; a prompt without groups has p̂ = 1/2. The variance of its advantages is p̂(1 − p̂),
and a group whose rewards are all equal contributes no gradient; ε = 0.1 keeps the probability of
every prompt positive. A step in which one epoch ends and the next begins does not draw a prompt
twice: the second draw is deferred to the next step, so the numbers of draws of two prompts differ
by at most one.

The draws of a step are one list, a function of (seed, step) and the state, however many are asked
for at a time; all processes share it, and each takes its own part, so no prompt is on two processes
in a step. Prompts are sorted by their keys, so the order of the data set has no effect.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field, NonNegativeInt

from isentrope.checkpoint.files import STATE
from isentrope.system.reading import read_json, require_types
from isentrope.training.enough_prompts import require_keys, require_step

FLOOR = 0.1
"""ε, the weight of a prompt that is always, or never, solved; the largest weight is 1 + ε."""

_UNSEEN = (0.0, 0.0)
"""Σ of weighted rewards and Σ of weights of a prompt without groups."""

_Pair = Annotated[
    list[Annotated[float, Field(ge=0, allow_inf_nan=False)]], Field(min_length=2, max_length=2)
]


class _StateTypes(BaseModel):
    seed: int
    weighting: str
    memory: float
    prompts: int
    drawn: NonNegativeInt
    put_off: list[str]
    seen: dict[str, _Pair]


def difficulty_weights(checkpoint: Path, keys: Sequence[str]) -> list[float]:
    """w(p̂) of prompts by the pass rates that a checkpoint of training has.

    Args:
        checkpoint: Its folder.
        keys: Stable identifiers of prompts; one without groups so far has p̂ = 1/2.

    Returns:
        One weight per key.

    Raises:
        ValueError: If the checkpoint has no pass rates, or none of these prompts.
    """
    file = checkpoint / STATE
    remedy = (
        "U can be drawn by difficulty from a checkpoint of isentrope train on the same data set; "
        "set batch_config.U_weighting=uniform"
    )
    if not file.is_file():
        raise ValueError(f"{checkpoint} has no {STATE} with pass rates of prompts: {remedy}.")
    state = read_json(file).get("prompt_sampler")
    require_types(STATE, state, _StateTypes)
    histories: Mapping[str, Sequence[float]] = state["seen"]
    if not any(key in histories for key in keys):
        raise ValueError(f"The pass rates in {file} are of none of U's prompts: {remedy}.")
    return _weight_by_difficulty([histories.get(key, _UNSEEN) for key in keys]).tolist()


def _estimate_pass_rates(sums: Sequence[Sequence[float]]) -> np.ndarray:
    rewards, counts = np.array(sums).T
    return (rewards + 0.5) / (counts + 1)


def _weight_by_difficulty(sums: Sequence[Sequence[float]]) -> np.ndarray:
    rates = _estimate_pass_rates(sums)
    return 4 * rates * (1 - rates) + FLOOR


class PromptSampler:
    """Draws prompts for training steps, and estimates their pass rates.

    Attributes:
        keys: Stable identifiers of the prompts.
    """

    def __init__(
        self,
        keys: Sequence[str],
        *,
        seed: int,
        draws: int | None = None,
        weighting: Literal["uniform", "difficulty"] = "uniform",
        memory: float = 0.7,
    ) -> None:
        """Start a sampler without observations.

        Args:
            keys: Stable identifiers of the prompts, one or more, all different.
            seed: Fixes every draw, and is saved with the state.
            draws: Seed of the draws from here on, where another than `seed`.
            weighting: "uniform" or "difficulty".
            memory: Decay of the exponential mean of the pass rate per group, in [0, 1).

        Raises:
            ValueError: If a key is duplicated.
        """
        require_keys(keys)
        self.keys = list(keys)
        self._seed = seed
        self._weighting = weighting
        self._memory = memory
        self._draws = seed if draws is None else draws
        self._sorted = np.array(sorted(range(len(keys)), key=keys.__getitem__))
        self._position = 0  # number of positions consumed over all epochs
        self._deferred: list[int] = []  # prompts of those positions that are still to be drawn
        self._step = -1
        self._drawn_in_step: set[int] = set()
        self._at_start: tuple[int, list[int]] = 0, []  # position and deferred as a step begins
        self._order: list[int] = []  # weighted prompts of the step that are still to be drawn
        self._seen: dict[int, Sequence[float]] = {}  # Σ of weighted rewards and of weights

    def draw(self, n: int, step: int) -> list[int]:
        """Draw n prompts for a step; further calls for the same step take the next ones.

        Args:
            n: Number of prompts.
            step: The step, from 1.

        Returns:
            Indices into `keys`, none of them drawn in this step before.

        Raises:
            ValueError: If fewer than n prompts are left that this step has not drawn.
        """
        if step != self._step:
            self._step = step
            self._drawn_in_step = set()
            self._at_start = self._position, list(self._deferred)
            self._order = []
        require_step(n, len(self.keys), len(self._drawn_in_step))
        weighted = self._weighting == "difficulty"
        selection = self._draw_weighted(n) if weighted else self._draw_in_epochs(n)
        self._drawn_in_step.update(selection)
        return selection

    def keep(self, number: int) -> None:
        """Count the first draws of the step alone; prompts after them are drawn again later.

        Args:
            number: Draws that the step's batch needed.
        """
        if self._weighting == "uniform":
            self._position, deferred = self._at_start
            self._deferred = list(deferred)
            self._drawn_in_step = set()
            self._draw_in_epochs(number)
        self._step = -1

    def _draw_weighted(self, n: int) -> list[int]:
        if not self._order:  # of the whole step, so that it does not depend on the size of a draw
            rng = np.random.default_rng([self._draws, self._step])
            weights = _weight_by_difficulty(
                [self._seen.get(i, _UNSEEN) for i in range(len(self.keys))]
            )
            # Efraimidis and Spirakis
            ranking = np.log(rng.random(len(weights))) / weights[self._sorted]
            self._order = self._sorted[np.argsort(-ranking)].tolist()
        selection = self._order[:n]
        self._order = self._order[n:]
        return selection

    def _draw_in_epochs(self, n: int) -> list[int]:
        selection = [index for index in self._deferred if index not in self._drawn_in_step][:n]
        self._deferred = [index for index in self._deferred if index not in selection]
        while len(selection) < n:
            epoch, place = divmod(self._position, len(self.keys))
            order = np.random.default_rng([self._draws, epoch]).permutation(len(self.keys))
            for index in self._sorted[order[place:]].tolist():
                if len(selection) == n:
                    break
                self._position += 1
                # the prompt repeats where an epoch ends in this step
                repeated = index in self._drawn_in_step or index in selection
                (self._deferred if repeated else selection).append(index)
        return selection

    def update(self, indices: Sequence[int], rewards: Sequence[float]) -> None:
        """Update pass rates with the groups of a draw, rejected groups included.

        Args:
            indices: Prompts, each at most once.
            rewards: Mean reward of the group of each prompt; nan where no response is scored,
                which says nothing of the prompt.

        Raises:
            ValueError: If a reward is infinite.
        """
        if np.isinf(rewards).any():
            raise ValueError("The mean reward of a group is not finite: check the reward function.")
        for i, reward in zip(indices, rewards, strict=True):
            if math.isnan(reward):
                continue
            reward_sum, count = (self._memory * x for x in self._seen.get(i, _UNSEEN))
            self._seen[i] = [reward_sum + min(max(reward, 0.0), 1.0), count + 1]

    def difficulty(self, index: int) -> float:
        """1 − p̂ of a prompt, in [0, 1]; 1/2 for a prompt without groups."""
        return float(1 - _estimate_pass_rates([self._seen.get(index, _UNSEEN)])[0])

    def state_dict(self) -> dict[str, Any]:
        """The state between steps, as plain JSON by stable key."""
        return {
            "seed": self._seed,
            "weighting": self._weighting,
            "memory": self._memory,
            "prompts": len(self.keys),
            "drawn": self._position,
            "put_off": [self.keys[i] for i in self._deferred],
            "seen": {self.keys[i]: self._seen[i] for i in sorted(self._seen)},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state.

        Args:
            state: What `state_dict` returned.

        Raises:
            KeyError: If it knows a prompt that is not in the training set.
        """
        require_types(STATE, state, _StateTypes)
        places = {key: i for i, key in enumerate(self.keys)}
        self._position = int(state["drawn"])
        self._step = -1
        self._deferred = [places[key] for key in state["put_off"]]
        self._seen = {places[key]: sums for key, sums in state["seen"].items()}
