"""QAE: the baseline is a quantile of the group's rewards instead of their mean.

    A'_i = R_i − Q_K(rewards of the group),     c'_ik = w_i ((1 − x) A_i + x A'_i)

Q_K is the least reward r such that a share K of the group's rewards or more is ≤ r. With rewards of
0 and 1, hard prompts (pass rate ≤ 1 − K) contribute through their correct responses alone, easy
ones through their incorrect ones. Source: junkangwu/QAE (arXiv 2509.22611); K = .4, or .6 where
entropy collapses.

Different here: A' is not divided by the group's standard deviation.
"""

from math import ceil

import torch

from isentrope.control.base import Part, Share, TokenRule, mixed, options


@options
class QuantileAdvantage(TokenRule):
    """Replace the baseline of the advantages.

    Attributes:
        strength: x, the weight of these advantages against the batch's own.
        quantile: K.
    """

    strength: Share = 1.0
    quantile: Part = 0.4

    def apply(self, tokens, strength):
        """Replace the baseline."""
        baseline = torch.zeros_like(tokens.rewards)
        for group in tokens.group.unique():
            here = tokens.group == group
            rewards = tokens.rewards[here].sort().values
            baseline[here] = rewards[ceil(self.quantile * len(rewards) - 1e-9) - 1]
        return mixed(tokens, tokens.rewards - baseline, strength)
