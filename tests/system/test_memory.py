"""Free memory is given back by all but small processes."""

import sys
from unittest.mock import Mock

import pytest
import torch

import isentrope as ise
from isentrope.policy.derivative_guard import require_derivatives
from isentrope.system import memory
from isentrope.system.memory import mapped_blocks
from tests import cases


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
    monkeypatch.setattr(memory, "SMALL", 0)
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


@pytest.mark.parametrize(("small", "calls"), [(2**62, 0), (0, 4)])
def test_a_small_process_leaves_the_allocator_alone(small, calls, monkeypatch):
    library = Mock()
    monkeypatch.setattr(memory, "SMALL", small)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: library)
    with mapped_blocks():
        pass
    assert len(library.mock_calls) == calls


def test_a_copy_whose_derivatives_were_compared_is_given_back_by_a_small_process_too():
    torch.empty(31 * SIZE, dtype=torch.uint8)
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4}
    policy = ise.Policy(cases.model("qwen2", **sizes), precision="float32", eos_token_id=0)
    copy = sum(8 * p.numel() for p in policy.model.parameters())
    assert resident() < memory.SMALL
    before = resident()
    require_derivatives(policy, cases.ragged(2), "forward over forward")
    assert resident() - before < copy / 4
