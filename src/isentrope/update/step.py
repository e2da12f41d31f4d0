"""One optimizer step as a direction, and its additive parts (T5).

    θ' = θ + ηv,     ∂J = Σ_ik c_ik ∂s_ik,     clip = min(1, c/(‖∂J‖ + 1e-6)),     g = −clip ∂J

    v = v_base + Σ_i v_i,     v_base = momentum + decay,     v_i = P Σ_k c_ik ∂s_ik

c_ik = w_i A_i for the objectives of `objective`, so that v_i = w_i A_i · P ∂S(t_i). A recorded
batch of a loss with an entropy term has d_ik ∂H_ik beside every c_ik ∂s_ik.

v is the optimizer's change of θ, divided by η, the learning rate of its first param group; a group
with another rate η_g is scaled by η_g/η. P contains the clip factor and the second moment of this
step, held fixed, so the sum is exact. All arithmetic is float64: the difference of two float32
parameter sets would keep three digits at η = 1e-6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isentrope.nouns.choices import RECORDED, Preconditioning
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, axpy, norm
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.memory import mapped_blocks
from isentrope.system.one_line import one_line, plural
from isentrope.update.objective import entropy_weights, token_weights
from isentrope.update.optimizer_rules import RULES, SHORT_MOMENTS, short_types
from isentrope.update.optimizer_state import OptimizerLike, OptimizerState, load_optimizer_state

COMPONENTS = ("momentum", "decay", "gradient", "control", "rounding")
"""Names of the parts of a step: control of one that a control corrected, rounding of a rounded one.

What shows the parts of a step shows these, and they sum to it."""


@dataclass(frozen=True)
class Step:
    """A step of the optimizer, per unit learning rate.

    Attributes:
        direction: v, float64.
        preconditioner: P, diagonal, clip factor and group rates included, float64.
        components: "momentum", "decay" and "gradient" (= Σ_i v_i), and "control" where a control
            corrected the step; they sum to `direction`.
        token_weights: (n, t) float64, c_ik; 0 where there is no token.
        batch: Fingerprint of the update batch.
        learning_rate: η that the optimizer would use.
        gradient_norm: ‖Σ_ik (c_ik ∂s_ik + d_ik ∂H_ik)‖ over all of θ, before clipping.
        clip_factor: What clipping multiplied the gradient by; 1 where it did not act.
        matched_by: How the optimizer's parameters were named (`OptimizerState.matched_by`).
        warnings: Sentences on what limits the step's use.
        entropy_weights: (n, t) float64, d_ik of a recorded entropy term; None for 0.
    """

    direction: Vector
    preconditioner: Vector
    components: dict[str, Vector]
    token_weights: Tensor
    batch: str
    learning_rate: float
    gradient_norm: float
    clip_factor: float
    matched_by: str
    warnings: tuple[str, ...] = ()
    entropy_weights: Tensor | None = None

    def __repr__(self) -> str:
        size = plural(sum(x.numel() for x in self.direction.values()), "parameter")
        return one_line(
            self,
            f"at learning rate {self.learning_rate:.3g}, {size} in {len(self.direction)} tensors",
            f"the sum of {', '.join(self.components)}",
            f"gradient norm {self.gradient_norm:.3g}, of which clipping keeps "
            f"{self.clip_factor:.3g}",
            *([plural(len(self.warnings), "warning")] if self.warnings else []),
        )

    @property
    def acting(self) -> Tensor:
        """(n, t) bool, the tokens with a weight in the step: c_ik or d_ik is not 0."""
        acting = self.token_weights != 0
        return acting if self.entropy_weights is None else acting | (self.entropy_weights != 0)

    @property
    def baseline(self) -> Vector:
        """v_base: what the step would be if this batch had no gradient, P held fixed."""
        return axpy(1.0, self.components["momentum"], self.components["decay"])

    @refuse_other_types
    def corrected(self, control: Vector) -> Step:
        """The step with what a step control added to it.

        Args:
            control: λu, per unit learning rate.

        Returns:
            A step with one more component.

        Raises:
            ValueError: If it is over other parameters, or the step is corrected already.
        """
        if "control" in self.components:
            raise ValueError("The step has a part of a control already.")
        return replace(
            self,
            direction=axpy(1.0, control, self.direction),
            components=self.components | {"control": control},
        )

    @property
    def loss_gradient(self) -> Vector:
        """∂loss before clipping, by its part −P ∂loss of v; 0 where a group's rate is 0."""
        parts: dict[str, Tensor] = {}
        for name, P in self.preconditioner.items():
            part = -self.components["gradient"][name] / P
            parts[name] = torch.where(P > 0, part, torch.zeros_like(part))
        return parts

    @refuse_other_types
    def require_batch(self, rollouts: Rollouts) -> None:
        """Refuse a batch that the step was not computed from.

        Args:
            rollouts: The update batch, whole and in the order it had.

        Raises:
            ValueError: If it is another.
        """
        if rollouts.fingerprint != self.batch:
            raise ValueError(
                f"The step is of another batch: it was computed from {len(self.token_weights)} "
                f"sequences, and the {len(rollouts)} given are not the same ones in the same "
                "order. Pass the U that optimizer_step was given."
            )


def compute_step(
    policy: Policy,
    rollouts: Rollouts,
    optimizer: OptimizerLike | OptimizerState,
    *,
    objective: str = "dr_grpo",
    max_response_length: int | None = None,
    max_grad_norm: float | None = None,
    clip_high: float | None = None,
    micro_batch: int | None = None,
) -> Step:
    """The direction in which the optimizer would move θ on an update batch, all settings given.

    Args:
        policy: The policy at θ.
        rollouts: The update batch U.
        optimizer: State before the step, which is not changed; as `load_optimizer_state` reads it
            where its rule or the names of its parameters have to be given.
        objective: One of `update.objective.OBJECTIVES`, "sft" or "recorded".
        max_response_length: L of "dr_grpo"; None for that of the rollouts.
        max_grad_norm: Largest gradient norm let through; None for no clipping.
        clip_high: ε_high of "cispo", the cap on its ratio; None for no cap.
        micro_batch: Responses per backward pass of "bnpo" and in 16 bits; None for one pass.

    Returns:
        The step.

    Raises:
        ValueError: If advantages are missing, an argument or the optimizer does not fit, or the
            gradient or the direction is not finite.
    """
    coefficients = token_weights(
        rollouts, objective, max_response_length, clip_high=clip_high, micro_batch=micro_batch
    )
    if isinstance(optimizer, OptimizerState):
        state = optimizer
    else:
        state = load_optimizer_state(policy, optimizer)
    of_entropies = entropy_weights(rollouts, objective)
    negative = None if of_entropies is None else -of_entropies
    loss_gradient = weighted_gradient(
        policy, rollouts, -coefficients, negative, micro_batch=micro_batch
    )
    size = norm(loss_gradient)
    clip = clip_factor(size, max_grad_norm)
    with mapped_blocks():  # the pieces of one parameter leave no room for those of the next
        components, preconditioner = follow_rule(policy, state, loss_gradient, clip)
        baseline = axpy(1.0, components["momentum"], components["decay"])
        direction = axpy(1.0, baseline, components["gradient"])
    policy.require_direction(direction)
    notes = list(state.warnings)
    if short_types(policy, state.types, {}):
        notes.append(SHORT_MOMENTS)
    if of_entropies is None and not bool(coefficients.any()):
        silent = rollouts.advantages is None or bool(rollouts.advantages.any())
        cause = "No token has a weight" if silent else "All advantages are zero"
        notes.append(f"{cause}: the step is momentum and decay alone.")
    if objective != RECORDED and rollouts.entropy_weights is not None:
        notes.append(
            f"The rollouts hold recorded entropy weights, which objective {objective!r} leaves "
            'out: the step has no entropy term; "recorded" has it.'
        )
    return Step(
        direction=direction,
        preconditioner=preconditioner,
        components=components,
        token_weights=coefficients,
        batch=rollouts.fingerprint,
        learning_rate=state.learning_rate,
        gradient_norm=size,
        clip_factor=clip,
        matched_by=state.matched_by,
        warnings=tuple(notes),
        entropy_weights=of_entropies,
    )


def clip_factor(size: float, max_grad_norm: float | None) -> float:
    """The factor by which torch.nn.utils.clip_grad_norm_ multiplies a gradient.

    Args:
        size: The norm of the gradient.
        max_grad_norm: Largest norm let through; None for no clipping.

    Returns:
        1 where it does not act.

    Raises:
        ValueError: If the norm is not finite, or the largest one is not positive.
    """
    if not math.isfinite(size):
        raise ValueError("The gradient of the objective is not finite: check weights and rewards.")
    if max_grad_norm is None:
        return 1.0
    if not max_grad_norm > 0:
        raise ValueError(
            f"max_grad_norm must be positive, got {max_grad_norm}; None means no clipping."
        )
    return min(1.0, max_grad_norm / (size + 1e-6))  # with torch's own 1e-6


def follow_rule(
    policy: Policy,
    state: OptimizerState,
    loss_gradient: Vector,
    clip: float = 1.0,
    preconditioning: Preconditioning = "this_step",
) -> tuple[dict[str, Vector], Vector]:
    """Components of v and P, from the optimizer's rule applied to each parameter.

    Args:
        policy: The policy at θ.
        state: The optimizer's state before the step.
        loss_gradient: Gradient of the loss.
        clip: What clipping multiplies it by.
        preconditioning: Which second moments P has.

    Returns:
        "momentum", "decay" and "gradient", which sum to v, and P; all float64.

    Raises:
        MissingStateError: If a parameter without a state, beside others with one, has a gradient.
    """
    follow = RULES[state.rule]
    components: dict[str, Vector] = {"momentum": {}, "decay": {}, "gradient": {}}
    preconditioner: Vector = {}
    state.require_still(loss_gradient)
    for name, theta in policy.theta.items():
        if name in state.untrained:
            for vector in (preconditioner, *components.values()):
                vector[name] = torch.zeros_like(loss_gradient[name])
            continue
        ratio = state.rate_ratio(name)
        moments = {
            key: x.to(theta.device) if isinstance(x, Tensor) else x
            for key, x in state.moments[name].items()
        }
        clipped = clip * loss_gradient[name]
        part = follow(theta.double(), clipped, moments, state.groups[name], preconditioning)
        # v is per unit of one η, so a group's own rate is a factor of its parts (T5)
        preconditioner[name] = ratio * clip * part.preconditioner
        components["momentum"][name] = ratio * part.momentum
        components["decay"][name] = ratio * part.decay
        components["gradient"][name] = -preconditioner[name] * loss_gradient[name]
    return components, preconditioner
