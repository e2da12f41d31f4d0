"""What a model and a batch tell of training: dropout, a load-balancing loss, a stale batch.

These are the parts of training's step that no settings file has to name: they show in the model
that was loaded, and in the log-probabilities that a batch keeps of its sampler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from isentrope.config.estimator import EstimatorConfig
from isentrope.models.requirements import dropout_rates
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.runs.checkpoints import Subject
from isentrope.sampling.advantages import rules_of_advantages
from isentrope.trainers.as_trained import AsTrained
from isentrope.trainers.rules import Obstacle
from isentrope.update.objective import RECORDED, SFT
from isentrope.update.off_policy import OTHER_SAMPLER, SAMPLER_ROUNDING, sampler_gap

_NO_SAMPLER = (RECORDED, SFT)
"""Objectives to which it does not matter who drew the batch, and with which advantages."""


def model_obstacles(policy: Policy, subject: Subject) -> list[Obstacle]:
    """Training's dropout and load-balancing loss, which are not in the computed step."""
    arguments = subject.as_trained.arguments
    return [*_dropout(policy.model, arguments), *_balancing(policy.model, arguments)]


def stale_batch(
    policy: Policy, U: Rollouts, estimator: EstimatorConfig, *, drawn_here: bool
) -> tuple[list[Obstacle], list[str]]:
    """Hold a batch from a file against the policy that is said to have drawn it.

    A batch that is drawn here is on-policy by construction and is not scored again.

    Args:
        policy: The policy, at the precision of the update.
        U: The update batch.
        estimator: How the step is computed.
        drawn_here: Whether U was drawn here.

    Returns:
        An obstacle where the distance is more than a sampler's rounding, and a note where it is
        more than that of float32.
    """
    if U.sampler_logprobs is None or drawn_here:
        return [], []
    if estimator.off_policy or estimator.objective in _NO_SAMPLER:
        return [], []
    gap = sampler_gap(policy, U)
    measured = f"U's sampler and this policy differ by {gap:.2g} nats per token (root mean square)"
    way_out = (
        "if it was drawn by an earlier policy, set estimator.off_policy: true; if at another "
        "temperature, set sampling.temperature as there"
    )
    if gap > OTHER_SAMPLER:
        return [Obstacle("stale_batch", f"{measured}, so U is not a draw of it: {way_out}")], []
    if gap > SAMPLER_ROUNDING:
        return [], [f"{measured}: {way_out}; a sampler in bfloat16 differs as much."]
    return [], []


def unlike_advantages(U: Rollouts, settled: AsTrained) -> list[Obstacle]:
    """Advantages by another rule than training's, which computing them anew shows."""
    trained = settled.advantages or settled.arguments.get("scale_rewards")
    unlike = {"estimator.objective", "estimator.advantages"} & {o.name for o in settled.obstacles}
    objective = settled.origins["estimator.objective"].value if settled.origins else RECORDED
    if U.rewards is None or U.advantages is None or objective in _NO_SAMPLER:
        return []
    if trained is None or unlike:
        return []
    rules = rules_of_advantages(U)
    if not rules or trained in rules:
        return []
    words = f"U's advantages are those of {rules[0]}, training had {trained}"
    return [Obstacle("estimator.advantages", words)]


def training_dropout(model: nn.Module, arguments: Mapping[str, Any]) -> dict[str, float]:
    """Modules that drop activations in training.

    Args:
        model: The model.
        arguments: The trainer's; TRL's `disable_dropout` switches torch's own modules off.

    Returns:
        Rate by module name.
    """
    return dropout_rates(model, attributes_only=bool(arguments.get("disable_dropout")))


def _dropout(model: nn.Module, arguments: Mapping[str, Any]) -> list[Obstacle]:
    rates = training_dropout(model, arguments)
    if not rates:
        return []
    name, rate = next(iter(rates.items()))
    words = (
        f"{len(rates)} modules drop activations in training, the first is {name} at rate {rate:g}, "
        "and a step with dropout is not a function of its batch (train with dropout 0, or list "
        "'dropout' if training had switched it off)"
    )
    return [Obstacle("dropout", words)]


def balancing_weight(model: Any, arguments: Mapping[str, Any]) -> float:
    """The weight of the load-balancing loss of a mixture of experts; 0 where there is none."""
    config = model.config.get_text_config()
    if not hasattr(config, "output_router_logits"):
        return 0.0
    given = arguments.get("router_aux_loss_coef")
    if given is not None:
        return float(given)
    always = "router_aux_loss_coef" in arguments  # TRL, which asks the model for it
    own = getattr(config, "router_aux_loss_coef", 0.0)
    return float(own) if always or config.output_router_logits else 0.0


def _balancing(model: Any, arguments: Mapping[str, Any]) -> list[Obstacle]:
    """The load-balancing loss as an obstacle, where a trainer's arguments are known."""
    weight = balancing_weight(model, arguments) if arguments else 0.0
    words = f"a load-balancing loss of weight {weight:g} is added for the experts"
    return [Obstacle("router_aux_loss_coef", words)] if weight else []
