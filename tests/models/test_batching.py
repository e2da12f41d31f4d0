"""Which process scores which sequences."""

import pytest
import torch

from isentrope.models.batching import micro_batches, tokens_read
from isentrope.parallel.ranks import Ranks
from tests import cases

BATCH = cases.ragged(7)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_every_sequence_is_counted_once_and_all_processes_run_equally_many(size):
    shares = [micro_batches(BATCH, 16, Ranks(own, size)) for own in range(size)]
    assert len({len(share) for share in shares}) == 1
    counted = [i for share in shares for b in share if b.counted for i in b.sequences.tolist()]
    assert sorted(counted) == list(range(7))


def test_sequences_of_a_unit_stay_together():
    unit = torch.tensor([0, 1, 1, 2, 0, 2, 1])
    for own in range(2):
        share = micro_batches(BATCH, 16, Ranks(own, 2), unit)
        here = {i for b in share if b.counted for i in b.sequences.tolist()}
        assert all(set((unit == u).nonzero()[:, 0].tolist()) <= here for u in unit[list(here)])


def test_what_is_not_counted_is_not_placed():
    (first, *_), (last, *_) = (micro_batches(BATCH.select([0]), 64, Ranks(k, 2)) for k in (0, 1))
    out = torch.zeros(1, 9)
    for batch in (first, last):
        batch.place(torch.ones(len(batch.targets)), out)
    assert float(out.sum()) == len(first.targets)
    assert (first.counted, last.counted) == (True, False)


@pytest.mark.parametrize("padding", [0, 3, 8, 1000])
def test_a_micro_batch_has_no_more_padding_than_is_worth_another(padding):
    batches = micro_batches(BATCH, 64, padding=padding)
    totals = torch.tensor(tokens_read(BATCH))
    for batch in batches:
        assert int((batch.input_ids.shape[1] - totals[batch.sequences]).sum()) <= padding
    assert sorted(i for b in batches for i in b.sequences.tolist()) == list(range(7))
    assert all(b.input_ids.numel() <= 64 for b in batches)
