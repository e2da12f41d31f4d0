"""Orders of second moments whose truth is known: gradients are drawn with these variances."""

import pytest
import torch

from isentrope.checks.state_order import state_order


def drawn(shapes, spread=1.0, seed=0):
    """Second moments with patterns of their own, and one gradient with these variances."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    common = {shape: normal(*shape) for shape in set(shapes)}
    v, g = {}, {}
    for i, shape in enumerate(shapes):
        v[f"p{i}"] = (common[shape] + spread * normal(*shape)).exp()
        g[f"p{i}"] = v[f"p{i}"].sqrt() * normal(*shape)
    return g, v


SHAPES = [(64, 48), (64, 48), (64, 48), (40, 60), (40, 60), (90,)]


def test_the_right_order_is_better_than_every_exchange():
    order = state_order(*drawn(SHAPES))
    assert (order.wrong, order.open) == ({}, None)


@pytest.mark.parametrize("pair", [("p0", "p2"), ("p3", "p4")])
def test_an_exchanged_pair_is_named_among_many_in_their_places(pair):
    g, v = drawn(SHAPES + [(70, 70)] * 12)
    one, other = pair
    v[one], v[other] = v[other], v[one]
    assert state_order(g, v).wrong == {one: other, other: one}


def test_a_pair_that_a_batch_does_not_tell_apart_is_open_and_not_wrong():
    g, v = drawn([*SHAPES, (50, 50)])
    g["twin"], v["twin"] = g["p6"].roll(1, 0), v["p6"].clone()
    order = state_order(g, v)
    assert order.wrong == {}
    assert order.open == ("p6", "twin")


def test_patterns_that_have_nothing_in_common_are_not_called_wrong():
    for seed in range(20):
        g, _ = drawn(SHAPES, seed=seed)
        _, v = drawn(SHAPES, seed=seed + 100)
        assert state_order(g, v).wrong == {}


def test_tensors_too_small_to_be_compared_are_open():
    assert state_order(*drawn([(3, 5), (3, 5)])).open == ("p0", "p1")


def test_columns_alone_do_not_call_a_matrix_of_few_rows_wrong():
    """Its rows fit as they are; its columns, which all stand for the same tokens, do not."""
    y = torch.linspace(0.1, 3, 32, dtype=torch.float64).exp()
    rows = torch.tensor([[1.0, 1e4], [1e4, 1.0]], dtype=torch.float64)
    g = {n: torch.outer(r, c) for n, r, c in zip("ab", rows, (y, 1 / y), strict=True)}
    v = {n: torch.outer(r, c) ** 2 for n, r, c in zip("ab", rows, (1 / y, y), strict=True)}
    order = state_order(g, v)
    assert (order.wrong, order.open) == ({}, ("a", "b"))
