"""Influence: the part of δH₁ that each sequence and token of an update batch causes (T6).

    δH_ik = c_ik ∂_u s_ik + d_ik ∂_u H_ik,     δH_i = Σ_k δH_ik,     u = P g_H     per unit η
    δH₁ = <g_H, momentum> + <g_H, decay> + Σ_i δH_i

c and d are the step's token weights and, of a recorded entropy term, entropy weights (else 0).
One backward pass over E gives u; then one backward pass over U gives all sequences, or one
forward-mode pass all tokens. With g_J, the gradient of the expected reward, the same passes give
δJ_ik: the effect of each token on expected reward. g_H and g_J are computed by groups of prompts
(`gradients.groups`), which give the errors (with one degree of freedom less than groups) and the
reliability.

The parts sum to <g_H, v> to rounding, or no number is reported (`gradients.closure`).

E and U must be independent draws. With one batch for both (T4c) the pairs of sequences of one
prompt draw are omitted: a response's advantage depends on the rewards of its whole group.
"""

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from isentrope.attribution.gradients.closure import require_agreement
from isentrope.attribution.gradients.groups import GradientGroups, gradients_by_group, of_reward
from isentrope.attribution.gradients.token_sum import step_functions
from isentrope.attribution.influence.contributions import Attribution, Influence, InfluenceOptions
from isentrope.attribution.influence.projection import on_sums, on_tokens, pairs_by_unit
from isentrope.attribution.influence.reliability import listed_share, rank_correlation
from isentrope.estimators.jackknife import Units
from isentrope.estimators.sample import score_batch
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.progress import ProgressCallback, silent
from isentrope.update.step import Step

TOKEN_GROUPS = 8
"""Default groups of prompts where tokens are attributed: each costs a forward pass."""

SEQUENCE_GROUPS = 32
"""Default groups of prompts where sequences alone are: they cost no pass."""

MAX_GROUP_BYTES = 4 * 2**30
"""Bytes of group gradients up to which sequences have more groups than tokens."""


@refuse_other_types
def influence(
    policy: Policy,
    E: Rollouts,
    U: Rollouts,
    step: Step,
    options: InfluenceOptions = InfluenceOptions(),
    *,
    tokens: bool = True,
    reward: Rollouts | None = None,
    progress: ProgressCallback = silent,
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
    quantities = list(_gradients(policy, E, reward, step, groups, options, progress))
    progress(len(quantities), len(quantities) + 1, "tokens of U" if tokens else "sequences of U")
    u = [q.preconditioned(step.preconditioner) for q in quantities]  # P g, lazily
    sums = step_functions(U, step)
    scores = by_token = None
    if tokens:
        scores, by_token = on_tokens(policy, U, step, chain(*u))  # (quantities · G, n, t)
        by_sequence = by_token.sum(2)
    elif one_batch:
        by_sequence = _on_other_prompts(policy, U, step, quantities[0], groups, options)
        if reward is not None:
            rows = on_sums(policy, sums, u[1], options.gradients)
            by_sequence = torch.cat((by_sequence, rows))
    else:
        by_sequence = on_sums(policy, sums, chain(*u), options.gradients)
    parts: list[Attribution] = []
    for k, quantity in enumerate(quantities):
        rows = slice(k * groups, (k + 1) * groups)
        table = None if by_token is None else by_token[rows]
        parts.append(_attribute(policy, step, quantity, by_sequence[rows], table, options))
    changes = {"sequences": parts[0].by_group[:, step.acting.any(1)]}  # (G, m) by kind
    if by_token is not None:
        changes["tokens"] = by_token[:groups, step.acting]
    return Influence(
        entropy=parts[0],
        reward=parts[1] if len(parts) > 1 else None,
        U=U,
        scores=scores,
        coefficients=step.token_weights,
        entropy_coefficients=step.entropy_weights,
        acting=step.acting,
        how=_words(tokens, groups, options),
        reliability={name: rank_correlation(x, E.n_prompts) for name, x in changes.items()},
        listed_share={name: listed_share(x) for name, x in changes.items()},
    )


def _require_one_batch(E: Rollouts, U: Rollouts, tokens: bool) -> None:
    refusals = {
        "overlap='u_statistic' takes one batch in both roles: pass U as E.": (
            E.fingerprint != U.fingerprint
        ),
        "With one batch for both roles each sequence has its own direction, so there are no token "
        "values: pass tokens=False, or a fresh E.": tokens,
        "The U-statistic omits the pairs of one prompt draw, and U has one prompt draw: give a "
        "batch of two or more.": U.n_prompts < 2,
    }
    for sentence, refused in refusals.items():
        if refused:
            raise ValueError(sentence)


def require_disjoint(E: Rollouts, U: Rollouts) -> None:
    """Refuse two batches that share a sequence.

    Args:
        E: One batch.
        U: Another.

    Raises:
        ValueError: If a prompt with its response is in both.
    """
    in_E, in_U = (
        {(p.numpy().tobytes(), r.numpy().tobytes()) for p, r in pairs}
        for pairs in (zip(x.prompt_ids, x.response_ids, strict=True) for x in (E, U))
    )
    if shared := len(in_E & in_U):
        raise ValueError(
            f"{shared} sequences are in both E and U, so E does not measure U's effect without "
            "bias: draw E on other prompts; or, if E was drawn separately on U's prompts and the "
            "equal responses are chance, set overlap='independent'; or, if E is U itself, set "
            "overlap='u_statistic', which omits each prompt's own pairs."
        )


def default_groups(policy: Policy, E: Rollouts, tokens: bool) -> int:
    """The default number of groups of prompts.

    Args:
        policy: Whose parameters a group's gradient has.
        E: The evaluation batch.
        tokens: Whether tokens are attributed, which costs a pass for each group.

    Returns:
        8 for tokens. 32 for sequences, fewer where their gradients would take more than 4 GiB. At
        most the number of prompt draws.
    """
    groups = TOKEN_GROUPS
    if not tokens:
        parameters = sum(p.numel() for p in policy.theta.values())
        groups = max(groups, min(SEQUENCE_GROUPS, MAX_GROUP_BYTES // (8 * parameters)))
    return min(groups, E.n_prompts)


def _gradients(
    policy: Policy,
    E: Rollouts,
    reward: Rollouts | None,
    step: Step,
    groups: int,
    options: InfluenceOptions,
    progress: ProgressCallback,
) -> Iterator[GradientGroups]:
    """The gradient of the entropy of E, then that of the expected reward where it is given."""
    where = options.gradients.storage.where
    of_E = reward is E
    passes = 2 + (reward is not None and not of_E)
    progress(0, passes, "gradient of the entropy" + " and of the reward" * of_E)
    sample = score_batch(policy, E, options)
    samples = [sample, of_reward(sample, E.rewards)] if of_E else [sample]
    yield from gradients_by_group(policy, E, samples, groups, where, direction=step.direction)
    if reward is not None and not of_E:
        progress(1, passes, "gradient of the reward")
        sample = of_reward(score_batch(policy, reward), reward.rewards)
        yield from gradients_by_group(policy, reward, [sample], groups, where)


def _on_other_prompts(
    policy: Policy,
    U: Rollouts,
    step: Step,
    entropy: GradientGroups,
    groups: int,
    options: InfluenceOptions,
) -> Tensor:
    """The effect of each sequence (G, n) on the entropy of U's other prompt draws (T4c)."""
    differs = U.prompt_index[:, None] != U.prompt_index
    weights = differs.double() * len(U) / differs.sum(0)
    batch = (U, entropy.sample)
    units = Units(entropy.group, groups)
    sums = step_functions(U, step)
    return pairs_by_unit(policy, batch, sums, step, units, weights[None], options.gradients)[0]


def _attribute(
    policy: Policy,
    step: Step,
    gradient: GradientGroups,
    sequences: Tensor,
    tokens: Tensor | None,
    options: InfluenceOptions,
) -> Attribution:
    """The effect of each sequence (G, n) and token (G, n, t) on a quantity; parts sum to it."""
    by_gradient = sequences.sum(1)
    momentum, decay, update = (
        gradient.along(step.components[name]) for name in ("momentum", "decay", "gradient")
    )
    columns = {  # (G,) each; of a U-statistic the total too omits the pairs of one prompt draw
        "momentum": momentum,
        "decay": decay,
        "baseline": momentum + decay,
        "gradient": by_gradient,
        "total": momentum + decay + (by_gradient if options.overlap == "u_statistic" else update),
    }
    budget = {name: gradient.estimate(x, options.confidence) for name, x in columns.items()}
    parts = [budget[name].value for name in ("momentum", "decay", "gradient")]
    rounding = require_agreement(
        policy,
        "The parts of the budget (momentum, decay, sequences) and its total",
        sum(parts),
        budget["total"].value,
        sum(map(abs, parts[:2])) + float(sequences.sum(0).abs().sum()),
    )
    return Attribution(sequences, tokens, budget, gradient, rounding)


def _words(tokens: bool, groups: int, options: InfluenceOptions) -> str:
    """The passes run, in words; errors of h need the gradient of its denominator too."""
    if options.overlap == "u_statistic":
        return "E x U inner products without pairs of one prompt draw (U-statistic)"
    errors = groups > 1 and options.functional == "per_token"
    over_E = "two backward passes over E" if errors else "one backward pass over E"
    if tokens:
        return f"{over_E}, forward mode over U"
    return f"{over_E}, per-sequence gradients over U ({options.gradients.backend})"
