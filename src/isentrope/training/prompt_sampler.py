"""Which prompts a training step draws: in random order, or by how likely they are to teach.

    uniform      passes over the set, each in a new random order
    difficulty   without replacement within a step, probability ∝ w(p̂) = 4 p̂(1 − p̂) + ε

p̂ is the running pass rate of a prompt, (r̄ c + 1/2)/(c + 1): r̄ the exponentially weighted mean of
its groups' mean rewards, clipped to [0, 1], and c the number of groups so far counted with the same
memory; a prompt not seen yet has p̂ = 1/2. A group whose rewards are all equal moves nothing, and
p̂(1 − p̂) is the variance that its advantages have; ε = 0.1 keeps every prompt in play.
A step in which one pass ends and the next begins may not draw a prompt twice: the second time is
put off to the step after, so a prompt is never more than one draw ahead of another.

Every draw is a function of (seed, step, round) and the state, which all processes share: each
takes its own part of one list, so no two of them hold the same prompt in a step. Prompts count in
the order of their keys, so the order of the data set changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

FLOOR = 0.1
"""ε, the weight of a prompt that is always, or never, solved; 1 + ε is the largest."""


class PromptSampler:
    """Draws prompts for training steps, and learns their pass rates.

    Attributes:
        keys: Stable identifiers of the prompts.
    """

    def __init__(
        self,
        keys: Sequence[str],
        *,
        seed: int,
        weighting: Literal["uniform", "difficulty"] = "uniform",
        memory: float = 0.7,
    ) -> None:
        """Start a sampler that has seen nothing.

        Args:
            keys: Stable identifiers of the prompts, all different.
            seed: Fixes every draw.
            weighting: "uniform" or "difficulty".
            memory: How much of a running pass rate the next group leaves standing, in [0, 1).

        Raises:
            ValueError: If there are no keys, one comes twice, or the weighting is unknown.
        """
        if not keys:
            raise ValueError("The training set is empty: there is no prompt to draw from.")
        if len(set(keys)) < len(keys):
            twice = next(key for i, key in enumerate(keys) if key in keys[:i])
            raise ValueError(f"Two training prompts have the key {twice!r}: keys must differ.")
        if weighting not in ("uniform", "difficulty"):
            raise ValueError(f"Unknown weighting {weighting!r}: choose uniform or difficulty.")
        self.keys = list(keys)
        self._seed, self._weighting, self._memory = seed, weighting, memory
        self._sorted = np.array(sorted(range(len(keys)), key=keys.__getitem__))
        self._drawn = 0  # places of all passes gone through so far
        self._put_off: list[int] = []  # prompts of those places that are still to be drawn
        self._step, self._round, self._taken = -1, 0, set[int]()
        self._reward = np.zeros(len(keys))  # Σ of weighted rewards
        self._count = np.zeros(len(keys))  # Σ of weights

    def draw(self, n: int, step: int) -> list[int]:
        """Draw n prompts for a step; further calls for the same step are its redraws.

        Args:
            n: How many.
            step: The step, from 1.

        Returns:
            Indices into `keys`, none of them drawn in this step before.

        Raises:
            ValueError: If the set has not so many prompts that the step has not drawn.
        """
        if step != self._step:
            self._step, self._round, self._taken = step, 0, set()
        if n + len(self._taken) > len(self.keys):
            already = f", {len(self._taken)} of them drawn in this step" if self._taken else ""
            raise ValueError(
                f"A step wants {n} prompts and the training set has {len(self.keys)}{already}: "
                "use more prompts, a smaller training.prompts_per_step, or a lower "
                "training.redraw_limit."
            )
        chosen = self._weighted(n) if self._weighting == "difficulty" else self._in_passes(n)
        self._round += 1
        self._taken.update(chosen)
        return chosen

    def _weighted(self, n: int) -> list[int]:
        rng = np.random.default_rng([self._seed, self._step, self._round])
        rates = self._pass_rates()
        weights = 4 * rates * (1 - rates) + FLOOR
        weights[list(self._taken)] = 0.0
        weights = weights[self._sorted]
        chosen = rng.choice(len(weights), n, replace=False, p=weights / weights.sum())
        return self._sorted[chosen].tolist()

    def _in_passes(self, n: int) -> list[int]:
        chosen = [index for index in self._put_off if index not in self._taken][:n]
        self._put_off = [index for index in self._put_off if index not in chosen]
        while len(chosen) < n:
            number, place = divmod(self._drawn, len(self.keys))
            order = np.random.default_rng([self._seed, number]).permutation(len(self.keys))
            for index in self._sorted[order[place:]].tolist():
                if len(chosen) == n:
                    break
                self._drawn += 1
                again = index in self._taken or index in chosen  # as a pass ends in a step
                (self._put_off if again else chosen).append(index)
        return chosen

    def update(self, indices: Sequence[int], rewards: Sequence[float]) -> None:
        """Learn from the groups of a draw, rejected ones included.

        Args:
            indices: Prompts, each at most once.
            rewards: Mean reward of each one's group.

        Raises:
            ValueError: If a prompt comes twice, or there is not one finite reward for each.
        """
        where = list(indices)
        if len(set(where)) < len(where) or len(rewards) != len(where):
            raise ValueError(
                f"Pass rates want one mean reward for each prompt, got {len(rewards)} for "
                f"{len(where)} prompts, {len(set(where))} of them different."
            )
        if not np.isfinite(rewards).all():
            raise ValueError("The mean reward of a group is not finite: check the reward function.")
        self._reward[where] = self._memory * self._reward[where] + np.clip(rewards, 0, 1)
        self._count[where] = self._memory * self._count[where] + 1

    def _pass_rates(self) -> np.ndarray:
        return (self._reward + 0.5) / (self._count + 1)

    def difficulty(self, index: int) -> float:
        """1 − p̂ of a prompt.

        Args:
            index: The prompt.

        Returns:
            In [0, 1]; 1/2 for one not seen yet.
        """
        return float(1 - self._pass_rates()[index])

    def state_dict(self) -> dict[str, Any]:
        """The state between steps, as plain JSON by stable key."""
        seen = np.flatnonzero(self._count).tolist()
        return {
            "seed": self._seed,
            "weighting": self._weighting,
            "memory": self._memory,
            "prompts": len(self.keys),
            "drawn": self._drawn,
            "put_off": [self.keys[i] for i in self._put_off],
            "seen": {self.keys[i]: [float(self._reward[i]), float(self._count[i])] for i in seen},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Args:
            state: What `state_dict` returned.

        Raises:
            ValueError: If it is of another seed, weighting or memory, or of other prompts.
        """
        places = {key: i for i, key in enumerate(self.keys)}
        if strange := [key for key in [*state["seen"], *state["put_off"]] if key not in places]:
            raise ValueError(
                f"The sampler's state knows {len(strange)} prompts that the training set has not, "
                f"the first is {strange[0]!r}."
            )
        own = self.state_dict()
        for name in ("seed", "weighting", "memory", "prompts"):
            if state[name] != own[name]:
                raise ValueError(
                    f"The sampler's state has {name} {state[name]!r}, this run {own[name]!r}."
                )
        self._drawn, self._step = int(state["drawn"]), -1
        self._put_off = [places[key] for key in state["put_off"]]
        self._reward[:], self._count[:] = 0.0, 0.0
        for key, (reward, count) in state["seen"].items():
            self._reward[places[key]], self._count[places[key]] = reward, count
