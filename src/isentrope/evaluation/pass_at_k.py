"""pass@k, the probability that one of k responses to a prompt is correct.

    pass@k = E_p[ 1 − C(n−c, k)/C(n, k) ]          n responses to the prompt, c of them correct

It is unbiased for each prompt (Chen et al. 2021, arXiv 2107.03374): the share of k-subsets of the n
responses that contain a correct one. Prompts are the units of the error, and the interval is that
of `bounded_mean`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from isentrope.estimators.means import bounded_mean
from isentrope.nouns.estimate import Estimate


def pass_at_k(
    n: int | Sequence[int] | Tensor,
    c: int | Sequence[int] | Tensor,
    k: int,
    *,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate pass@k from counts.

    Args:
        n: Responses to each prompt: one number for all, or one per prompt.
        c: Correct ones among them, one number per prompt.
        k: Tries; at most the fewest responses of a prompt.
        confidence: Nominal coverage of the interval.

    Returns:
        pass@k over the prompts; with one prompt there is no interval.

    Raises:
        ValueError: If k is below 1 or above n, or c is not in 0..n.
    """
    correct = torch.as_tensor(c).reshape(-1)
    drawn = torch.as_tensor(n).reshape(-1).expand(len(correct))
    if correct.is_floating_point() or drawn.is_floating_point():
        raise ValueError("n and c are counts: give whole numbers.")
    if bool(((correct < 0) | (correct > drawn)).any()):
        raise ValueError("c counts correct responses among n, so it must lie between 0 and n.")
    if not 1 <= k <= int(drawn.min()):
        raise ValueError(
            f"pass@{k} needs at least {k} responses to every prompt, and one has {int(drawn.min())}"
            ": draw more, or choose a smaller k (1 or more)."
        )
    return bounded_mean(prompt_scores(drawn, correct, k), f"pass@{k}", confidence=confidence)


def prompt_scores(n: Tensor, c: Tensor, k: int) -> Tensor:
    """1 − C(n−c, k)/C(n, k) of every prompt.

    Args:
        n: (P,) responses.
        c: (P,) correct ones.
        k: Tries, at most every n.

    Returns:
        (P,) float64.
    """
    tries = torch.arange(k, dtype=torch.float64)
    incorrect = (n - c)[:, None].double()
    drawn = n[:, None].double()
    return 1 - ((incorrect - tries).clamp_min(0) / (drawn - tries)).prod(1)
