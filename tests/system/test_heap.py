"""Free memory is given back by all but small processes."""

import sys

import pytest
import torch

from isentrope.system import heap
from isentrope.system.heap import mapped_blocks


def resident():
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the heap of glibc")
SIZE = 2**20


def blocks_of_the_heap():
    """512 MiB in blocks that are freed into the heap, whose top stays in use."""
    return [torch.ones(4 * SIZE, dtype=torch.uint8) for _ in range(128)]


def test_free_blocks_below_the_limit_of_mapped_ones_are_given_back(monkeypatch):
    monkeypatch.setattr(heap, "SMALL", 0)
    torch.empty(31 * SIZE, dtype=torch.uint8)  # freed: blocks as large are of the heap from here on
    with mapped_blocks():
        before = resident()
    blocks = blocks_of_the_heap()
    pins = [torch.ones(SIZE, dtype=torch.uint8)]
    held = resident()
    assert held - before > 400 * SIZE
    del blocks
    with mapped_blocks():
        assert resident() - before < 64 * SIZE
        blocks = blocks_of_the_heap()
        del blocks
    assert resident() - before < 64 * SIZE
    assert int(pins[0].sum()) == SIZE


def test_a_small_process_keeps_them(monkeypatch):
    torch.empty(31 * SIZE, dtype=torch.uint8)
    blocks = blocks_of_the_heap()
    pins = [torch.ones(SIZE, dtype=torch.uint8)]
    held = resident()
    monkeypatch.setattr(heap, "SMALL", held)
    del blocks
    with mapped_blocks():
        assert held - resident() < 64 * SIZE
    monkeypatch.setattr(heap, "SMALL", 0)
    with mapped_blocks():
        assert held - resident() > 400 * SIZE
    assert int(pins[0].sum()) == SIZE
