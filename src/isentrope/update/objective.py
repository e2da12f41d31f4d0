"""Weight of each sequence in an on-policy policy-gradient objective (T5).

    J = Σ_i w_i A_i S(t_i),     loss = −J

    dr_grpo   w_i = 1/(n L)        constant length normaliser L
    grpo      w_i = 1/(n T_i)      mean over the tokens of a response, then over responses
    rloo      w_i = 1/n            sum over the tokens of a response, mean over responses
    dapo      w_i = 1/Σ_j T_j      mean over all tokens of the batch
    dr_grpo_longest  w_i = 1/(n L_g)   L_g: the longest response to the same prompt draw
    recorded  any w_ik, token by token: what training itself recorded (`Rollouts.token_weights`)

n is the number of responses (prompts × group). On-policy the importance ratio is 1 and its
clipping never acts, so ∂J is the gradient that the first update on a batch takes. What the
objectives say of the advantage A_i (a baseline, a division by the standard deviation) is in
`Rollouts.advantages` already.
"""

from __future__ import annotations

from difflib import get_close_matches

import torch
from torch import Tensor

from isentrope.rollouts import Rollouts

OBJECTIVES = ("dr_grpo", "dr_grpo_longest", "grpo", "rloo", "dapo")
RECORDED = "recorded"


def token_weights(
    rollouts: Rollouts, objective: str = "dr_grpo", max_response_length: int | None = None
) -> Tensor:
    """The coefficient c_ik of each token's log-probability in ∂J = Σ_ik c_ik ∂s_ik.

    Args:
        rollouts: n sequences, the whole batch of the step, with advantages (or, for "recorded",
            with the weights that training recorded).
        objective: One of `OBJECTIVES`, then c_ik = w_i A_i, or "recorded".
        max_response_length: As for `sequence_weights`.

    Returns:
        (n, t) float64, 0 where there is no token.

    Raises:
        ValueError: If advantages, or recorded weights, are missing.
    """
    mask = rollouts.mask
    if objective == RECORDED:
        if rollouts.token_weights is None:
            raise ValueError(
                'objective="recorded" needs rollouts with the token weights of a training run: '
                "load next_update/rollouts.parquet of one of its checkpoints."
            )
        return rollouts.padded("token_weights")
    if rollouts.advantages is None:
        raise ValueError(
            "The rollouts have no advantages: compute them from rewards first, or set "
            "rollouts.with_columns(advantages=...)."
        )
    weights = sequence_weights(rollouts, objective, max_response_length) * rollouts.advantages
    return weights[:, None] * mask


def sequence_weights(
    rollouts: Rollouts, objective: str = "dr_grpo", max_response_length: int | None = None
) -> Tensor:
    """The weight w_i of each sequence in J = Σ_i w_i A_i S(t_i).

    Args:
        rollouts: n sequences, the whole batch of the step.
        objective: One of `OBJECTIVES`.
        max_response_length: L in tokens, the constant normaliser of "dr_grpo", by default the
            rollouts' own `max_new_tokens`; the other objectives have no such constant.

    Returns:
        (n,) float64.

    Raises:
        ValueError: If the objective is unknown, or L is missing or not positive where needed.
    """
    n = len(rollouts)
    lengths = rollouts.token_counts.double()
    match objective:
        case "dr_grpo":
            known = rollouts.max_new_tokens if max_response_length is None else max_response_length
            return torch.full_like(lengths, 1 / (n * _normaliser(known)))
        case "dr_grpo_longest":
            groups, index = rollouts.prompt_index.unique(return_inverse=True)
            longest = torch.zeros(len(groups), dtype=torch.float64)
            longest.scatter_reduce_(0, index, lengths, "amax")
            return 1 / (n * longest[index])
        case "grpo":
            return 1 / (n * lengths)
        case "rloo":
            return torch.full_like(lengths, 1 / n)
        case "dapo":
            return torch.full_like(lengths, 1 / float(lengths.sum()))
    nearest = get_close_matches(str(objective).lower(), OBJECTIVES, n=1, cutoff=0.0)[0]
    raise ValueError(
        f"Unknown objective {objective!r}: the nearest is {nearest!r}; "
        f"choose one of {', '.join((*OBJECTIVES, RECORDED))}."
    )


def _normaliser(max_response_length: int | None) -> int:
    if max_response_length is None:
        raise ValueError(
            "The objective 'dr_grpo' divides by a constant length L, and the rollouts do not say "
            "where their sampler cut responses: pass max_response_length "
            "(in tokens, the value that training used)."
        )
    if max_response_length <= 0:
        raise ValueError(f"max_response_length must be positive, got {max_response_length}.")
    return max_response_length
