"""Weight of each sequence in an on-policy policy-gradient objective (T5).

    J = Σ_i w_i A_i S(t_i),     loss = −J

    dr_grpo   w_i = 1/(n L)        constant length normaliser L
    grpo      w_i = 1/(n T_i)      mean over the tokens of a response, then over responses
    rloo      w_i = 1/n            sum over the tokens of a response, mean over responses
    dapo      w_i = 1/Σ_j T_j      mean over all tokens of the batch
    dr_grpo_longest  w_i = 1/(n L_g)   L_g: the longest response to the same prompt draw
    bnpo      w_i = 1/(m Σ_b T_j)  mean over the tokens of a micro-batch b, then over all m
    cispo     w_i = c/Σ_j T_j      c = min(1, ε_high): the ratio is capped, as a weight
    sapo      as grpo              its gate 4σ(τ(r − 1))/τ has slope 1 at r = 1, for every τ
    luspo     as rloo              each response's loss times its length, mean over responses
    vespo     as dapo              its weight e^λ r^k e^{−λr} is 1 at r = 1
    sft       w_i = 1/Σ_j T_j      cross-entropy of given responses: A_i = 1
    recorded  any c_ik and d_ik, token by token: what training itself recorded
              (`Rollouts.token_weights`, `Rollouts.entropy_weights`), J = Σ_ik c_ik s_ik + d_ik H_ik

n is the number of responses (prompts × group). On-policy the importance ratio r is 1 and its
clipping never acts, so ∂J is the gradient that the first update on a batch takes. That holds for
ratios per token and per sequence alike. What the objectives do to the advantage A_i (a baseline, a
division by the standard deviation) is already in `Rollouts.advantages`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from difflib import get_close_matches

import torch
from torch import Tensor

from isentrope.nouns.choices import OBJECTIVES, RECORDED, SFT
from isentrope.nouns.rollouts import Rollouts


def token_weights(
    rollouts: Rollouts,
    objective: str = "dr_grpo",
    max_response_length: int | None = None,
    *,
    clip_high: float | None = None,
    micro_batch: int | None = None,
) -> Tensor:
    """The coefficient c_ik of each token's log-probability in ∂J = Σ_ik c_ik ∂s_ik.

    Args:
        rollouts: n sequences, the whole batch of the step, with advantages (or, for "recorded",
            with the weights that training recorded; "sft" needs neither).
        objective: One of `OBJECTIVES`, then c_ik = w_i A_i; "sft", then c_ik = w_i; or "recorded".
        max_response_length: As for `sequence_weights`.
        clip_high: As for `sequence_weights`.
        micro_batch: As for `sequence_weights`.

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
    weights = sequence_weights(
        rollouts, objective, max_response_length, clip_high=clip_high, micro_batch=micro_batch
    )
    if objective == SFT:
        return weights[:, None] * mask
    if rollouts.advantages is None:
        raise ValueError(
            "The rollouts have no advantages: compute them from rewards first, or set "
            "rollouts.with_columns(advantages=...)."
        )
    return (weights * rollouts.advantages)[:, None] * mask


def entropy_weights(rollouts: Rollouts, objective: str = "dr_grpo") -> Tensor | None:
    """The coefficient d_ik of each token's entropy in ∂J = Σ_ik (c_ik ∂s_ik + d_ik ∂H_ik).

    Args:
        rollouts: n sequences, the whole batch of the step.
        objective: As for `token_weights`; only "recorded" has entropy weights.

    Returns:
        (n, t) float64, 0 where there is no token; None where all are 0.
    """
    if objective != RECORDED or rollouts.entropy_weights is None:
        return None
    weights = rollouts.padded("entropy_weights")
    return weights if bool(weights.any()) else None


def sequence_weights(
    rollouts: Rollouts,
    objective: str = "dr_grpo",
    max_response_length: int | None = None,
    *,
    clip_high: float | None = None,
    micro_batch: int | None = None,
) -> Tensor:
    """The weight w_i of each sequence in J = Σ_i w_i A_i S(t_i).

    Args:
        rollouts: n sequences, the whole batch of the step.
        objective: One of `OBJECTIVES`, or "sft".
        max_response_length: L in tokens, the constant normaliser of "dr_grpo", by default the
            rollouts' own `max_new_tokens`; the other objectives have no such constant.
        clip_high: ε_high of "cispo", the cap on its ratio; None for no cap.
        micro_batch: Responses per backward pass of "bnpo", in the order of the rollouts; None for
            one pass over all. A multiple of it is needed.

    Returns:
        (n,) float64.

    Raises:
        ValueError: If the objective is unknown, L is missing or not positive where needed, or the
            number of rollouts is not a multiple of the micro-batch.
    """
    n = len(rollouts)
    lengths = rollouts.token_counts.double()
    match objective:
        case "dr_grpo":
            length = rollouts.max_new_tokens if max_response_length is None else max_response_length
            if length is None or length <= 0:
                raise ValueError(
                    "The objective 'dr_grpo' divides by a constant length L > 0: pass "
                    "max_response_length (in tokens, the value that training used) where the "
                    f"rollouts do not record where their sampler cut responses; got {length}."
                )
            # one constant: the sum over tokens keeps its length, which a mean would divide out
            return torch.full_like(lengths, 1 / (n * length))
        case "dr_grpo_longest":
            groups, index = rollouts.prompt_index.unique(return_inverse=True)
            longest = torch.zeros(len(groups), dtype=torch.float64)
            longest.scatter_reduce_(0, index, lengths, "amax")
            return 1 / (n * longest[index])
        case "grpo" | "sapo":
            return 1 / (n * lengths)  # a mean over the tokens of each response, then over all
        case "rloo" | "luspo":
            return torch.full_like(lengths, 1 / n)
        case "dapo" | "vespo" | "sft":
            return torch.full_like(lengths, 1 / float(lengths.sum()))  # a mean over all tokens
        case "cispo":
            # the ratio of an on-policy batch is 1, which a cap below 1 cuts
            cap = 1.0 if clip_high is None else min(1.0, clip_high)
            return torch.full_like(lengths, cap / float(lengths.sum()))
        case "bnpo":
            size = micro_batch or n
            if n % size:
                raise ValueError(
                    f"The objective 'bnpo' averages over micro-batches of {size} responses, and "
                    f"{n} responses are not a multiple of that: give whole micro-batches in "
                    "training's order, or another micro_batch."
                )
            tokens = lengths.view(-1, size).sum(1)  # of each micro-batch, with a mean of its own
            return 1 / (len(tokens) * tokens.repeat_interleave(size))
        case _:
            nearest = get_close_matches(str(objective).lower(), OBJECTIVES, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"Unknown objective {objective!r}: the nearest is {nearest!r}; "
                f"choose one of {', '.join((*OBJECTIVES, SFT, RECORDED))}."
            )
