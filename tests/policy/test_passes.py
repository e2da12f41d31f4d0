"""A map over micro-batches receives each sequence once, whoever shares the work."""

import pytest
import torch

from isentrope.parallel.ranks import Ranks
from isentrope.policy.passes import map_micro_batches
from tests import cases

BATCH = cases.ragged(7)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_each_sequence_is_received_once_and_all_processes_run_equally_many(size):
    policy = cases.policy("table")
    received = []
    passes = []

    def visit(batch, receive):
        passes[-1] += 1
        receive(batch.sequences.tolist())

    for number in range(size):
        policy.ranks = Ranks(number, size)
        passes.append(0)
        map_micro_batches(policy, BATCH, visit, received.extend, max_tokens=16)
    assert sorted(received) == list(range(7))
    assert len(set(passes)) == 1


@pytest.mark.parametrize("size", [2, 3])
def test_rows_are_counted_by_one_process(size):
    policy = cases.policy("table")
    rows = []
    for number in range(size):
        policy.ranks = Ranks(number, size)
        rows.append(policy.rows_to_count(5))
    assert torch.cat(rows).tolist() == list(range(5))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("at_once", [1, 2, 4, 9])
def test_every_item_has_its_round_and_all_processes_have_equally_many(size, at_once):
    items = list("abcdefg")
    policy = cases.policy("table")
    rounds = []
    for number in range(size):
        policy.ranks = Ranks(number, size)
        rounds.append(list(policy.rounds(items, at_once)))
    assert len({len(of_process) for of_process in rounds}) == 1
    some = [chosen for of_process in rounds for chosen in of_process]
    assert all(1 <= len(chosen) <= at_once for chosen in some)
    drawn = sorted("".join("".join(chosen) for chosen in some))
    assert "".join(drawn).rstrip("g") + "g" == "abcdefg", "the last is repeated where none is left"
