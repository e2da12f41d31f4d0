"""The structure of a Fisher kernel by relation of its sequences (T7), with errors over prompts.

    K_ij = Σ_α P_α ∂_αS(t_i) ∂_αS(t_j),     cos_ij = K_ij / √(K_ii K_jj)

The pairs of a kernel fall into relations: a sequence with itself (diagonal), with another response
to the same prompt draw (same_prompt), with a response to another prompt (cross_prompt). The mean of
a relation is a U-statistic over prompts, a ratio of sums over pairs; its error is the delete-one-
prompt jackknife of `prompt_pairs`. Where the true mean is zero and stays zero given either sequence
(a degenerate U-statistic), this SE is too large, by up to √2, and not too small on average.

Whether responses to one prompt are more alike than others is one number, the difference of the two
relations, jackknifed as one statistic, because the two relations share their prompts' errors.
A sequence with K_ii = 0 has no cosine: it is omitted from cosines, counted and reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isentrope.attribution.fisher.prompt_pairs import (
    KERNEL_UNIT,
    PromptPairs,
    cosines,
    estimate_table,
)
from isentrope.attribution.fisher.square import SquareKernel
from isentrope.nouns.estimate import Estimate

DIFFERENCE = "same_prompt - cross_prompt"
"""Name of the differences in tables."""

NO_PAIR = "{}: no such pair."
"""What is said of a relation that no two responses have."""

_UNITS = {
    "mean": KERNEL_UNIT,
    "spread": KERNEL_UNIT,
    "mean_cosine": "cosine",
    "rms_cosine": "rms cosine",
}
"""By quantity of a relation."""

_OF_DIFFERENCES = {
    "mean": KERNEL_UNIT,
    "mean_cosine": "difference of cosines",
    "rms_cosine": "difference of rms cosines",
}
"""By quantity of a difference."""


@dataclass(frozen=True)
class Relation:
    """The pairs of one relation.

    Attributes:
        entries: Number of entries of K that it is the mean of; both K_ij and K_ji, except that in
            right/wrong the row is the correct one.
        mean: Mean of K_ij over them.
        spread: Standard deviation of K_ij over them.
        mean_cosine: Mean of cos_ij; None where no cosine is known.
        rms_cosine: √ of the mean of cos_ij²; None where no cosine is known.
    """

    entries: int
    mean: Estimate
    spread: Estimate
    mean_cosine: Estimate | None = None
    rms_cosine: Estimate | None = None


@dataclass(frozen=True)
class KernelStructure:
    """A kernel's relations.

    Attributes:
        relations: By name: "diagonal", "same_prompt", "cross_prompt", and where it is known which
            responses are correct, "same_prompt right/right" and so on. One without a pair is
            absent.
        warnings: What was omitted, and why.
        differences: same_prompt minus cross_prompt, of "mean", "mean_cosine" and "rms_cosine";
            without those that one of the two lacks.
    """

    relations: Mapping[str, Relation]
    warnings: tuple[str, ...]
    differences: Mapping[str, Estimate]

    def __getitem__(self, name: str) -> Relation:
        return self.relations[name]

    def to_frame(self) -> Any:
        """A pandas table, one row per relation and quantity.

        Returns:
            Columns relation, quantity, entries, value, se, ci_low, ci_high, prompts. The relation
            "same_prompt - cross_prompt" holds the differences.
        """
        of_relations = [
            ({"relation": name, "quantity": quantity, "entries": r.entries}, getattr(r, quantity))
            for name, r in self.relations.items()
            for quantity in _UNITS
        ]
        of_differences = [
            ({"relation": DIFFERENCE, "quantity": quantity, "entries": 0}, estimate)
            for quantity, estimate in self.differences.items()
        ]
        return estimate_table([*of_relations, *of_differences])


def kernel_structure(kernel: SquareKernel, right: Tensor | None = None) -> KernelStructure:
    """Means, spreads and cosines of a square kernel by relation.

    Args:
        kernel: K of one batch with itself.
        right: (n,) bool, whether a response is correct; splits same_prompt and cross_prompt
            further.

    Returns:
        The structure.
    """
    masks = dict(kernel.masks)
    if right is not None:
        wrong = ~right
        kinds = {
            "right/right": torch.outer(right, right),
            "right/wrong": torch.outer(right, wrong),
            "wrong/wrong": torch.outer(wrong, wrong),
        }
        for name in ("same_prompt", "cross_prompt"):
            masks |= {f"{name} {kind}": masks[name] & mask for kind, mask in kinds.items()}
    return _structure(kernel.matrix, kernel.pairs, masks, (kernel.diagonal, kernel.diagonal))


def cross_structure(
    matrix: Tensor, pairs: PromptPairs, diagonals: tuple[Tensor, Tensor] | None = None
) -> KernelStructure:
    """Means and spreads of a rectangular block, such as E × U, for same and other prompts.

    Args:
        matrix: (n, m) K of a batch with another one.
        pairs: Rows and columns by prompt; see `shared_identities`.
        diagonals: (n,) K_ii of the rows and (m,) K_jj of the columns, for cosines.

    Returns:
        The structure; "same_prompt" is absent where the sides share no prompt.
    """
    masks = {"same_prompt": pairs.same, "cross_prompt": ~pairs.same}
    return _structure(matrix, pairs, masks, diagonals)


def _structure(
    matrix: Tensor,
    pairs: PromptPairs,
    masks: Mapping[str, Tensor],
    norms: tuple[Tensor, Tensor] | None,
) -> KernelStructure:
    cosine = torch.full_like(matrix, torch.nan)
    warnings = [NO_PAIR.format(name) for name, mask in masks.items() if not bool(mask.any())]
    if norms is not None:
        cosine = cosines(matrix, *norms)
        if zeros := max(int((x <= 0).sum()) for x in norms):
            warnings.append(
                f"{zeros} sequences have a zero score vector (K_ii = 0), hence no cosine: they "
                "are omitted from all cosines and kept in means and spreads."
            )
    relations: dict[str, Relation] = {}
    statistics: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}  # (1 + P,) and (n, m) its pairs
    for name, mask in masks.items():
        quantities = statistics[name] = {}
        if not bool(mask.any()):
            continue
        mean = pairs.means(matrix, mask)
        square = pairs.means(matrix.square(), mask)
        quantities["mean"] = mean, mask
        quantities["spread"] = (square - mean.square()).clamp_min(0).sqrt(), mask
        if bool((with_cosine := mask & cosine.isfinite()).any()):
            quantities["mean_cosine"] = pairs.means(cosine, with_cosine), with_cosine
            quantities["rms_cosine"] = (
                pairs.means(cosine.square(), with_cosine).clamp_min(0).sqrt(),
                with_cosine,
            )
        estimates = {q: pairs.estimate(*x, _UNITS[q]) for q, x in quantities.items()}
        relations[name] = Relation(int(mask.sum()), **estimates)
    same_prompt = statistics["same_prompt"]
    cross_prompt = statistics["cross_prompt"]
    differences = {
        q: pairs.estimate(
            same_prompt[q][0] - cross_prompt[q][0], same_prompt[q][1] | cross_prompt[q][1], unit
        )
        for q, unit in _OF_DIFFERENCES.items()
        if q in same_prompt and q in cross_prompt
    }
    return KernelStructure(relations, tuple(warnings), differences)
