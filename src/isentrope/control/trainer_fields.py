"""Controls that are part of TRL: each is a name for the fields of its configuration that it sets.

    clip_higher   epsilon_high = .2 + x: r is clipped to [.8, 1.2 + x]; x = .08 in DAPO
                  (arXiv 2503.14476)
    cispo         loss_type cispo: c = w min(r, ε_high) A, the weight of a token without its
                  gradient through r (arXiv 2506.13585); ε_high = 5 (arXiv 2510.13786)
    gspo          importance_sampling_level sequence, loss_type grpo: one ratio per response,
                  clipped to [1 − 3e-4, 1 + 4e-4] (arXiv 2507.18071)
    adaptive      use_adaptive_entropy: a pathwise bonus whose coefficient rises by δ per step
                  while h < target and falls while it is above, and which acts only below it
                  (Skywork-OR1, `EntController`; target .2, largest .005, δ 1e-4)

The first three act through r ≠ 1 only, so they need trainer.num_iterations > 1. The last one has a
target of its own, in nats per token, and its bonus is a mean per micro-batch and process, so its
result depends on training.micro_batch and on the number of processes.
"""

from typing import Any, ClassVar

from isentrope.control.base import NotNegative, Positive, options


class TrainerFields:
    """A control that sets fields of TRL's configuration.

    Attributes:
        on_policy: Whether it acts while every ratio of policy to sampler is 1.
        targetable: Whether its strength can follow a target.
    """

    on_policy: ClassVar[bool] = False
    targetable: ClassVar[bool] = False

    def fields(self) -> dict[str, Any]:
        """Fields of TRL's configuration and their values.

        Raises:
            NotImplementedError: Always; each control implements it.
        """
        raise NotImplementedError


@options
class ClipHigher(TrainerFields):
    """A wider clip above 1.

    Attributes:
        strength: ε above 1 minus ε below 1; 0 is TRL's default.
        low: ε below 1.
    """

    strength: NotNegative = 0.08
    low: Positive = 0.2

    def fields(self):
        """Both ε."""
        return {"epsilon": self.low, "epsilon_high": self.low + self.strength}


@options
class Cispo(TrainerFields):
    """The CISPO loss.

    Attributes:
        high: Largest ratio, above which it is clipped.
    """

    high: Positive = 5.0

    def fields(self):
        """The loss and its bound."""
        return {"loss_type": "cispo", "epsilon_high": self.high}


@options
class Gspo(TrainerFields):
    """One ratio per response.

    Attributes:
        low: ε below 1.
        high: ε above 1.
    """

    low: Positive = 3e-4
    high: Positive = 4e-4

    def fields(self):
        """The loss, the level of the ratios and their clip bounds."""
        level = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
        return level | {"epsilon": self.low, "epsilon_high": self.high}


@options
class AdaptiveBonus(TrainerFields):
    """TRL's adaptive entropy bonus.

    Attributes:
        strength: Largest coefficient.
        target: Target entropy, nats per token.
        delta: Change of the coefficient per step.
    """

    strength: NotNegative = 0.005
    target: Positive = 0.2
    delta: Positive = 1e-4
    on_policy: ClassVar[bool] = True

    def fields(self):
        """The bonus."""
        return {
            "use_adaptive_entropy": True,
            "entropy_target": self.target,
            "entropy_coef_min": 0.0,
            "entropy_coef_max": self.strength,
            "entropy_coef_delta": self.delta,
        }
