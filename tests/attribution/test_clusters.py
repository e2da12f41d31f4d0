import numpy as np
import pytest
import torch

from isentrope.attribution.fisher.clusters import adjusted_rand_index, cluster_sequences
from isentrope.attribution.fisher.square import SquareKernel
from tests.attribution.test_structure import UNEVEN, planted_gram, uneven_kernel


def shuffled(seed=0, **options):
    matrix, prompts = planted_gram(6, 5, shared=0.0, by_prompt=3.0, **options)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(30))
    return matrix[order][:, order], prompts[order]


def test_prompts_that_stand_apart_are_found_as_clusters():
    matrix, prompts = shuffled()
    for found in (cluster_sequences(SquareKernel.of(matrix, prompts), count=6),):
        assert found.count == 6
        assert found.prompt_agreement.value == 1
        assert found.cophenetic_correlation > 0.9
        for prompt in range(6):
            assert len(found.labels[prompts == prompt].unique()) == 1


def test_the_leaf_order_keeps_clusters_together():
    found = cluster_sequences(SquareKernel.of(*shuffled()), count=6)
    assert sorted(found.order.tolist()) == list(range(30))
    in_order = found.labels[found.order]
    assert in_order.tolist() == sorted(in_order.tolist())


def test_sequence_order_and_row_lengths_do_not_matter():
    matrix, prompts = shuffled()
    lengths = torch.linspace(0.2, 4, 30, dtype=torch.float64)
    first = cluster_sequences(SquareKernel.of(matrix, prompts), count=4)
    longer = cluster_sequences(
        SquareKernel.of(matrix * lengths[:, None] * lengths, prompts), count=4
    )
    flipped = cluster_sequences(SquareKernel.of(matrix.flip(0, 1), prompts.flip(0)), count=4)
    assert torch.equal(first.labels, longer.labels)
    assert adjusted_rand_index(first.labels, flipped.labels.flip(0)) == 1


def test_the_rand_index_is_that_of_counting_pairs():
    rng = np.random.default_rng(0)
    first, second = (
        torch.from_numpy(rng.integers(0, 3, 15)),
        torch.from_numpy(rng.integers(0, 4, 15)),
    )
    pairs = [(i, j) for i in range(15) for j in range(i)]
    a = np.array([bool(first[i] == first[j]) for i, j in pairs])
    b = np.array([bool(second[i] == second[j]) for i, j in pairs])
    expected = a.sum() * b.sum() / len(pairs)
    truth = ((a & b).sum() - expected) / ((a.sum() + b.sum()) / 2 - expected)
    assert adjusted_rand_index(first, second) == pytest.approx(truth)
    assert adjusted_rand_index(first, (first + 1) % 3) == 1


def test_the_rand_index_of_random_labels_is_zero_on_average():
    rng = np.random.default_rng(0)
    draws = [
        adjusted_rand_index(*torch.from_numpy(rng.integers(0, 5, (2, 40)))) for _ in range(400)
    ]
    assert abs(np.mean(draws)) < 4 * np.std(draws) / 20


def test_a_zero_row_belongs_to_no_cluster():
    matrix, prompts = shuffled()
    matrix[7], matrix[:, 7] = 0, 0
    found = cluster_sequences(SquareKernel.of(matrix, prompts), count=6)
    assert found.labels[7] == -1
    assert found.order[-1] == 7
    assert (found.labels >= 0).sum() == 29


def test_what_is_no_kernel_is_refused_unless_it_is_rounding():
    matrix = uneven_kernel()[0] + 1e-3 * torch.eye(11).roll(1, 0)
    with pytest.raises(ValueError, match="not symmetric"):
        cluster_sequences(SquareKernel.of(matrix, UNEVEN), count=2)
    cluster_sequences(SquareKernel.of(matrix, UNEVEN, rounding=1e-2), count=2)
