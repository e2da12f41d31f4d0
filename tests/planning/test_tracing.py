"""Computations followed by shapes: bytes alive at once, FLOPs, and what is left out."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from isentrope.models.precision import Precision
from isentrope.planning.followed import Batch
from isentrope.planning.passes import Passes
from isentrope.planning.shapes import shapes_of
from isentrope.planning.tracing import Trace, trace
from isentrope.system.heap import give_back_free_memory

FLOAT64 = Precision("float64")


def followed(computation, *, columns=(), known=(), **options):
    with FakeTensorMode(allow_non_fake_inputs=True):
        return trace(computation, {k: k for k in columns}, known, **options)


def test_what_is_freed_makes_room():
    def one_after_the_other():
        for _ in range(5):
            torch.ones(1000)

    def together():
        return [torch.ones(1000) for _ in range(5)]

    assert followed(one_after_the_other).peak == 4000
    assert followed(together).peak == 20_000
    assert followed(one_after_the_other).written == 20_000


def test_a_freed_block_stays_resident_until_memory_is_given_back():
    def after_a_block(then):
        def computation():
            first = torch.ones(2**18)
            second = torch.ones(2**10)
            del first
            then()
            return second, torch.ones(2**18)

        return computation

    block = 4 * 2**18
    assert followed(after_a_block(lambda: None)).kept == pytest.approx(block, rel=0.01)
    assert followed(after_a_block(lambda: None), limit=block).kept == 0
    assert followed(after_a_block(give_back_free_memory)).kept > 0  # less than is worth it
    large = 40 * block

    def many():
        for _ in range(2):
            rows = [torch.ones(2**18) for _ in range(40)]
            last = torch.ones(2**18)
            del rows
        give_back_free_memory()
        return last, torch.ones(10 * 2**18)

    found = followed(many)
    assert found.logits + found.others == pytest.approx(large + 2 * block, rel=0.05)


def test_a_chunk_of_the_vocabulary_stands_for_one_of_another_size():
    def computation():
        x = torch.ones(2**10, 2**8 - 1)
        y = torch.ones(2**12)
        del x
        return y, torch.ones(2**10, 2**8)

    size = 4 * 2**18
    with FakeTensorMode(allow_non_fake_inputs=True):
        as_it_is, mapped = (
            trace(computation, {2**8 - 1: real}, (), limit=size) for real in (2**8 - 1, 2**8)
        )
    assert as_it_is.kept > 0
    assert mapped.kept == 0


def test_views_and_sums_in_place_take_nothing():
    def computation():
        x = torch.ones(10, 10, dtype=torch.float64)
        return x.T[2:].add_(1)

    assert followed(computation).peak == 800


def test_known_tensors_are_not_counted():
    with FakeTensorMode():
        weight = torch.ones(50, 50)
        found = trace(lambda: weight.T @ weight, {}, [weight])
    assert found.peak == 50 * 50 * 4
    assert found.flops == 2 * 50**3


def test_arrays_over_the_vocabulary_are_logits():
    def computation():
        return torch.ones(4, 7) @ torch.ones(7, 13)

    found = followed(computation, columns={13})
    assert (found.logits, found.others) == (4 * (7 * 13 + 4 * 13), 4 * 4 * 7)
    assert (found.flops, found.head_flops) == (0, 2 * 4 * 7 * 13)


def test_a_backward_pass_holds_what_it_needs():
    def gradient(layers):
        def computation():
            x = torch.ones(100, 10, requires_grad=True)
            y = x
            for _ in range(layers):
                y = y.exp()
            return torch.autograd.grad(y.sum(), x)

        return followed(computation).peak

    assert gradient(9) - gradient(4) == 5 * 100 * 10 * 4


def test_layers_are_a_straight_line_and_the_vocabulary_is_not():
    one, two = Trace(100, 10, 1.0, 5.0, 3.0, 7.0, 4), Trace(100, 16, 3.0, 5.0, 4.0, 7.0, 6)
    assert one.more_layers(two, 4) == Trace(100, 28, 7.0, 5.0, 6.0, 7.0, 6, 18)
    assert one.more_layers(two, 1) == one


@pytest.fixture(scope="module")
def passes(tiny):
    return Passes(shapes_of(tiny / "step_4"), FLOAT64, max_tokens=64, vocab_chunk=8192)


def test_gradients_of_twice_the_sequences_take_twice_the_activations(passes):
    once, twice = passes.gradient(Batch(4, 4, 3), True), passes.gradient(Batch(8, 4, 3), True)
    fixed = 8 * passes.shapes.trainable  # the gradient itself
    assert twice.peak - fixed == pytest.approx(2 * (once.peak - fixed), rel=0.1)


def test_forward_mode_multiplies_the_products_of_an_evaluation(passes):
    batch = Batch(8, 4, 3)
    flops = [passes.derivatives(batch, order).flops for order in (0, 1, 2)]
    assert 2 * flops[0] <= flops[1] <= 3.5 * flops[0]
    assert flops[2] > 2 * flops[1]
    peaks = [passes.derivatives(batch, order).peak for order in (0, 1, 2)]
    assert peaks == sorted(peaks)


def test_a_batch_beyond_the_budget_of_tokens_takes_no_more_at_once(passes):
    assert passes.scores(Batch(100, 4, 3)).peak == passes.scores(Batch(10, 4, 3)).peak


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_long_sequences_take_memory_in_proportion(tiny, precision):
    passes = Passes(shapes_of(tiny / "step_4"), Precision(precision), 2**20, 64)
    for follow in (passes.scores, lambda batch: passes.gradient(batch, False)):
        half, whole = (follow(Batch(1, 4, length)).peak for length in (2**14, 2**15))
        assert whole < 2.2 * half


def test_fewer_tokens_are_a_share(passes):
    batch = Batch(10, 4, 3)
    fewer = passes.with_fewer_tokens(5 * batch.length).gradient(batch, True)
    assert fewer.others == int(passes.gradient(batch, True).others * 5 / 10)


@pytest.mark.parametrize(
    "follow",
    [
        lambda p, b: p.moved(b, True),
        lambda p, b: p.slopes(b, 4),
        lambda p, b: p.sequence_gradients(b),
        lambda p, b: p.check(),
    ],
)
def test_every_pass_is_followed(passes, follow):
    found = follow(passes, Batch(4, 4, 3))
    assert found.peak > 0
    assert found.flops > 0
