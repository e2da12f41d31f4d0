"""Classes of tokens and sequences: which cost entropy, and does the published criterion find them?

    δH_class = Σ_{ik in class} δH_ik,     share = δH_class / Σ_ik δH_ik          (T6), (T9)
    fall     = Σ_{ik in class} min(δH_ik, 0) / Σ_ik min(δH_ik, 0)

A token that acts in the step is unlikely or likely (s_ik), rewarded or punished (the sign of its
weight c_ik; "entropy term" where c_ik = 0), and at a position of high or low entropy (H_ik). The
2 % of the acting tokens with the lowest s_ik are unlikely, and the fifth with the highest H_ik is
of high entropy (that of arXiv 2506.01939); tokens tied with the last one are in. On a sharp policy
a larger share of "unlikely" tokens has probabilities near 1. Sequences are rewarded or punished,
long or short, and surprising or expected (mean surprisal per token), both split at the median.

The published criterion (Cui et al. 2025, arXiv 2505.22617) selects the tokens with the largest
(s − s̄)(A − Ā). A uniformly random choice of k of n tokens has k/n of the fall on average, with the
variance of sampling without replacement,

    Var = k (1 − k/n) S²,     S² the variance of min(δH_ik, 0) over the n tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isentrope.attribution.influence.class_sums import ClassPart, ClassSums
from isentrope.attribution.influence.contributions import Influence
from isentrope.attribution.mid_ranks import WeightedRanks, lowest, tied
from isentrope.attribution.proxies.proxies import token_covariance
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import Absent

HIGH_ENTROPY = 0.2
"""Share of the tokens that is of high entropy."""

BY_GROUP = "sequences_by_group"
"""The key of classes that are groups of prompts."""

CRITERION_SHARES = (0.0002, 0.02, 0.2)
"""Shares of the tokens that the criterion is asked for."""


@dataclass(frozen=True)
class CriterionPart:
    """The tokens that the published criterion selects, and what it leaves.

    Attributes:
        selected: The k tokens of largest (s − s̄)(A − Ā).
        random_share: k/n, the share of the fall that a random choice of k tokens has on average.
        random_spread: Standard deviation of that share over random choices.
        missed_class: The class whose tokens cost most entropy among those that it leaves.
        missed: Those tokens; None where no class of them lowers entropy. It is the lowest of
            several classes, so its intervals are those that hold for all of them at once.
    """

    selected: ClassPart
    random_share: float
    random_spread: float
    missed_class: Absent[str] = None
    missed: Absent[ClassPart] = None


@dataclass(frozen=True)
class Classes:
    """A partition of the tokens, or the sequences, that act in a step.

    Attributes:
        parts: By name, such as "unlikely, punished, high entropy"; a class without members is
            absent.
        thresholds: By the name of a threshold, in nats (s, H, surprisal) or tokens (length).
        gradient: δH of all of them.
        baseline: δH of momentum and decay, which are in no class.
        criterion: By the share of the tokens that is selected; empty for sequences, and where the
            batch has no advantages.
    """

    parts: dict[str, ClassPart]
    thresholds: dict[str, float]
    gradient: Estimate
    baseline: Estimate
    criterion: dict[float, CriterionPart]

    @property
    def earlier(self) -> float:
        """The part of δH₁ that momentum and decay are; NaN where it has another sign."""
        a = self.baseline.value
        b = self.gradient.value
        return a / (a + b) if a * b > 0 else math.nan


def token_classes(
    influence: Influence,
    *,
    share: float = 0.02,
    criterion: Sequence[float] = CRITERION_SHARES,
    confidence: float = 0.95,
) -> Classes:
    """The acting tokens of a step by likelihood, sign of weight and entropy.

    Args:
        influence: The influence, of tokens.
        share: Share of the tokens that is unlikely.
        criterion: Shares of the tokens that the published criterion selects.
        confidence: Nominal coverage of the intervals.

    Returns:
        The classes.

    Raises:
        ValueError: If tokens were not attributed, or none acts.
    """
    acting = _acting(influence)
    scores = influence.scores
    if scores is None:
        raise ValueError("Tokens were not attributed: call influence with tokens=True.")
    s = scores.logprobs[acting]
    H = scores.entropies[acting]
    c = influence.coefficients[acting]
    unlikely = lowest(s, share)
    high = lowest(-H, HIGH_ENTROPY)
    entropies = np.where(high, "high entropy", "low entropy")
    names = _joined(np.where(unlikely, "unlikely", "likely"), _signs(c), entropies)
    thresholds = {"s of unlikely": float(s[unlikely].max())}
    thresholds["H of high entropy"] = float(H[high].min())
    sums = ClassSums(influence, acting, confidence)
    classes = _classes(sums, influence, names, thresholds)
    if influence.U.advantages is not None:
        cov = token_covariance(scores.logprobs, scores.mask, influence.U.advantages)[acting]
        classes.criterion.update({q: _criterion(sums, cov, names, q) for q in criterion})
    return classes


def sequence_classes(influence: Influence, *, confidence: float = 0.95) -> Classes:
    """The acting sequences of a step by sign of weight, length, and surprisal where it is known.

    Args:
        influence: The influence.
        confidence: Nominal coverage of the intervals.

    Returns:
        The classes.

    Raises:
        ValueError: If no sequence acts.
    """
    acting = _acting(influence).any(1)
    weights = influence.coefficients[acting]
    length = influence.U.token_counts[acting].double()
    thresholds = {"length of long": float(length.quantile(0.5))}
    long = np.where(length > thresholds["length of long"], "long", "short")
    words = [_signs(weights.sum(1)), long]
    if influence.scores is not None:
        surprisal = -influence.scores.logprobs.sum(1)[acting] / length
        thresholds["surprisal of surprising"] = float(surprisal.quantile(0.5))
        order = torch.from_numpy(tied(surprisal.numpy()))
        above = order > order.double().quantile(0.5)
        words.append(np.where(above, "surprising", "expected"))
    sums = ClassSums(influence, acting, confidence)
    return _classes(sums, influence, _joined(*words), thresholds)


def group_classes(
    influence: Influence, groups: Sequence[str], *, confidence: float = 0.95
) -> Classes:
    """The acting sequences of a step by the group of their prompts.

    Args:
        influence: The influence.
        groups: Name of each sequence's group.
        confidence: Nominal coverage of the intervals.

    Returns:
        One class per group.
    """
    acting = _acting(influence).any(1)
    names = np.array(groups)[acting.numpy()]
    return _classes(ClassSums(influence, acting, confidence), influence, names, {})


def _acting(influence: Influence) -> Tensor:
    if not bool(influence.acting.any()):
        raise ValueError("No token has a weight in the step, so there are no classes.")
    return influence.acting


def _signs(weights: Tensor) -> np.ndarray:
    words = np.array(["punished", "entropy term", "rewarded"])
    return words[weights.sign().long() + 1]


def _joined(*words: np.ndarray) -> np.ndarray:
    return np.array([", ".join(row) for row in zip(*words, strict=True)])


def _classes(
    sums: ClassSums, influence: Influence, names: np.ndarray, thresholds: dict[str, float]
) -> Classes:
    """The sums of the members of each name."""
    parts = {str(name): sums.part(names == name) for name in np.unique(names)}
    budget = influence.entropy.budget
    return Classes(parts, thresholds, budget["gradient"], budget["baseline"], {})


def _criterion(sums: ClassSums, change: Tensor, names: np.ndarray, q: float) -> CriterionPart:
    """The tokens of most negative predicted change, at least one; ties by equal parts."""
    n = len(change)
    k = float(max(1, round(q * n)))
    falls = sums.falls
    total = float(falls.sum())
    spread = math.nan  # of the share over random choices
    if n > 1 and total:
        spread = math.sqrt(k * (1 - k / n) * float(falls.var())) / abs(total)
    _, (selected,) = WeightedRanks(change.double().numpy()).under(np.ones(n), [k])
    unselected = 1 - selected
    unselected_of = {
        str(name): np.where(names == name, unselected, 0.0) for name in np.unique(names)
    }
    classes = sum(bool(members.any()) for members in unselected_of.values())
    parts = {name: sums.part(members, classes) for name, members in unselected_of.items()}
    name = min(parts, key=lambda x: parts[x].delta_h.value)
    missed = (name, parts[name]) if parts[name].delta_h.value < 0 else (None, None)
    return CriterionPart(sums.part(selected), k / n, spread, *missed)
