"""What a block of the kernel says: its structure, its spectrum, and its parts of δH₁.

U × U and F × U (fresh responses to U's prompts) have pairs of one prompt, whose parts of δH₁ are
given by class. E × U has none. Both E × U and F × U have singular values, clusters of the columns
that move the rows alike, and truncations.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from isentrope.attribution.fisher.block import block_truncations, singular_spectrum
from isentrope.attribution.fisher.clusters import Clustering, ClusterPart, cluster_sequences
from isentrope.attribution.fisher.kernel import fisher_kernel
from isentrope.attribution.fisher.pair_classes import kernel_form, own_pairs, pair_classes
from isentrope.attribution.fisher.square import SquareKernel, block_model, block_model_table
from isentrope.attribution.fisher.truncation import Prediction, truncations
from isentrope.attribution.gradients.sketch import sketched_kernel
from isentrope.estimators.entropy_change import entropy_change
from isentrope.estimators.functional import EstimatorOptions
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.scoring import score
from isentrope.results.kernel import (
    BlockRecord,
    KernelFormRecord,
    SketchRecord,
)
from isentrope.verbs.influence import fresh_responses
from isentrope.verbs.prepare import Prepared

UNEQUAL = (
    "the step weights the tokens of a response unequally, or their entropies too, so responses "
    "have no weight each that the kernel could be multiplied with."
)

CLASSES = ("own", "same_prompt", "other_prompt")
LAWS = {
    "U": ("1/n", "1/B - 1/n", "1 - 1/B"),
    "F": ("1/B", "1/B", "1 - 1/B"),
    "E": ("1/D", "1/D", "1 - 1/D"),
}
"""How the share of each class in all pairs falls (`pair_classes`): rows U itself, on U's prompts
alone, and on D prompts."""


class Block:
    """A block of the kernel, and the batches that it is of.

    Attributes:
        K: The block.
        tables: Of its structure, and of its block model.
        warnings: What limits them.
    """

    def __init__(self, ready: Prepared, name: str) -> None:
        """Compute the block of E, U or fresh responses to U's prompts (F) by this name."""
        self._ready = ready
        rows, columns = name
        drawn = {"E": lambda: ready.E, "U": lambda: ready.U, "F": lambda: fresh_responses(ready)}
        self._rows = drawn[rows]()
        self._columns = None if columns == rows else drawn[columns]()
        self._P = ready.step.preconditioner if ready.kernel.preconditioned else None
        self.K = fisher_kernel(
            ready.policy,
            self._rows,
            self._columns,
            preconditioner=self._P,
            gradients=ready.gradients,
            diagonals=True,
            folder=tiles_of(ready),
        )
        self._weights = sequence_weights(ready)
        self._seed = ready.sampler.data.seed
        self.tables: dict[str, pd.DataFrame] = {}
        self.warnings: list[str] = []

    @cached_property
    def _logprobs(self) -> Tensor:
        """(n,) S of the rows, nats."""
        return score(self._ready.policy, self._rows).logprobs.sum(1)

    def describe(self) -> BlockRecord:
        """The block's record; tables and warnings are kept."""
        K, ready = self.K, self._ready
        found: dict[str, Any] = {"rows": len(K.rows), "columns": len(K.columns)}
        found["zero_rows"] = tuple(K.zero_rows)
        if K.zero_rows:
            zero = f"{len(K.zero_rows)} responses have a zero row: no parameter moves them."
            self.warnings.append(zero)
        if (dimension := ready.kernel.sketch) is not None:
            _, error = sketched_kernel(
                ready.policy,
                self._rows,
                self._columns,
                dimension,
                K.matrix,
                preconditioner=self._P,
                seed=self._seed,
                backend=ready.gradients.backend,
            )
            found["sketch"] = SketchRecord(dimension, error)
        if K.rows["prompt"].nunique() < 2:
            self.warnings.append("There is one prompt only, so there is no structure.")
        else:
            found |= self._structure()
            found |= self._spectrum() if K.symmetric else {}
        if not K.symmetric and bool(K.matrix.any()):
            sides = (*K.identities, K.diagonals)
            found["singular"] = singular_spectrum(K.matrix, *sides, seed=self._seed)
        if (self._columns or self._rows) is ready.U:
            found |= self._pairs()
        return BlockRecord(**found)

    def truncations(self) -> dict[str, Prediction] | str:
        """How much of δH₁ on U each truncation predicts, self pairs left out; or why none does."""
        U, x = self._rows, self._weights
        if x is None:
            return UNEQUAL
        if not bool(x.any()):
            return "no response has a weight in the step, which is momentum and decay alone."
        if U.n_prompts < 3:
            return "U has fewer than three prompts, and errors are over prompts."
        return truncations(self.K.square, self._logprobs, x)

    def _structure(self) -> dict[str, Any]:
        K = self.K
        rewarded = K.symmetric and not K.rows["reward"].isna().any()
        structure = K.structure(self._ready.kernel.right_above if rewarded else None)
        self.tables["structure"] = structure.to_frame()
        usual = () if K.symmetric else ("same_prompt: no such pair.",)
        self.warnings += [sentence for sentence in structure.warnings if sentence not in usual]
        differences = dict(structure.differences)
        return {"structure": dict(structure.relations), "same_less_other_prompt": differences}

    def _spectrum(self) -> dict[str, Any]:
        K = self.K
        fitted = block_model(K.square, rank=min(self._ready.kernel.rank, len(K.rows)))
        self.tables["block_model"] = block_model_table(fitted)
        return {
            "block_model": fitted,
            "spectrum": K.spectrum(seed=self._seed),
            "clusters": self._clusters(K.square, len(K.rows) - len(K.zero_rows)),
        }

    def _pairs(self) -> dict[str, Any]:
        """What pairs with the responses of U do to entropy."""
        K, x = self.K, self._weights
        if x is None:
            self.warnings.append(f"No part of δH₁ is given by pair: {UNEQUAL}")
            return {}
        if not bool(x.any()) or self._rows.n_prompts < 2:
            return {}
        fields = {} if self._columns is None else self._of_two_batches(x)
        same = K.identities[0][:, None] == K.identities[1]
        if bool(same.any()):
            kind, own = "U", torch.eye(len(self._rows), dtype=torch.bool)
            if self._columns is not None:
                own = own_pairs(self._rows.response_ids, self._columns.response_ids, same)
                kind = "F" if bool(same.any(1).all()) else "E"
            laws: dict[str, str] = dict(zip(CLASSES, LAWS[kind], strict=True))
            classes = pair_classes(K.matrix, self._logprobs, x, *K.identities, own)
            fields["pair_classes"] = {
                name: replace(part, falls_as=laws[name]) for name, part in classes.items()
            }
        return fields

    def _of_two_batches(self, x: Tensor) -> dict[str, Any]:
        ready, K, S, step = self._ready, self.K, self._logprobs, self._ready.step
        direction = step.components["gradient"]
        if not ready.kernel.preconditioned:
            direction = weighted_gradient(ready.policy, ready.U, step.token_weights)
        of_sequences = EstimatorOptions("per_sequence", confidence=ready.estimator.confidence)
        change = entropy_change(ready.policy, self._rows, direction, [], of_sequences, order=1)
        assert change.first_order is not None
        form = kernel_form(K.matrix, S, x, self._rows.prompt_index)
        fields: dict[str, Any] = {"delta_h": KernelFormRecord(form, change.first_order)}
        fields["predictions"] = block_truncations(K.matrix, S, x, *K.identities)
        gram = SquareKernel.of(K.matrix.T @ K.matrix, K.identities[1], rounding=K.rounding)
        if clusters := self._clusters(gram, int((K.matrix != 0).any(0).sum())):
            fields["clusters"] = replace(clusters, parts=tuple(self._parts(clusters, x)))
        return fields

    def _clusters(self, gram: SquareKernel, most: int) -> Clustering | None:
        """As many clusters as are asked for, at most `most`; None for fewer than three."""
        ready = self._ready
        count = min(ready.kernel.clusters or ready.U.n_prompts, most)
        return None if count < 3 else cluster_sequences(gram, count=count)

    def _parts(self, clusters: Clustering, x: Tensor) -> Iterator[ClusterPart]:
        """What the columns of each cluster are rewarded with, and what they do."""
        K = self.K
        reward = torch.tensor(K.columns["reward"].to_numpy(dtype=float))
        for label in range(clusters.count):
            here = clusters.labels == label
            change = kernel_form(
                K.matrix[:, here], self._logprobs, x[here], self._rows.prompt_index
            )
            mean = float(reward[here].mean())
            yield ClusterPart(int(here.sum()), mean, float(x[here].sum()), change)


def sequence_weights(ready: Prepared) -> Tensor | None:
    """(n,) w_i A_i where the tokens of a response share it and entropies have no weight."""
    if ready.step.entropy_weights is not None:
        return None
    weights = ready.step.token_weights
    x = weights.gather(1, weights.abs().argmax(1, keepdim=True))[:, 0]
    return x if torch.equal(weights, x[:, None] * ready.U.mask) else None


def tiles_of(ready: Prepared) -> Path | None:
    """Where finished tiles wait for a run that was killed, if its folder is named."""
    folder = ready.run_folder
    return None if folder is None else folder / "tiles" / ready.subject.name
