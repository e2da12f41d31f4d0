"""What a block of the kernel says: its structure, its spectrum, and its parts of δH₁.

U × U and F × U (fresh responses to U's prompts) have pairs of one prompt, whose parts of δH₁ are
given by class. E × U has none. Both E × U and F × U have singular values, clusters of the columns
that move the rows alike, and truncations.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from isentrope.attribution.fisher.block import block_truncations, singular_spectrum
from isentrope.attribution.fisher.clusters import Clustering, ClusterPart, cluster_sequences
from isentrope.attribution.fisher.kernel import fisher_kernel
from isentrope.attribution.fisher.pair_classes import kernel_form, own_pairs, pair_classes
from isentrope.attribution.fisher.square import SquareKernel, block_model, block_model_table
from isentrope.attribution.fisher.structure import NO_PAIR
from isentrope.attribution.fisher.truncation import Prediction, truncations
from isentrope.estimators.entropy_change import entropy_change
from isentrope.estimators.options import EstimatorOptions
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.scoring import score
from isentrope.results.attributions import (
    BlockRecord,
    KernelFormRecord,
)
from isentrope.verbs.influence import fresh_responses
from isentrope.verbs.prepare import Prepared

UNEQUAL = (
    "the step weights the tokens of a response unequally, or their entropies too, so responses "
    "have no weight each that the kernel could be multiplied with."
)

LAWS = {
    "U": {"own": "1/n", "same_prompt": "1/B - 1/n", "other_prompt": "1 - 1/B"},
    "F": {"own": "1/B", "same_prompt": "1/B", "other_prompt": "1 - 1/B"},
    "E": {"own": "1/D", "same_prompt": "1/D", "other_prompt": "1 - 1/D"},
}
"""How the share of each class in all pairs falls (`pair_classes`): rows U itself, on U's prompts
alone, and on D prompts."""


class Block:
    """A block of the kernel, and what it says.

    Attributes:
        K: The block.
        record: Of results.json.
        tables: Of its structure, and of its block model.
        warnings: What limits them.
    """

    def __init__(self, ready: Prepared, name: str) -> None:
        """Compute the block of E, U or fresh responses to U's prompts (F) by this name."""
        rows, columns = name
        batches = {"E": lambda: ready.E, "U": lambda: ready.U, "F": lambda: fresh_responses(ready)}
        self._ready = ready
        self._section = ready.config.fisher_kernel
        self._rows = batches[rows]()
        self._columns = None if columns == rows else batches[columns]()
        self._seed = ready.sampler.data.seed
        self._weights = weights_of_update(ready)
        P = ready.step.preconditioner if self._section.preconditioned else None
        K = self.K = fisher_kernel(
            ready.policy,
            self._rows,
            self._columns,
            preconditioner=P,
            gradients=ready.gradients,
            diagonals=True,
        )
        self.tables: dict[str, pd.DataFrame] = {}
        self.warnings: list[str] = []
        fields: dict[str, Any] = {"zero_rows": tuple(K.zero_rows)}
        if K.zero_rows:
            zero = f"{len(K.zero_rows)} responses have a zero row: no parameter moves them."
            self.warnings.append(zero)
        if K.rows["prompt"].nunique() < 2:
            self.warnings.append("There is one prompt only, so there is no structure.")
        else:
            fields |= self._describe_structure()
        if not K.symmetric and bool(K.matrix.any()):
            assert K.diagonals is not None
            fields["singular"] = singular_spectrum(K.matrix, K.pairs, K.diagonals, seed=self._seed)
        if (self._columns or self._rows) is ready.U:
            fields |= self._divide_by_pairs()
        self.record = BlockRecord(len(K.rows), len(K.columns), **fields)

    @cached_property
    def _logprobs(self) -> Tensor:
        """(n,) S of the rows, nats."""
        return score(self._ready.policy, self._rows).logprobs.sum(1)

    def truncations(self) -> dict[str, Prediction] | str:
        """How much of δH₁ on U each truncation predicts, self pairs left out; or why none does."""
        x = self._weights
        if x is None:
            return UNEQUAL
        if not bool(x.any()):
            return "no response has a weight in the step, which is momentum and decay alone."
        if self._rows.n_prompts < 3:
            return "U has fewer than three prompts, and errors are over prompts."
        return truncations(self.K.square, self._logprobs, x)

    def _describe_structure(self) -> dict[str, Any]:
        """Relations of the pairs; of a batch with itself also the spectrum and what fits it."""
        K = self.K
        section = self._section
        unscored = int(K.rows["reward"].isna().sum())
        rewarded = K.symmetric and not unscored
        if K.symmetric and 0 < unscored < len(K.rows):
            self.warnings.append(
                f"{unscored} of {len(K.rows)} responses have no reward, so there is no split by "
                "correct and incorrect ones."
            )
        structure = K.structure(section.right_above if rewarded else None)
        self.tables["structure"] = structure.to_frame()
        expected = () if K.symmetric else (NO_PAIR.format("same_prompt"),)
        self.warnings += [sentence for sentence in structure.warnings if sentence not in expected]
        fields: dict[str, Any] = {
            "structure": dict(structure.relations),
            "same_less_other_prompt": dict(structure.differences),
        }
        if K.symmetric:
            fitted = block_model(K.square, rank=min(section.rank, len(K.rows)))
            self.tables["block_model"] = block_model_table(fitted)
            fields |= {
                "block_model": fitted,
                "spectrum": K.spectrum(seed=self._seed),
                "clusters": self._find_clusters(K.square, len(K.rows) - len(K.zero_rows)),
            }
        return fields

    def _divide_by_pairs(self) -> dict[str, Any]:
        """What pairs with the responses of U do to entropy."""
        K = self.K
        x = self._weights
        if x is None:
            self.warnings.append(f"No part of δH₁ is given by pair: {UNEQUAL}")
            return {}
        if not bool(x.any()) or self._rows.n_prompts < 2:
            return {}
        law = "U"
        identical = torch.eye(len(x), dtype=torch.bool)
        fields: dict[str, Any] = {}
        same_prompt = K.pairs.same
        if self._columns is not None:
            fields = self._predict_change(x)
            law = "F" if bool(same_prompt.any(1).all()) else "E"
            responses = self._columns.response_ids
            identical = own_pairs(self._rows.response_ids, responses, same_prompt)
        if bool(same_prompt.any()):
            classes = pair_classes(K.matrix, self._logprobs, x, K.pairs, identical)
            fields["pair_classes"] = {
                name: replace(part, falls_as=LAWS[law][name]) for name, part in classes.items()
            }
        return fields

    def _predict_change(self, x: Tensor) -> dict[str, Any]:
        """δH₁ on the rows, what truncations predict of it, and what clusters of columns do."""
        ready = self._ready
        step = ready.step
        K = self.K
        S = self._logprobs
        direction = step.components["gradient"]
        if not self._section.preconditioned:
            direction = weighted_gradient(ready.policy, ready.U, step.token_weights)
        of_sequences = EstimatorOptions("sequence", confidence=ready.config.estimator.confidence)
        change = entropy_change(ready.policy, self._rows, direction, [], of_sequences, order=1)
        assert change.first_order is not None
        form = kernel_form(K.matrix, S, x, self._rows.prompt_index)
        fields: dict[str, Any] = {
            "delta_h": KernelFormRecord(form, change.first_order),
            "predictions": block_truncations(K.matrix, S, x, K.pairs),
        }
        gram = SquareKernel.of(K.matrix.T @ K.matrix, K.pairs.columns, rounding=K.rounding)
        if clusters := self._find_clusters(gram, int((K.matrix != 0).any(0).sum())):
            parts = tuple(self._divide_by_clusters(clusters, x))
            fields["clusters"] = replace(clusters, parts=parts)
        return fields

    def _find_clusters(self, gram: SquareKernel, limit: int) -> Clustering | None:
        """As many clusters as are asked for, at most `most`; None for fewer than three."""
        count = min(self._section.clusters or self._ready.U.n_prompts, limit)
        return None if count < 3 else cluster_sequences(gram, count=count)

    def _divide_by_clusters(self, clusters: Clustering, x: Tensor) -> Iterator[ClusterPart]:
        """What the columns of each cluster are rewarded with, and what they do."""
        matrix = self.K.matrix
        prompts = self._rows.prompt_index
        reward = torch.tensor(self.K.columns["reward"].to_numpy(dtype=float))
        for label in range(clusters.count):
            members = clusters.labels == label
            change = kernel_form(matrix[:, members], self._logprobs, x[members], prompts)
            mean = float(reward[members].nanmean())
            yield ClusterPart(int(members.sum()), mean, float(x[members].sum()), change)


def weights_of_update(ready: Prepared) -> Tensor | None:
    """(n,) w_i A_i where the tokens of a response share it and entropies have no weight."""
    if ready.step.entropy_weights is not None:
        return None
    weights = ready.step.token_weights
    x = weights.gather(1, weights.abs().argmax(1, keepdim=True))[:, 0]
    return x if torch.equal(weights, x[:, None] * ready.U.mask) else None
