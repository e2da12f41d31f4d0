"""What a block of the kernel says: its structure, its spectrum, and its parts of δH₁.

U × U and F × U (fresh responses to U's prompts) have pairs of one prompt, whose parts of δH₁ are
given by class. E × U has none. Both E × U and F × U have singular values, clusters of the columns
that move the rows alike, and truncations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from isentrope.attribution.fisher.block_model import block_model, block_model_table
from isentrope.attribution.fisher.block_truncation import block_truncations
from isentrope.attribution.fisher.clusters import Clustering, cluster_sequences
from isentrope.attribution.fisher.kernel import FisherKernel
from isentrope.attribution.fisher.pair_classes import kernel_form, own_pairs, pair_classes
from isentrope.attribution.fisher.singular import singular_spectrum
from isentrope.attribution.fisher.spectrum import Eigenvalues
from isentrope.attribution.fisher.square import SquareKernel
from isentrope.attribution.fisher.truncation import Prediction, truncations
from isentrope.attribution.gradients.sketch import sketched_kernel
from isentrope.estimators.entropy_change import entropy_change
from isentrope.estimators.functional import EstimatorOptions
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.saved import fields_of
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.scoring import score
from isentrope.results.kernel import (
    BlockRecord,
    ClusterRecord,
    ClustersRecord,
    KernelFormRecord,
    PairClassRecord,
    SketchRecord,
    SpectrumRecord,
)
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

Part = tuple[dict[str, Any], dict[str, pd.DataFrame], list[str]]
"""Fields of a block's record, tables, and what limits them."""

_SILENT = "no response has a weight in the step, which is momentum and decay alone."
_FEW = "U has fewer than three prompts, and errors are over prompts."


@dataclass(frozen=True)
class Block:
    """A block of the kernel, and the batches that it is of.

    Attributes:
        ready: The checkpoint.
        K: The block.
        rows: The batch of its rows.
        columns: That of its columns; None for the rows themselves.
    """

    ready: Prepared
    K: FisherKernel
    rows: Rollouts
    columns: Rollouts | None

    @cached_property
    def logprobs(self) -> Tensor:
        """(n,) S of the rows, nats."""
        return score(self.ready.policy, self.rows).logprobs.sum(1)

    @cached_property
    def weights(self) -> Tensor | None:
        """(m,) weights of U's responses in the step; None where they have none each."""
        return sequence_weights(self.ready)

    def describe(self) -> tuple[BlockRecord, dict[str, pd.DataFrame], list[str]]:
        """The block's record, tables, and what limits them."""
        fields: dict[str, Any] = {}
        tables: dict[str, pd.DataFrame] = {}
        warnings: list[str] = []
        for found, more, sentences in self._parts():
            fields |= found
            tables |= more
            warnings += sentences
        return BlockRecord(**fields), tables, warnings

    def truncations(self) -> dict[str, Prediction] | str:
        """How much of δH₁ on U each truncation predicts, self pairs left out; or why none does."""
        K, U, x = self.K, self.rows, self.weights
        if x is None:
            return UNEQUAL
        if not bool(x.any()):
            return _SILENT
        if U.n_prompts < 3:
            return _FEW
        return truncations(K.square, self.logprobs, x)

    def _parts(self) -> Iterator[Part]:
        K = self.K
        sizes = {"rows": len(K.rows), "columns": len(K.columns), "zero_rows": tuple(K.zero_rows)}
        zero = f"{len(K.zero_rows)} responses have a zero row: no parameter moves them."
        yield sizes, {}, [zero] if K.zero_rows else []
        if self.ready.kernel.sketch is not None:
            yield {"sketch": self._sketch(self.ready.kernel.sketch)}, {}, []
        if K.rows["prompt"].nunique() < 2:
            yield {}, {}, ["There is one prompt only, so there is no structure."]
        else:
            yield self._structure()
            if K.symmetric:
                yield self._spectrum()
        yield self._pairs()

    def _sketch(self, dimension: int) -> SketchRecord:
        ready = self.ready
        _, error = sketched_kernel(
            ready.policy,
            self.rows,
            self.columns,
            dimension,
            self.K.matrix,
            preconditioner=ready.step.preconditioner if ready.kernel.preconditioned else None,
            seed=ready.sampler.data.seed,
            backend=ready.gradients.backend,
        )
        return SketchRecord(dimension, error)

    def _structure(self) -> Part:
        K = self.K
        rewarded = K.symmetric and not K.rows["reward"].isna().any()
        structure = K.structure(self.ready.kernel.right_above if rewarded else None)
        fields = {
            "structure": dict(structure.relations),
            "same_less_other_prompt": dict(structure.differences),
        }
        usual = () if K.symmetric else ("same_prompt: no such pair.",)
        warnings = [sentence for sentence in structure.warnings if sentence not in usual]
        return fields, {"structure": structure.to_frame()}, warnings

    def _spectrum(self) -> Part:
        K = self.K
        spectrum = K.spectrum(seed=self.ready.sampler.data.seed)
        rank = min(self.ready.kernel.rank, len(K.rows))
        fitted = block_model(K.square, rank=rank)
        fields: dict[str, Any] = {
            "block_model": fitted,
            "spectrum": SpectrumRecord(
                **fields_of(Eigenvalues, spectrum),
                leading_carriers=tuple(spectrum.carriers(0)),
                norm_outliers=tuple(spectrum.norm_outliers()),
            ),
        }
        if count := self._cluster_count(len(K.rows) - len(K.zero_rows)):
            clusters = cluster_sequences(K.square, count=count)
            fields["clusters"] = ClustersRecord(**fields_of(Clustering, clusters))
        return fields, {"block_model": block_model_table(fitted)}, []

    def _pairs(self) -> Part:
        """Singular values, and where the columns are U's what pairs do to entropy."""
        K, x, columns = self.K, self.weights, self.columns or self.rows
        fields: dict[str, Any] = {}
        if not K.symmetric and bool(K.matrix.any()):
            seed = self.ready.sampler.data.seed
            fields["singular"] = singular_spectrum(K.matrix, *K.identities, K.diagonals, seed=seed)
        if columns is not self.ready.batches.U:
            return fields, {}, []
        if x is None:
            return fields, {}, [f"No part of δH₁ is given by pair: {UNEQUAL}"]
        if not bool(x.any()) or self.rows.n_prompts < 2:
            return fields, {}, []
        if not K.symmetric:
            fields |= self._of_two_batches(x)
        same = K.identities[0][:, None] == K.identities[1]
        if bool(same.any()):
            own = torch.eye(len(self.rows), dtype=torch.bool)
            if not K.symmetric:
                own = own_pairs(self.rows.response_ids, columns.response_ids, same)
            found = pair_classes(K.matrix, self.logprobs, x, *K.identities, own)
            fresh = set(K.identities[0].tolist()) <= set(K.identities[1].tolist())
            laws = LAWS["U" if K.symmetric else "F" if fresh else "E"]
            fields["pair_classes"] = {
                k: PairClassRecord(**vars(part), falls_as=laws[k]) for k, part in found.items()
            }
        return fields, {}, []

    def _of_two_batches(self, x: Tensor) -> dict[str, Any]:
        ready, K, S, step = self.ready, self.K, self.logprobs, self.ready.step
        direction = step.components["gradient"]
        if not ready.kernel.preconditioned:
            direction = weighted_gradient(ready.policy, ready.batches.U, step.token_weights)
        of_sequences = EstimatorOptions("per_sequence", confidence=ready.estimator.confidence)
        change = entropy_change(ready.policy, self.rows, direction, [], of_sequences, order=1)
        assert change.first_order is not None
        form = kernel_form(K.matrix, S, x, self.rows.prompt_index)
        fields: dict[str, Any] = {"delta_h": KernelFormRecord(form, change.first_order)}
        fields["predictions"] = block_truncations(K.matrix, S, x, *K.identities)
        pushed = int((K.matrix != 0).any(0).sum())
        if count := self._cluster_count(pushed):
            gram = SquareKernel.of(K.matrix.T @ K.matrix, K.identities[1], rounding=K.rounding)
            fields["clusters"] = self._with_parts(cluster_sequences(gram, count=count), x)
        return fields

    def _cluster_count(self, most: int) -> int:
        """As many clusters as are asked for, at most `most`; 0 for fewer than three."""
        count = min(self.ready.kernel.clusters or self.ready.batches.U.n_prompts, most)
        return 0 if count < 3 else count

    def _with_parts(self, clusters: Clustering, x: Tensor) -> ClustersRecord:
        """Clusters of the columns with what they are rewarded with, and what they do."""
        K, S = self.K, self.logprobs
        reward = torch.tensor(K.columns["reward"].to_numpy(dtype=float))
        parts = []
        for label in range(clusters.count):
            here = clusters.labels == label
            change = kernel_form(K.matrix[:, here], S, x[here], self.rows.prompt_index)
            mean = float(reward[here].mean())
            parts.append(ClusterRecord(int(here.sum()), mean, float(x[here].sum()), change))
        return ClustersRecord(**fields_of(Clustering, clusters), parts=tuple(parts))


def sequence_weights(ready: Prepared) -> Tensor | None:
    """(n,) w_i A_i where the tokens of a response share it and entropies have no weight."""
    if ready.step.entropy_weights is not None:
        return None
    weights = ready.step.token_weights
    x = weights.gather(1, weights.abs().argmax(1, keepdim=True))[:, 0]
    return x if torch.equal(weights, x[:, None] * ready.batches.U.mask) else None
