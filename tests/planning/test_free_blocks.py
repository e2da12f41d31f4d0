"""Holes of the heap: which block fits where, and what stays resident."""

import pytest

from isentrope.planning.free_blocks import LEAST, Heap
from isentrope.system.heap import KEPT, LARGEST_KEPT

BLOCK = 2**20


@pytest.fixture
def heap():
    return Heap(LARGEST_KEPT)


def test_a_hole_of_a_blocks_own_size_is_too_small_for_it(heap):
    heap.take(0, BLOCK)
    heap.take(1, BLOCK)
    heap.drop(0)
    heap.take(2, BLOCK)
    assert heap.free >= BLOCK
    heap.take(3, BLOCK // 2)
    assert BLOCK // 2 <= heap.free < BLOCK


def test_holes_side_by_side_are_one(heap):
    for key in range(4):
        heap.take(key, BLOCK)
    for key in (0, 2, 1):
        heap.drop(key)
    held = heap.free
    heap.take(4, 2 * BLOCK)
    assert held - heap.free == pytest.approx(2 * BLOCK, rel=1e-3)


def test_the_smallest_hole_that_fits_is_taken(heap):
    for key, size in enumerate((4 * BLOCK, BLOCK, 2 * BLOCK, BLOCK)):
        heap.take(key, size)
    heap.drop(0)
    heap.drop(2)
    heap.take(4, BLOCK + BLOCK // 2)
    heap.take(5, 3 * BLOCK)  # the larger hole is whole
    assert heap.free < 2 * BLOCK


def test_what_is_given_back_is_resident_again_when_it_is_used(heap):
    size, count = LARGEST_KEPT // 2, 2 * KEPT // LARGEST_KEPT + 1
    for key in range(count):
        heap.take(key, size)
    heap.take(count, BLOCK)
    for key in range(count):
        heap.drop(key)
    assert heap.free > KEPT
    heap.give_back()
    assert heap.free == 0
    heap.take("again", size)
    assert heap.free == 0
    heap.drop("again")
    assert heap.free == pytest.approx(size, rel=1e-3)


def test_little_is_not_given_back(heap):
    heap.take(0, BLOCK)
    heap.drop(0)
    held = heap.free
    heap.give_back()
    assert heap.free == held > 0


@pytest.mark.parametrize("size", [LEAST - 1, LARGEST_KEPT])
def test_small_blocks_and_those_with_pages_of_their_own_leave_no_hole(heap, size):
    heap.take(0, size)
    heap.drop(0)
    assert heap.free == 0
