"""Which past updates: the momentum part of δH₁, step by step and sequence by sequence (T6).

With g_k the clipped gradient of the loss k steps ago, at the θ_k of that step and on its batch,

    m = (1 − β₁) Σ_{k=1}^{K} β₁^{k−1} g_k + β₁^K m_K,     v_momentum = −(β₁/(1 − β₁)) (P/clip) m

so that, with P the preconditioner of THIS step and u = P g_H,

    <g_H, v_momentum> = Σ_k Σ_i δH_i^(k) + <g_H, v_before>
    δH_i^(k) = β₁^k (clip_k/clip) <u, Σ_j (c_ij ∂s_ij + d_ij ∂H_ij)(θ_k)>

and v_before the same of m_K, the moment that the earliest of those steps began with. For SGD with
momentum μ the same holds with μ for β₁ and without the factors 1 − β₁.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.attribution.gradients.groups import GradientGroups
from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.attribution.gradients.token_sum import TokenSum
from isentrope.attribution.influence.contributions import Attribution
from isentrope.attribution.influence.projection import on_sums
from isentrope.nouns.estimate import freedom_of_groups, t_quantile
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, multiply
from isentrope.policy.language_model import Policy
from isentrope.update.objective import RECORDED, entropy_weights, token_weights
from isentrope.update.optimizer_state import OptimizerState
from isentrope.update.step import Step

_MOMENT = {"adamw": "exp_avg", "adam": "exp_avg", "sgd": "momentum_buffer"}
"""What each rule calls m."""


@dataclass(frozen=True)
class Momentum:
    """How the momentum of a step is made of past gradients.

    Attributes:
        step: The step.
        rule: "adamw", "adam" or "sgd".
        decay: β₁ (or μ) of each parameter.
    """

    step: Step
    rule: str
    decay: dict[str, float]

    @classmethod
    def of(cls, step: Step, state: OptimizerState) -> Momentum:
        """The momentum of a step.

        Args:
            step: The step.
            state: The optimizer's state before it.

        Returns:
            Its decay by parameter.

        Raises:
            ValueError: If the rule's momentum is not a sum of past gradients under this step's P.
        """
        groups = state.groups.values()
        plain = state.rule in _MOMENT and not any(
            group.get("nesterov") or group.get("dampening") for group in groups
        )
        if not plain:
            raise ValueError(
                "analysis.momentum_steps unrolls the momentum of AdamW, Adam and SGD (without "
                f"Nesterov's rule and dampening), and this optimizer is {state.rule} otherwise: "
                "set it to 0."
            )
        name = "momentum" if state.rule == "sgd" else "betas"
        values = {n: group[name] for n, group in state.groups.items()}
        decay = {n: float(x[0] if isinstance(x, (list, tuple)) else x) for n, x in values.items()}
        return cls(step, state.rule, decay)

    def weight(self, back: int) -> float:
        """β₁^k, of the parameters that keep past gradients longest.

        Args:
            back: k.

        Returns:
            Between 0 and 1.
        """
        return max(self.decay.values()) ** back

    def directions(
        self, quantities: Sequence[GradientGroups], back: int, clip: float
    ) -> Iterator[Vector]:
        """What a past gradient is contracted with, part by part of each quantity's gradient.

        Args:
            quantities: Gradients by groups of prompts.
            back: k.
            clip: What clipping multiplied the gradient of that step by.

        Yields:
            β₁^k (clip_k/clip) P g, one vector per group and quantity.
        """
        scale = clip / self.step.clip_factor
        for groups in quantities:
            for u in groups.preconditioned(self.step.preconditioner):
                yield {n: scale * self.decay[n] ** back * x for n, x in u.items()}

    def before(self, moments: Mapping[str, Mapping[str, object]], back: int) -> Vector:
        """v_before: what of the step's momentum was there before the step k = `back`.

        Args:
            moments: State of the optimizer at that step, by parameter.
            back: k.

        Returns:
            A part of `step.components["momentum"]`.
        """
        key, out = _MOMENT[self.rule], {}
        for name, P in self.step.preconditioner.items():
            m, decay = moments[name].get(key), self.decay[name]
            held = m.to(P) if isinstance(m, Tensor) else torch.zeros_like(P)
            fresh = 1.0 if self.rule == "sgd" else 1 - decay
            out[name] = -(decay ** (back + 1)) / (fresh * self.step.clip_factor) * held
        return multiply(self.step.preconditioner, out)


def past_influence(
    policy: Policy,
    batch: Rollouts,
    directions: Iterator[Vector],
    gradients: GradientOptions = GradientOptions(),
) -> Tensor:
    """What each sequence of a past update contributes, by direction.

    Args:
        policy: The policy at the θ of that step.
        batch: Its update batch, with the token weights that training recorded.
        directions: What `Momentum.directions` yields.
        gradients: How the gradients of sequences are computed.

    Returns:
        (directions, n) per unit η.
    """
    sums = TokenSum(batch, token_weights(batch, RECORDED), entropy_weights(batch, RECORDED))
    return on_sums(policy, sums.as_trained(), directions, gradients)


@dataclass(frozen=True)
class PastUpdate:
    """What a past update contributes through momentum.

    Attributes:
        back: k, 1 for the last step.
        batch: Its update batch.
        by_group: (G, n) for each quantity, by group of the prompts that it is measured on.
    """

    back: int
    batch: Rollouts
    by_group: tuple[Tensor, ...]


@dataclass(frozen=True)
class Unrolled:
    """The momentum part of one quantity: <g, v_momentum> = Σ_k + before + rest, by group.

    Attributes:
        updates: (G,) of each past update.
        before: (G,) of what was there before the earliest; None where that is not known.
        rest: (G,) what is left: batches that are not recorded, and rounding.
    """

    updates: list[Tensor]
    before: Tensor | None
    rest: Tensor


def unroll(
    attribution: Attribution,
    step: Step,
    updates: Sequence[Tensor],
    before: Vector | None,
) -> Unrolled:
    """Split the momentum part of a quantity; the parts sum to it.

    Args:
        attribution: Of the quantity.
        step: The step.
        updates: (G, n) of each past update.
        before: v_before; None where it is not known.

    Returns:
        The parts.
    """
    groups = attribution.groups
    sums = [x.sum(1) for x in updates]
    earlier = None if before is None else groups.along(before)
    rest = groups.along(step.components["momentum"])
    for part in (*sums, *(() if earlier is None else (earlier,))):
        rest = rest - part
    return Unrolled(sums, earlier, rest)


def half_of(
    updates: Mapping[int, Tensor], whole: Tensor, groups: GradientGroups, confidence: float
) -> tuple[int, int, int | None] | None:
    """How many of the last updates make up half of the momentum part, as a signed sum.

    Args:
        updates: (G,) contribution of each past update, by k.
        whole: (G,) of the momentum part.
        groups: Of the gradient, for errors.
        confidence: Nominal coverage of the interval.

    Returns:
        The least k at which the sum reaches half of the whole, and its interval: the k at which it
        may, and the k at which it surely does (None if none is recorded). None where a batch up to
        there is not recorded, or the whole may be zero.
    """
    freedom = freedom_of_groups(groups.deviations(whole))
    sign, t = float(whole.sum().sign()), t_quantile(freedom, confidence)
    if not abs(float(whole.sum())) > t * float(groups.standard_error(whole)):
        return None
    rest, back = -whole / 2, 1
    low = middle = high = None
    while back in updates and high is None:
        rest = rest + updates[back]
        value, half = sign * float(rest.sum()), t * float(groups.standard_error(rest))
        low = back if low is None and value + half >= 0 else low
        middle = back if middle is None and value >= 0 else middle
        high = back if value - half >= 0 else None
        back += 1
    return None if low is None or middle is None else (middle, low, high)
