"""The budget of an attribution (T6): what momentum, decay and each sequence cause, with errors.

δH₁ = <g, momentum> + <g, decay> + Σ_i δH_i
"""

from __future__ import annotations

from torch import Tensor

from isentrope.attribution.influence.closure import require_agreement
from isentrope.attribution.influence.contributions import Attribution
from isentrope.attribution.influence.quantities import Quantity
from isentrope.nouns.estimate import Estimate
from isentrope.policy.language_model import Policy
from isentrope.update.step import Step


def attribute(
    policy: Policy,
    step: Step,
    quantity: Quantity,
    sequences: Tensor,
    tokens: Tensor | None,
    *,
    confidence: float,
    u_statistic: bool = False,
) -> Attribution:
    """The effect of each sequence on a quantity, and its budget.

    Args:
        policy: For its precision.
        step: The step, with its components.
        quantity: What changes.
        sequences: (G, n) by group of the quantity's prompts.
        tokens: (G, n, t) the same of tokens; None where they were not requested.
        confidence: Nominal coverage of the intervals.
        u_statistic: Whether the pairs of one prompt draw are omitted, in the total too.

    Returns:
        The attribution, whose parts sum to the total.
    """
    budget = _budget(quantity, step, sequences, confidence, u_statistic)
    attribution = Attribution(sequences, tokens, budget, quantity.gradient, quantity.unit)
    _require_closure(policy, attribution)
    return attribution


def _require_closure(policy: Policy, attribution: Attribution) -> None:
    """Momentum, decay and all sequences sum to the total."""
    parts = [attribution.budget["momentum"].value, attribution.budget["decay"].value]
    total = attribution.budget["total"].value
    require_agreement(
        policy,
        "The parts of the budget (momentum, decay, sequences) and its total",
        total + attribution.closure,
        total,
        sum(map(abs, parts)) + float(attribution.sequences.abs().sum()),
    )


def _budget(
    quantity: Quantity, step: Step, by_group: Tensor, confidence: float, u_statistic: bool
) -> dict[str, Estimate]:
    """By component; for a U-statistic the total omits own-prompt pairs too."""
    gradient = quantity.gradient
    momentum, decay, update = (
        gradient.along(step.components[name]) for name in ("momentum", "decay", "gradient")
    )
    columns = {
        "momentum": momentum,
        "decay": decay,
        "baseline": momentum + decay,
        "gradient": by_group.sum(1),
        "total": momentum + decay + (by_group.sum(1) if u_statistic else update),
    }
    return {name: part_of(quantity, x, confidence) for name, x in columns.items()}


def part_of(quantity: Quantity, by_group: Tensor, confidence: float) -> Estimate:
    """A part of a change with its error.

    Args:
        quantity: What changes.
        by_group: (G,) the part, by group of its prompts.
        confidence: Nominal coverage of the interval.

    Returns:
        The sum, per unit η.
    """
    groups, unit = quantity.gradient, quantity.unit
    return groups.estimate(by_group, quantity.prompts, unit=unit, confidence=confidence)
