"""What a block of the kernel says of δH₁: its kernel form, pairs by class, and predictions.

U × U and F × U (fresh responses to U's prompts) have pairs of one prompt, whose parts of δH₁ are
given by class. E × U has none. Both E × U and F × U have singular values, clusters of the columns
that move the rows alike, and truncations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from isentrope.attribution.fisher.block_truncation import block_truncations
from isentrope.attribution.fisher.clusters import Clustering, Clusters, cluster_sequences
from isentrope.attribution.fisher.kernel import FisherKernel
from isentrope.attribution.fisher.pair_classes import kernel_form, own_pairs, pair_classes
from isentrope.attribution.fisher.singular import singular_spectrum
from isentrope.attribution.fisher.square import SquareKernel
from isentrope.estimators.entropy_change import entropy_change
from isentrope.estimators.functional import EstimatorOptions
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.saved import fields_of
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.scoring import score
from isentrope.results.kernel import (
    ClusterRecord,
    ClustersRecord,
    KernelFormRecord,
    PairClassRecord,
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


def describe_pairs(
    ready: Prepared, K: FisherKernel, rows: Rollouts, columns: Rollouts
) -> tuple[dict[str, Any], list[str]]:
    """Fields of a block's record, and what limits them.

    Args:
        ready: The checkpoint.
        K: The block.
        rows: The batch of its rows.
        columns: That of its columns, U where the block has an entropy change.

    Returns:
        Fields by name, and sentences.
    """
    fields: dict[str, Any] = {}
    rectangular = not K.symmetric
    if rectangular and bool(K.matrix.any()):
        seed = ready.sampler.data.seed
        fields["singular"] = singular_spectrum(K.matrix, *K.identities, K.diagonals, seed=seed)
    if columns is not ready.batches.U:
        return fields, []
    x = sequence_weights(ready)
    if x is None:
        return fields, [f"No part of δH₁ is given by pair: {UNEQUAL}"]
    if not bool(x.any()) or rows.n_prompts < 2:
        return fields, []
    S = score(ready.policy, rows).logprobs.sum(1)
    if rectangular:
        fields |= _of_two_batches(ready, K, rows, S, x)
    same = K.identities[0][:, None] == K.identities[1]
    if bool(same.any()):
        eye = torch.eye(len(rows), dtype=torch.bool)
        own = own_pairs(rows.response_ids, columns.response_ids, same) if rectangular else eye
        found = pair_classes(K.matrix, S, x, *K.identities, own)
        fresh = set(K.identities[0].tolist()) <= set(K.identities[1].tolist())
        laws = LAWS["U" if K.symmetric else "F" if fresh else "E"]
        fields["pair_classes"] = {
            k: PairClassRecord(**vars(part), falls_as=laws[k]) for k, part in found.items()
        }
    return fields, []


def _of_two_batches(
    ready: Prepared, K: FisherKernel, rows: Rollouts, S: Tensor, x: Tensor
) -> Mapping[str, Any]:
    step = ready.step
    direction = step.components["gradient"]
    if not ready.kernel.preconditioned:
        direction = weighted_gradient(ready.policy, ready.batches.U, step.token_weights)
    of_sequences = EstimatorOptions("per_sequence", confidence=ready.estimator.confidence)
    change = entropy_change(ready.policy, rows, direction, [], of_sequences, order=1)
    assert change.first_order is not None
    form = kernel_form(K.matrix, S, x, rows.prompt_index)
    fields: dict[str, Any] = {"delta_h": KernelFormRecord(form, change.first_order)}
    fields["predictions"] = block_truncations(K.matrix, S, x, *K.identities).by_name
    pushed = int((K.matrix != 0).any(0).sum())
    if count := cluster_count(ready, pushed):
        gram, prompts = K.matrix.T @ K.matrix, K.identities[1]
        square = SquareKernel.of(gram, prompts, rounding=K.rounding)
        clusters = cluster_sequences(square, count=count)
        fields["clusters"] = _with_parts(clusters, K, rows, S, x)
    return fields


def cluster_count(ready: Prepared, most: int) -> int:
    """As many clusters as are asked for, at most `most`; 0 for fewer than three."""
    count = min(ready.kernel.clusters or ready.batches.U.n_prompts, most)
    return 0 if count < 3 else count


def _with_parts(
    clusters: Clusters, K: FisherKernel, rows: Rollouts, S: Tensor, x: Tensor
) -> ClustersRecord:
    """Clusters of the columns with what they are rewarded with, and what they do."""
    reward = torch.tensor(K.columns["reward"].to_numpy(dtype=float))
    parts = []
    for label in range(clusters.count):
        here = clusters.labels == label
        change = kernel_form(K.matrix[:, here], S, x[here], rows.prompt_index)
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
