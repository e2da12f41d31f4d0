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

import torch
from torch import Tensor

from isentrope._deprecated import renamed_arguments
from isentrope.attribution.gradients.gram import gram
from isentrope.attribution.gradients.groups import GradientGroups, entropy_groups, reward_groups
from isentrope.attribution.gradients.sequence_gradients import GradientBackend, SequenceGradients
from isentrope.attribution.gradients.token_sum import TokenSum, step_functions
from isentrope.attribution.influence.closure import require_agreement
from isentrope.attribution.influence.contributions import Attribution, Influence
from isentrope.attribution.influence.reliability import listed_share, rank_correlation
from isentrope.estimate import Estimate
from isentrope.estimators.functional import UNITS, Functional, Method
from isentrope.policy.language_model import Policy
from isentrope.policy.padding import DerivativeOfTraining
from isentrope.policy.slopes import logprob_jvp, score_jvp
from isentrope.policy.token_statistics import Scores
from isentrope.progress import Report, silent
from isentrope.rollouts import Rollouts
from isentrope.update.step import Step
from isentrope.vectors import Vector

T = TypeVar("T")

Overlap = Literal["refuse", "independent", "u_statistic"]

DIRECTIONS_AT_ONCE = 4
"""Directions of one forward-mode pass: each takes the memory of an evaluation."""

TOKEN_GROUPS, SEQUENCE_GROUPS = 8, 32
"""Default groups of prompts; each costs a forward pass for tokens, none for sequences."""

MAX_GROUP_BYTES = 4 * 2**30
"""Bytes of group gradients up to which sequences have more groups than tokens."""


@renamed_arguments(passes="gradient_backend")
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
    gradient_backend: GradientBackend = "hooks",
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
        gradient_backend: "hooks", or "loop" for layers that hooks do not support.
        progress: Called before each pass.

    Returns:
        The influences, per unit η.

    Raises:
        ValueError: If the step is of another batch, E and U share sequences, tokens are requested
            of one batch in both roles, or the parts do not sum to the total.
    """
    step.require_batch(U)
    if overlap == "u_statistic":
        if E.fingerprint != U.fingerprint or U.n_prompts < 2:
            raise ValueError(
                "overlap='u_statistic' takes one batch in both roles: pass U as E too, with two "
                "prompt draws or more."
            )
        if tokens:
            raise ValueError(
                "With one batch for both roles each sequence has its own direction, so there "
                "are no token values: pass tokens=False, or a fresh E."
            )
    elif overlap == "refuse":
        require_disjoint(E, U)
    own = E if E.rewards is not None and overlap != "u_statistic" else None
    rewarded = reward if reward is not None else own
    if rewarded is not None and overlap == "refuse":
        require_disjoint(rewarded, U)
    if groups is None:
        groups = default_groups(policy, E, tokens)
    passes_made = 2 if rewarded is None else 3
    progress(0, passes_made, "gradient of the entropy")
    v = step.direction
    of_entropy = entropy_groups(
        policy, E, groups, functional=functional, method=method, direction=v
    )
    _require_forward_mode(policy, of_entropy, v)
    sources = [(of_entropy, f"{UNITS[functional]} per η")]
    if rewarded is not None:
        progress(1, passes_made, "gradient of the reward")
        sources.append((reward_groups(policy, rewarded, groups), "reward per η"))
    u = [direction for g, _ in sources for direction in g.preconditioned(step.preconditioner)]
    progress(passes_made - 1, passes_made, "tokens of U" if tokens else "sequences of U")
    scores, by_token = _tokens(policy, U, step, u) if tokens else (None, None)
    by_sequence = (
        by_token.sum(2)
        if by_token is not None
        else _sequences(policy, U, step, u, gradient_backend)
    )
    attributions = []
    for k, (gradient, unit) in enumerate(sources):
        here = slice(k * groups, (k + 1) * groups)
        rows = by_sequence[here]
        if overlap == "u_statistic" and k == 0:
            rows = _without_own_prompt(policy, U, step, gradient, gradient_backend)
        table = None if by_token is None else by_token[here]
        prompts = (E if k == 0 or rewarded is None else rewarded).n_prompts
        own_left_out = overlap == "u_statistic"
        budget = _budget(gradient, step, rows, unit, confidence, own_left_out, prompts)
        attributions.append(Attribution(rows, table, budget, gradient, unit))
        _require_closure(policy, attributions[-1])
    return Influence(
        entropy=attributions[0],
        reward=attributions[1] if len(attributions) > 1 else None,
        U=U,
        scores=scores,
        coefficients=step.token_weights,
        entropy_coefficients=step.entropy_weights,
        functional=functional,
        how=_words(
            tokens, overlap, gradient_backend, errors=groups > 1 and functional == "per_token"
        ),
        reliability=_by_kind(
            attributions[0],
            step.acting,
            lambda by_group: rank_correlation(by_group, E.n_prompts),
        ),
        listed_share=_by_kind(attributions[0], step.acting, listed_share),
    )


def _require_forward_mode(policy: Policy, gradient: GradientGroups, direction: Vector) -> None:
    """<g_H, v> is the derivative along v that forward mode gives."""
    assert gradient.forward is not None
    by_group = gradient.along(direction)
    require_agreement(
        policy,
        "δH₁ by reverse mode (<g_H, v>) and by forward mode, on the same E,",
        float(by_group.sum()),
        gradient.forward,
        float(by_group.abs().sum()),
    )


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
    most = TOKEN_GROUPS
    if not tokens:
        parameters = sum(p.numel() for p in policy.theta.values())
        most = max(most, min(SEQUENCE_GROUPS, MAX_GROUP_BYTES // (8 * parameters)))
    return min(most, E.n_prompts)


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


def _words(tokens: bool, overlap: Overlap, gradient_backend: GradientBackend, errors: bool) -> str:
    """The passes run, in words; errors of h need the gradient of its denominator too."""
    if overlap == "u_statistic":
        return "E x U inner products without pairs of one prompt draw (U-statistic)"
    over_E = "two backward passes over E" if errors else "one backward pass over E"
    if tokens:
        return f"{over_E}, forward mode over U"
    return f"{over_E}, per-sequence gradients over U ({gradient_backend})"


def _tokens(
    policy: Policy, U: Rollouts, step: Step, directions: list[Vector]
) -> tuple[Scores, Tensor]:
    """c_ik ∂_u s_ik + d_ik ∂_u H_ik for every direction, (directions, n, t)."""
    projections: list[Tensor] = []
    scores = None
    for start in range(0, len(directions), DIRECTIONS_AT_ONCE):
        some = directions[start : start + DIRECTIONS_AT_ONCE]
        with DerivativeOfTraining():  # U's tokens, differentiated as in the step
            if step.entropy_weights is None:
                scores, slopes = logprob_jvp(policy, U, some)
                projections += [step.token_weights * slope for slope in slopes]
            else:
                c, d = step.token_weights, step.entropy_weights
                scores, both = score_jvp(policy, U, some)
                projections += [c * slope.logprobs + d * slope.entropies for slope in both]
    assert scores is not None
    return scores, torch.stack(projections)


def _sequences(
    policy: Policy,
    U: Rollouts,
    step: Step,
    directions: list[Vector],
    gradient_backend: GradientBackend,
) -> Tensor:
    """<u, Σ_k (c_ik ∂s_ik + d_ik ∂H_ik)> for every direction, (directions, n)."""
    out = torch.zeros(len(U), len(directions), dtype=torch.float64, device=policy.device)
    stacked = {
        n: torch.stack([u[n].flatten() for u in directions]).to(p) for n, p in policy.theta.items()
    }

    def project(name: str, rows: Tensor, gradients: Tensor) -> None:
        out.index_add_(0, rows, (gradients.flatten(1) @ stacked[name].T).double())

    update = step_functions(U, step)
    SequenceGradients(policy, gradient_backend).visit(update, project)
    return out.T.cpu()


def _without_own_prompt(
    policy: Policy,
    U: Rollouts,
    step: Step,
    gradient: GradientGroups,
    gradient_backend: GradientBackend,
) -> Tensor:
    """(G, n) Σ_{i not of j's prompt draw} M_ij n/(n − n_p), by group of i."""
    a, b = gradient.logprob_weights, gradient.entropy_weights
    left = TokenSum(U, a, b)
    right = step_functions(U, step)
    pairs = gram(policy, left, right, step.preconditioner, gradient_backend=gradient_backend)
    own = U.prompt_index[:, None] == U.prompt_index
    pairs = pairs.masked_fill(own, 0.0) * len(U) / (~own).sum(0)
    out = torch.zeros(len(gradient.parts), len(U), dtype=torch.float64)
    return out.index_add_(0, gradient.group, pairs)


def _budget(
    gradient: GradientGroups,
    step: Step,
    by_group: Tensor,
    unit: str,
    confidence: float,
    u_statistic: bool,
    prompts: int,
) -> dict[str, Estimate]:
    """By component; for a U-statistic the total omits own-prompt pairs too."""
    trust = gradient.trust
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
    return {
        name: Estimate.from_standard_error(
            float(x.sum()),
            float(gradient.standard_error(x)),
            prompts,
            unit=unit,
            method="delete-a-group jackknife",
            confidence=confidence,
            warnings=() if trust is None else trust.warnings,
            trusted=trust is None or trust.verdict == "trust",
            degrees_of_freedom=len(x) - 1,
        )
        for name, x in columns.items()
    }


def _by_kind(
    attribution: Attribution, used: Tensor, statistic: Callable[[Tensor], T]
) -> dict[str, T]:
    """A statistic of the sequences and the tokens that the step uses, from (G, m) each."""
    values = {"sequences": statistic(attribution.by_group[:, used.any(1)])}
    if attribution.by_group_and_token is not None:
        values["tokens"] = statistic(attribution.by_group_and_token[:, used])
    return values
