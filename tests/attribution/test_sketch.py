"""Sketched kernels: exact where every side is kept, and smaller in memory."""

import pytest
import torch

import isentrope as ise
from isentrope import GradientOptions
from isentrope.attribution.gradients.gram import gram, gram_diagonals
from isentrope.attribution.gradients.storage_plan import Storage
from isentrope.attribution.gradients.token_sum import score_sums
from tests import cases

E, U = (score_sums(cases.ragged(n, seed=n)) for n in (5, 4))


def positive(policy):
    generator = torch.Generator().manual_seed(2)
    return {
        name: torch.rand(p.shape, generator=generator, dtype=torch.float64)
        for name, p in policy.theta.items()
    }


@pytest.mark.parametrize("preconditioned", [True, False])
def test_a_side_as_large_as_the_layers_leaves_the_kernel_as_it_is(preconditioned):
    policy = cases.policy("qwen2")
    P = positive(policy) if preconditioned else None
    largest = max(size for p in policy.theta.values() for size in p.shape)
    sketched = gram(policy, E, U, P, sketch=ise.Sketch(largest))
    torch.testing.assert_close(sketched, gram(policy, E, U, P), rtol=1e-10, atol=1e-12)


def test_tiles_and_either_side_give_the_same_sketch():
    policy = cases.policy("qwen2")
    sketch, P = ise.Sketch(4), positive(policy)
    whole = gram(policy, U, None, P, sketch=sketch)
    sizes = (
        min(4, p.shape[0]) * min(4, p.shape[1]) if p.ndim == 2 else p.numel()
        for p in policy.theta.values()
    )
    row_bytes = 8 * sum(sizes)
    tiles = GradientOptions(storage=Storage(memory=2 * row_bytes))
    torch.testing.assert_close(gram(policy, U, None, P, tiles, sketch), whole)
    torch.testing.assert_close(gram(policy, E, U, P, sketch=sketch).T,
                               gram(policy, U, E, P, sketch=sketch))  # fmt: skip
    norms, _ = gram_diagonals(policy, (U, E), P, tiles, sketch)
    torch.testing.assert_close(norms, whole.diagonal())


def test_a_negative_preconditioner_has_no_root():
    policy = cases.policy("qwen2")
    P = {name: -x for name, x in positive(policy).items()}
    with pytest.raises(ValueError):  # noqa: PT011
        gram(policy, U, None, P, sketch=ise.Sketch(3))


def test_a_sketch_of_no_rows_is_refused():
    with pytest.raises(ValueError):  # noqa: PT011
        ise.Sketch(0)
