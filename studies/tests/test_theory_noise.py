"""What the recorder keeps of a run, against the micro-batch gradients themselves."""

from types import SimpleNamespace

import pytest
import torch

from studies import theory_noise

STEPS, MICRO, SIZE = 12, 3, 7


def recorded(gradients):
    """The recorder after a run whose micro-batches have these (steps, 4, d) gradients."""
    recorder = theory_noise.Recorder(MICRO)
    parameter = torch.nn.Parameter(torch.zeros(gradients.shape[-1]))
    for step in gradients:
        parameter.grad = torch.zeros_like(parameter)
        for one in step:
            parameter.grad += one / len(step)  # as a trainer accumulates them
            recorder.after_backward(SimpleNamespace(_parameters=[parameter]))
    return recorder.contents()


def test_the_kept_products_and_traces_are_those_of_the_micro_batches():
    g = torch.randn(STEPS, 4, SIZE, generator=torch.Generator().manual_seed(0))
    found = recorded(g)
    for k in (1, 2, 4):
        means = g[:, :k].mean(1).double()
        torch.testing.assert_close(
            found[f"gram_{k * MICRO}"], means @ means.T, rtol=1e-4, atol=1e-5
        )
    traces = MICRO * g.double().var(1).sum(-1)
    torch.testing.assert_close(found["traces"], traces, rtol=1e-4, atol=0)


def test_a_row_has_the_split_of_its_batch_size():
    g = torch.randn(STEPS, 4, SIZE, generator=torch.Generator().manual_seed(0))
    rows = theory_noise.drift_rows([recorded(g)] * 2, 4 * MICRO)
    assert [int(row.split("|")[2]) for row in rows] == [3, 6, 12]
    v = float(g.mean(1).double().var(0).sum())
    assert float(rows[-1].split("|")[3].split("±")[0]) == pytest.approx(v, rel=0.01)
