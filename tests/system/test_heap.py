"""Free memory is given back: nothing is left of a gradient but the gradient."""

import sys

import pytest
import torch

from isentrope.system.heap import mapped_blocks


def resident():
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the heap of glibc")
def test_free_blocks_below_the_limit_of_mapped_ones_are_given_back():
    size = 2**20
    torch.empty(31 * size, dtype=torch.uint8)  # freed: blocks as large are of the heap from here on
    with mapped_blocks():
        before = resident()
    blocks = [torch.ones(4 * size, dtype=torch.uint8) for _ in range(128)]  # 512 MiB
    pins = [torch.ones(size, dtype=torch.uint8)]  # the top of the heap stays in use
    held = resident()
    assert held - before > 400 * size
    del blocks
    with mapped_blocks():
        assert resident() - before < 64 * size
        blocks = [torch.ones(4 * size, dtype=torch.uint8) for _ in range(128)]
        del blocks
    assert resident() - before < 64 * size
    assert int(pins[0].sum()) == size
