"""Published feedback of entropy, as arms of `compose`: what each does when its target changes.

    h   entropy of the step's responses, nats per token        h*   its target at this step

Each law has the constants of its source, and none was tuned here.

    vanilla    none
    trl        bonus β h, β ← β ± .005 in [0, 1] after each step; acts where h was ≤ h* before.
               TRL 1.16, `grpo_trainer.py`, `use_adaptive_entropy` with its defaults
    skywork    the same with .0001 in [0, .005], < in place of ≤, and −s in place of H as h.
               SkyworkAI/Skywork-OR1@64e96af, `core_algos.py::EntController`, `or1_scripts`
    entropic   objective + α mean of |A| s over tokens with π > .95,
               α = clip(h − h* + .01 Σ (h − h*), −1, 1).
               EntroPIC, arXiv 2511.15248, `dp_actor.py`, `run_entropic.sh`
    repo_r     REPO-R; |ζ| ← 2|ζ| towards the target and |ζ|/2 away from it, in [1e-4, .05], from
               .001; at the least the sign changes. SkyRL pull request 1896, arXiv 2603.11682
    budget     `isentrope.EntropyBudget` with its defaults, per token
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from isentrope.control.feedback import Target
from isentrope.control.repo_r import RepoR
from studies.compose_arm import Arm, Batch
from studies.compose_arms import tokens_of
from studies.compose_budget import Budget

PHASES = (0.3, 0.6, 0.3)
"""Targets, as shares of the entropy per token of the first batch."""
LENGTH = 80
"""Steps of a phase."""


class Law(Arm):
    """An arm with a target that changes in steps.

    Attributes:
        first: Entropy per token of the first batch, nats.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first: float | None = None

    def target(self, batch: Batch) -> float:
        """h* of a step; to be asked at every step, the first included."""
        if self.first is None:
            self.first = batch.entropy_per_token
        goal = PHASES[min(batch.step // LENGTH, len(PHASES) - 1)] * self.first
        self.numbers = {"target": goal}
        return goal

    def token_weights(self, batch: Batch) -> Tensor:
        """The plain weights."""
        self.target(batch)
        return super().token_weights(batch)


class Adaptive(Law):
    """The adaptive coefficient of an entropy bonus."""

    delta, most = 0.005, 1.0

    def __init__(self) -> None:
        super().__init__()
        self.coefficient, self.on = 0.0, True

    def loss_terms(self, batch: Batch) -> Tensor:
        """Minus the bonus."""
        applied = self.coefficient if self.on else 0.0
        return -applied * batch.entropies.sum() / batch.mask.sum()

    def entropy(self, batch: Batch) -> float:
        """What is compared with the target."""
        return batch.entropy_per_token

    def after_step(self, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        """Set the coefficient of the next step."""
        self.on = self.entropy(batch) <= self.target(batch)
        change = self.delta if self.on else -self.delta
        self.coefficient = min(max(self.coefficient + change, 0.0), self.most)


class Skywork(Adaptive):
    """The same with Skywork's constants and its estimate of entropy from the drawn tokens."""

    delta, most = 1e-4, 0.005

    def entropy(self, batch: Batch) -> float:
        """−s, the mean over tokens."""
        return -float(batch.logprobs.detach().sum() / batch.mask.sum())


class EntroPic(Law):
    """A proportional–integral loop on the weights of likely tokens."""

    proportional, integral, likely = 1.0, 0.01, 0.95

    def __init__(self) -> None:
        super().__init__()
        self.sum = 0.0

    def token_weights(self, batch: Batch) -> Tensor:
        """The plain weights, and α |A| over their number at likely tokens."""
        error = batch.entropy_per_token - self.target(batch)
        self.sum += error
        alpha = min(max(self.proportional * error + self.integral * self.sum, -1.0), 1.0)
        chosen = (batch.logprobs.detach().exp() > self.likely).float() * batch.mask
        extra = alpha * batch.advantages.abs()[:, None] * chosen / chosen.sum().clamp(min=1)
        return batch.weights + extra


class Repo(Law):
    """REPO-R, whose strength is doubled and halved."""

    first_strength, least, most = 0.001, 1e-4, 0.05

    def __init__(self) -> None:
        super().__init__()
        self.zeta = self.first_strength

    def token_weights(self, batch: Batch) -> Tensor:
        """The weights of the library's rule."""
        sign = 1.0 if batch.entropy_per_token < self.target(batch) else -1.0
        if self.zeta * sign > 0:
            self.zeta = sign * min(2 * abs(self.zeta), self.most)
        elif abs(self.zeta) > self.least:
            self.zeta = -sign * max(abs(self.zeta) / 2, self.least)
        else:
            self.zeta = sign * self.least
        return RepoR(strength=self.most).rewrite(tokens_of(batch), self.zeta).weights.float()


class Aimed(Budget):
    """The library's budget with the targets of the others."""

    def __init__(self) -> None:
        super().__init__(per="token")
        self._law = Law()

    def _target(self, batch: Batch) -> Target:
        return Target(kind="value", value=self._law.target(batch))

    def before_step(self, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        """Set the target, and compute the correction."""
        if self.budget is not None:
            self.budget.aim(self._target(batch))
        super().before_step(batch, optimizer)


LAWS: dict[str, Callable[[], Arm]] = {
    "vanilla": Law,
    "trl": Adaptive,
    "skywork": Skywork,
    "entropic": EntroPic,
    "repo_r": Repo,
    "budget": Aimed,
}
