"""Influence: the part of δH₁ that each sequence and token of an update batch causes (T6).

    δH_ik = c_ik ∂_u s_ik + d_ik ∂_u H_ik,     δH_i = Σ_k δH_ik,     u = P g_H     per unit η
    δH₁ = <g_H, momentum> + <g_H, decay> + Σ_i δH_i

c and d are the step's token weights and, of a recorded entropy term, entropy weights (else 0).
One backward pass over E gives u; then one backward pass over U gives all sequences, or one
forward-mode pass all tokens. With g_J, the gradient of the expected reward, the same passes give
δJ_ik: the effect of each token on expected reward. g_H and g_J are computed by groups of prompts
(`gradients.groups`), which give the errors (with one degree of freedom less than groups) and the
reliability.

E and U must be independent draws. With one batch for both (T4c) the pairs of sequences of one
prompt draw are omitted: a response's advantage depends on the rewards of its whole group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from torch import Tensor

from isentrope.attribution.gradients.options import GradientOptions
from isentrope.attribution.influence.budget import attribute
from isentrope.attribution.influence.contributions import Attribution, Influence
from isentrope.attribution.influence.projection import (
    on_sequences,
    on_tokens,
    without_own_prompt,
)
from isentrope.attribution.influence.quantities import (
    InfluenceOptions,
    default_groups,
    quantities_of,
)
from isentrope.attribution.influence.reliability import listed_share, rank_correlation
from isentrope.estimators.functional import Functional, Method
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.policy.token_statistics import Scores
from isentrope.system.progress import Report, silent
from isentrope.update.step import Step

T = TypeVar("T")

Overlap = Literal["refuse", "independent", "u_statistic"]


def influence(
    policy: Policy,
    E: Rollouts,
    U: Rollouts,
    step: Step,
    *,
    functional: Functional = "per_token",
    method: Method = "prefix",
    tokens: bool = True,
    reward: Rollouts | None = None,
    groups: int | None = None,
    overlap: Overlap = "refuse",
    confidence: float = 0.95,
    gradients: GradientOptions = GradientOptions(),
    progress: Report = silent,
) -> Influence:
    """Attribute the first-order entropy change of a step to the sequences and tokens of U.

    Args:
        policy: The policy at the θ of the step.
        E: Unfiltered evaluation batch, drawn independently of U.
        U: The update batch of the step.
        step: What `optimizer_step` returned for U.
        functional: "per_token" (h) or "per_sequence" (ℋ).
        method: Estimator whose gradient is taken.
        tokens: Whether to attribute tokens (forward mode over U) or sequences only (backward).
        reward: Unfiltered batch with rewards, for δJ, other than U; None: E itself where it has
            rewards and is not U.
        groups: Groups of prompts for errors and reliability; 1 for values alone; None for
            `default_groups`.
        overlap: How to treat a sequence of U that is also in E: an error ("refuse"), chance
            ("independent": E was drawn afresh), or the same batch ("u_statistic").
        confidence: Nominal coverage of the intervals of the budget.
        gradients: How the gradients of sequences are computed and held.
        progress: Called before each pass.

    Returns:
        The influences, per unit η.

    Raises:
        ValueError: If the step is of another batch, E and U share sequences, tokens are requested
            of one batch in both roles, or the parts do not sum to the total.
    """
    options = InfluenceOptions(functional, method, groups, confidence, gradients)
    if overlap == "u_statistic":
        if E.fingerprint != U.fingerprint:
            raise ValueError("overlap='u_statistic' takes one batch in both roles: pass U as E.")
        if tokens:
            raise ValueError(
                "With one batch for both roles each sequence has its own direction, so there "
                "are no token values: pass tokens=False, or a fresh E."
            )
        return u_statistic_influence(policy, U, step, options, reward=reward, progress=progress)
    rewarded = E if reward is None and E.rewards is not None else reward
    if overlap == "refuse":
        step.require_batch(U)
        require_disjoint(E, U)
        if rewarded is not None:
            require_disjoint(rewarded, U)
    return independent_influence(
        policy, E, U, step, options, tokens=tokens, reward=rewarded, progress=progress
    )


def independent_influence(
    policy: Policy,
    E: Rollouts,
    U: Rollouts,
    step: Step,
    options: InfluenceOptions,
    *,
    tokens: bool = True,
    reward: Rollouts | None = None,
    progress: Report = silent,
) -> Influence:
    """Attribute a step on an E that was drawn independently of U; reward None: entropy alone."""
    step.require_batch(U)
    groups = default_groups(policy, E, tokens) if options.groups is None else options.groups
    quantities = quantities_of(policy, E, reward, step, groups, options, progress)
    u = (x for q in quantities for x in q.gradient.preconditioned(step.preconditioner))
    progress(len(quantities), len(quantities) + 1, "tokens of U" if tokens else "sequences of U")
    scores = by_token = None
    if tokens:
        scores, by_token = on_tokens(policy, U, step, u)
        by_sequence = by_token.sum(2)
    else:
        by_sequence = on_sequences(policy, U, step, u, options.gradients)
    parts = []
    for k, quantity in enumerate(quantities):
        here = slice(k * groups, (k + 1) * groups)
        table = None if by_token is None else by_token[here]
        confidence = options.confidence
        parts.append(
            attribute(policy, step, quantity, by_sequence[here], table, confidence=confidence)
        )
    how = _words(tokens, options, errors=groups > 1 and options.functional == "per_token")
    return _influence(U, step, parts, E.n_prompts, options, how, scores)


def u_statistic_influence(
    policy: Policy,
    U: Rollouts,
    step: Step,
    options: InfluenceOptions,
    *,
    reward: Rollouts | None = None,
    progress: Report = silent,
) -> Influence:
    """Attribute a step to its sequences on U itself, without the pairs of one prompt draw."""
    step.require_batch(U)
    if U.n_prompts < 2:
        raise ValueError(
            "The U-statistic omits the pairs of one prompt draw, and U has one prompt draw: give "
            "a batch of two or more."
        )
    groups = default_groups(policy, U, tokens=False) if options.groups is None else options.groups
    quantities = quantities_of(policy, U, reward, step, groups, options, progress)
    progress(len(quantities), len(quantities) + 1, "sequences of U")
    parts = []
    for quantity in quantities:
        gradient, gradients = quantity.gradient, options.gradients
        if quantity is quantities[0]:
            rows = without_own_prompt(policy, U, step, gradient, gradients)
        else:
            u = gradient.preconditioned(step.preconditioner)
            rows = on_sequences(policy, U, step, u, gradients)
        confidence = options.confidence
        parts.append(
            attribute(policy, step, quantity, rows, None, confidence=confidence, u_statistic=True)
        )
    how = "E x U inner products without pairs of one prompt draw (U-statistic)"
    return _influence(U, step, parts, U.n_prompts, options, how)


def _influence(
    U: Rollouts,
    step: Step,
    parts: list[Attribution],
    prompts: int,
    options: InfluenceOptions,
    how: str,
    scores: Scores | None = None,
) -> Influence:
    return Influence(
        entropy=parts[0],
        reward=parts[1] if len(parts) > 1 else None,
        U=U,
        scores=scores,
        coefficients=step.token_weights,
        entropy_coefficients=step.entropy_weights,
        functional=options.functional,
        how=how,
        reliability=_by_kind(parts[0], step.acting, lambda x: rank_correlation(x, prompts)),
        listed_share=_by_kind(parts[0], step.acting, listed_share),
    )


def require_disjoint(E: Rollouts, U: Rollouts) -> None:
    """Refuse two batches that share a sequence.

    Args:
        E: One batch.
        U: Another.

    Raises:
        ValueError: If a prompt with its response is in both.
    """
    if shared := len(_sequence_set(E) & _sequence_set(U)):
        raise ValueError(
            f"{shared} sequences are in both E and U, so E does not measure U's effect without "
            "bias: draw E on other prompts; or, if E was drawn separately on U's prompts and the "
            "equal responses are chance, set overlap='independent'; or, if E is U itself, set "
            "overlap='u_statistic', which omits each prompt's own pairs."
        )


def _sequence_set(rollouts: Rollouts) -> set[tuple[bytes, bytes]]:
    pairs = zip(rollouts.prompt_ids, rollouts.response_ids, strict=True)
    return {(p.numpy().tobytes(), r.numpy().tobytes()) for p, r in pairs}


def _words(tokens: bool, options: InfluenceOptions, *, errors: bool) -> str:
    """The passes run, in words; errors of h need the gradient of its denominator too."""
    over_E = "two backward passes over E" if errors else "one backward pass over E"
    if tokens:
        return f"{over_E}, forward mode over U"
    return f"{over_E}, per-sequence gradients over U ({options.gradients.backend})"


def _by_kind(
    attribution: Attribution, used: Tensor, statistic: Callable[[Tensor], T]
) -> dict[str, T]:
    """A statistic of the sequences and the tokens that the step uses, from (G, m) each."""
    values = {"sequences": statistic(attribution.by_group[:, used.any(1)])}
    if attribution.by_group_and_token is not None:
        values["tokens"] = statistic(attribution.by_group_and_token[:, used])
    return values
