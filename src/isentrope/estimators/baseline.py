"""Control variates b_ik for the doubly-robust estimator: a ridge regression, cross-fitted (T2c).

b_ik predicts, from the prompt and t_<k only, the entropy still to come beyond the mean that the
prefix estimator already subtracts at each position:

    y_ik = Σ_{j>k} ( m_ij x_ij − mean_i' m_i'j x_i'j ),      x = H for ℋ,   x = H − h for h

One regression is pooled over all positions, weighted by H_ik (a token without entropy has no
score to be multiplied with), and fitted on the other folds: folds are of prompt draws, so b is
independent of the sample it is used on and the estimator stays unbiased.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import torch
from torch import Tensor

from isentrope.estimators.jackknife import Units

RIDGE = 0.01
"""Penalty on standardised features, relative to the total weight of the tokens."""

FOLDS = 4
"""Folds of prompt draws, fewer where there are fewer draws."""


def cross_fitted_baseline(
    entropies: Tensor,
    tokens: Tensor,
    prompt_index: Tensor,
    functional: str,
    *,
    features: Tensor | None = None,
) -> Tensor:
    """Predict the entropy still to come at every token, each fold from the others.

    Args:
        entropies: (n, t) H at θ in nats, 0 where there is no token.
        tokens: (n, t) mask as float64.
        prompt_index: (n,) prompt draw of each sequence.
        functional: "per_sequence" or "per_token".
        features: (n, t, k) hidden-state features of the prefix t_<k, or None.

    Returns:
        b, (n, t) nats, 0 where there is no token.

    Raises:
        ValueError: If there are fewer than two prompt draws.
    """
    units = Units.of(prompt_index)
    if units.count < 2:
        raise ValueError("Cross-fitting needs at least two prompt draws; there is one.")
    fold = units.place % min(FOLDS, units.count)
    # known before token k: position, running entropy, H_k itself, hidden state
    n, t = entropies.shape
    position = torch.linspace(0, 1, t, dtype=torch.float64).expand(n, t)
    total = entropies.cumsum(1) - entropies
    running = total / torch.arange(t, dtype=torch.float64).clamp_min(1)
    inputs = torch.stack((position, position**2, total, running, entropies), dim=2)
    if features is not None:
        inputs = torch.cat((inputs, features), dim=2)  # (n, t, 5 + k)
    baseline = torch.zeros_like(entropies)
    for k in range(int(fold.max()) + 1):
        train = fold != k
        test = fold == k
        target = _subtract_means_and_sum_later(entropies[train], tokens[train], functional)
        weights = (entropies * tokens)[train].flatten()
        features_of_others = inputs[train].flatten(0, 1)
        prediction = _predict_by_ridge(features_of_others, target.flatten(), weights, inputs[test])
        baseline[test] = prediction * tokens[test]
    return baseline


def _subtract_means_and_sum_later(entropies: Tensor, tokens: Tensor, functional: str) -> Tensor:
    """y, (n, t): the entropy still to come, beyond the mean of each position."""
    x = entropies * tokens
    if functional == "per_token":
        x = x - tokens * (x.sum() / tokens.sum())
    x = x - x.mean(0)
    return x.sum(1, keepdim=True) - x.cumsum(1)


def _predict_by_ridge(
    inputs: Tensor, target: Tensor, weights: Tensor, new_inputs: Tensor
) -> Tensor:
    """Fit inputs → target by weighted ridge regression, and predict at new inputs."""
    weights = weights / weights.sum().clamp_min(1e-300)
    centre = weights @ inputs
    mean = weights @ target
    spread = (weights @ (inputs - centre).square()).sqrt().clamp_min(1e-12)
    x = (inputs - centre) / spread
    weighted = (x * weights[:, None]).T
    penalty = RIDGE * torch.eye(x.shape[1], dtype=x.dtype)
    slope = torch.linalg.solve(weighted @ x + penalty, weighted @ (target - mean))
    return mean + ((new_inputs - centre) / spread) @ slope
