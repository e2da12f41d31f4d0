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

from collections.abc import Callable
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor

from isentrope.attribution.gradients.token_sum import step_functions
from isentrope.attribution.influence.contributions import Attribution, Influence
from isentrope.attribution.influence.projection import (
    on_sums,
    on_tokens,
    without_own_prompt,
)
from isentrope.attribution.influence.quantities import (
    InfluenceOptions,
    attribute,
    default_groups,
    quantities_of,
)
from isentrope.attribution.influence.reliability import listed_share, rank_correlation
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.system.progress import Report, silent
from isentrope.update.step import Step

T = TypeVar("T")


def influence(
    policy: Policy,
    E: Rollouts,
    U: Rollouts,
    step: Step,
    options: InfluenceOptions = InfluenceOptions(),
    *,
    tokens: bool = True,
    reward: Rollouts | None = None,
    progress: Report = silent,
) -> Influence:
    """Attribute the first-order entropy change of a step to the sequences and tokens of U.

    Args:
        policy: The policy at the θ of the step.
        E: Unfiltered evaluation batch, drawn independently of U.
        U: The update batch of the step.
        step: What `optimizer_step` returned for U.
        options: Of which entropy, with what errors, and how overlap of E and U is treated.
        tokens: Whether to attribute tokens (forward mode over U) or sequences only (backward).
        reward: Unfiltered batch with rewards, for δJ, other than U; None: E itself where it has
            rewards and is not U.
        progress: Called before each pass.

    Returns:
        The influences, per unit η.

    Raises:
        ValueError: If the step is of another batch, E and U share sequences, tokens are requested
            of one batch in both roles, or the parts do not sum to the total.
    """
    one_batch = options.overlap == "u_statistic"
    if one_batch:
        _require_one_batch(E, U, tokens)
    elif reward is None and E.rewards is not None:
        reward = E
    step.require_batch(U)
    if options.overlap == "refuse":
        for batch in (E, *(() if reward is None else (reward,))):
            require_disjoint(batch, U)
    groups = default_groups(policy, E, tokens) if options.groups is None else options.groups
    quantities = quantities_of(policy, E, reward, step, groups, options, progress)
    progress(len(quantities), len(quantities) + 1, "tokens of U" if tokens else "sequences of U")
    u = [q.preconditioned(step.preconditioner) for q in quantities]  # P g, lazily
    scores = by_token = None  # (quantities · G, n, t)
    if one_batch:
        by_sequence = without_own_prompt(policy, U, step, quantities[0], options.gradients)
        for of_reward in u[1:]:
            rows = on_sums(policy, step_functions(U, step), of_reward, options.gradients)
            by_sequence = torch.cat((by_sequence, rows))
    elif tokens:
        scores, by_token = on_tokens(policy, U, step, chain(*u))
        by_sequence = by_token.sum(2)
    else:
        sums = step_functions(U, step)
        by_sequence = on_sums(policy, sums, chain(*u), options.gradients)
    parts: list[Attribution] = []
    for k, quantity in enumerate(quantities):
        here = slice(k * groups, (k + 1) * groups)
        table = None if by_token is None else by_token[here]
        parts.append(attribute(policy, step, quantity, by_sequence[here], table, options))
    return Influence(
        entropy=parts[0],
        reward=parts[1] if len(parts) > 1 else None,
        U=U,
        scores=scores,
        coefficients=step.token_weights,
        entropy_coefficients=step.entropy_weights,
        functional=options.functional,
        how=_words(tokens, groups, options),
        reliability=_by_kind(parts[0], step.acting, lambda x: rank_correlation(x, E.n_prompts)),
        listed_share=_by_kind(parts[0], step.acting, listed_share),
    )


def _require_one_batch(E: Rollouts, U: Rollouts, tokens: bool) -> None:
    if E.fingerprint != U.fingerprint:
        raise ValueError("overlap='u_statistic' takes one batch in both roles: pass U as E.")
    if tokens:
        raise ValueError(
            "With one batch for both roles each sequence has its own direction, so there are no "
            "token values: pass tokens=False, or a fresh E."
        )
    if U.n_prompts < 2:
        raise ValueError(
            "The U-statistic omits the pairs of one prompt draw, and U has one prompt draw: give "
            "a batch of two or more."
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


def _words(tokens: bool, groups: int, options: InfluenceOptions) -> str:
    """The passes run, in words; errors of h need the gradient of its denominator too."""
    if options.overlap == "u_statistic":
        return "E x U inner products without pairs of one prompt draw (U-statistic)"
    errors = groups > 1 and options.functional == "per_token"
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
