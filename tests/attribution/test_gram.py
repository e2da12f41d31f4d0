"""Inner products of gradients, against a dense product, under every way of holding them."""

from functools import cache

import pytest
import torch

from isentrope import GradientOptions
from isentrope.attribution.gradients.gram import gram, gram_diagonals
from isentrope.attribution.gradients.storage_plan import Storage, plan_storage
from isentrope.attribution.gradients.token_sum import TokenSum, score_sums
from tests import cases
from tests.attribution.test_sequence_gradients import POLICIES, gradients

E, U = cases.ragged(7), cases.ragged(5, seed=3)


def preconditioner(policy, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return {
        n: torch.randn(p.shape, generator=generator, dtype=torch.float64)
        for n, p in policy.theta.items()
    }


def dense(policy, left, right, P):
    rows, columns = (gradients(policy, side, "loop") for side in (left, right))
    return product(rows, columns, P)


def product(rows, columns, P):
    return sum(
        (rows[n].double() * P[n]).flatten(1) @ columns[n].double().flatten(1).T for n in rows
    )


@cache
def naive(name):
    """A policy, a preconditioner, and the gradients of E and U by one pass per sequence."""
    policy = POLICIES[name]()
    both = [gradients(policy, score_sums(side), "loop") for side in (E, U)]
    return policy, preconditioner(policy), both


def error(found, truth):
    return float((found - truth).abs().max() / truth.abs().max())


@pytest.mark.parametrize("name", POLICIES)
def test_the_kernel_is_the_product_of_naive_gradients(name):
    policy, P, (of_E, of_U) = naive(name)
    truth = product(of_E, of_U, P)
    assert error(gram(policy, score_sums(E), score_sums(U), P), truth) < 1e-10
    assert error(gram(policy, score_sums(U), score_sums(E), P), truth.T) < 1e-10
    single = POLICIES[name]()
    single.convert("float32")
    short = gram(single, score_sums(E), score_sums(U), P)
    assert error(short, truth) < 5e-3  # float32; how much less is up to the CPU's kernels


@pytest.mark.parametrize(
    ("name", "rows_that_fit"), [*((name, 2) for name in POLICIES), ("qwen2 with LoRA", None)]
)
def test_the_diagonals_are_the_squared_norms_of_naive_gradients(name, rows_that_fit):
    policy, P, both = naive(name)
    size = sum(p.numel() for p in policy.theta.values())
    storage = Storage(memory=None if rows_that_fit is None else 8 * size * rows_that_fit)
    sides = score_sums(E), score_sums(U)
    found = gram_diagonals(policy, sides, P, GradientOptions(storage=storage))
    for of_side, diagonal in zip(both, found, strict=True):
        assert error(diagonal, product(of_side, of_side, P).diagonal()) < 1e-10


@pytest.mark.parametrize("rows_that_fit", [1, 2, 3])
def test_tiles_give_the_same_numbers(rows_that_fit):
    policy = cases.lora_policy("qwen2")
    P, size = preconditioner(policy), sum(p.numel() for p in policy.theta.values())
    storage = Storage(memory=8 * size * rows_that_fit)
    for right in (score_sums(U), None):
        whole = gram(policy, score_sums(E), right, P)
        tiled = gram(policy, score_sums(E), right, P, GradientOptions(storage=storage))
        assert error(tiled, whole) < 1e-14


@pytest.mark.parametrize(
    ("storage", "bound"),
    [
        (Storage(where="cpu"), 1e-14),
        (Storage(where="disk"), 1e-14),
        (Storage(kept="bfloat16"), 3e-3),
        (Storage(kept="int8"), 6e-3),
        (Storage(kept="int8", where="disk"), 6e-3),
    ],
    ids=str,
)
def test_every_way_of_holding_gradients_is_as_exact_as_it_says(storage, bound):
    policy = cases.lora_policy("llama")
    P = preconditioner(policy)
    truth = dense(policy, score_sums(E), score_sums(U), P)
    found = gram(policy, score_sums(E), score_sums(U), P, GradientOptions(storage=storage))
    assert error(found, truth) < bound
    assert storage.kept == "exact" or error(found, truth) > 1e-6  # rounding did take place


@pytest.mark.parametrize("storage", [Storage(), Storage(kept="int8"), Storage(memory=8 * 928)])
def test_rows_of_groups_are_sums_of_sequences(storage):
    policy, rows = cases.lora_policy("qwen2"), torch.tensor([0, 2, 0, 1, 1, 2, 0])
    member = torch.nn.functional.one_hot(rows).double()
    every = gram(policy, score_sums(E))
    found = gram(policy, score_sums(E, rows), gradients=GradientOptions(storage=storage))
    assert error(found, member.T @ every @ member) < (1e-2 if storage.kept == "int8" else 1e-12)


def test_a_memory_too_small_for_one_row_says_the_smallest_that_works():
    with pytest.raises(ValueError, match="4,000 bytes"):
        plan_storage(5, 7, 1000, 4, Storage(memory=3999))
    plan = plan_storage(5, 7, 1000, 4, Storage(memory=4000))
    assert len(plan.tiles) == 5
    assert plan.held_bytes == 4000


def test_the_smaller_side_is_held():
    plan = plan_storage(100, 30, 10, 4, Storage(memory=600))
    assert not plan.hold_left
    assert plan.tiles == ((0, 15), (15, 30))
    assert plan_storage(30, None, 10, 4, Storage(memory=600)).tiles == plan.tiles
    assert plan_storage(30, None, 10, 4, Storage()).tiles == ((0, 30),)


def test_entropy_weights_enter_the_products():
    policy = cases.lora_policy("llama")
    mask = score_sums(E).logprob_weights
    left = TokenSum(E, 0.3 * mask, 0.7 * mask)
    P = preconditioner(policy)
    truth = dense(policy, left, score_sums(U), P)
    assert error(gram(policy, left, score_sums(U), P), truth) < 1e-10


@pytest.mark.parametrize("free", [0, 1, 2])
def test_a_device_without_free_memory_says_what_one_row_needs(free):
    with pytest.raises(ValueError, match="does not hold one gradient"):
        plan_storage(5, 7, 10, 4, Storage().within(free))
