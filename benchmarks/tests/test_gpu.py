"""What the suite for a GPU does where something does not fit, or time is over."""

import signal
from argparse import Namespace

import pytest
import torch
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from benchmarks import gpu


@pytest.fixture
def asked(tmp_path):
    return Namespace(
        device="cpu",
        shapes=["tiny"],
        precisions=["float32"],
        repetitions=2,
        train_steps=0,
        seconds=300,
        out=tmp_path / "gpu.md",
    )


@pytest.fixture
def jobs(monkeypatch):
    """Gives every subject these jobs alone."""

    def give(**found):
        monkeypatch.setattr(
            gpu.Subject, "jobs", lambda _: {n: (job, "forward", 1) for n, job in found.items()}
        )

    return give


def full():
    raise torch.OutOfMemoryError("CUDA out of memory.")


def test_a_quantity_that_does_not_fit_is_named_and_the_others_are_measured(asked, jobs):
    jobs(large=full, small=lambda: torch.ones(64) @ torch.ones(64))
    gpu.run(asked)
    page = asked.out.read_text()
    assert "| tiny | float32 | large | not run: the memory is too small | | | |" in page
    assert "| tiny | float32 | small | " in page
    assert "small | not run" not in page
    assert "sampling 8 responses" in page


@pytest.mark.slow
def test_an_error_is_named_and_the_others_are_measured(asked, jobs):
    jobs(wrong=lambda: torch.ones(2) @ torch.ones(3), small=lambda: torch.ones(64) @ torch.ones(64))
    gpu.run(asked)
    page = asked.out.read_text()
    assert "| tiny | float32 | wrong | failed: RuntimeError | | | |" in page
    assert "sampling 8 responses" in page


def test_a_shape_that_does_not_fit_is_named_and_the_next_is_measured(asked, jobs, monkeypatch):
    plain = gpu.Subject

    def subject(shape, precision, device):
        return full() if precision == "float32" else plain(shape, precision, device)

    jobs()
    monkeypatch.setattr(gpu, "Subject", subject)
    asked.precisions = ["float32", "bfloat16"]
    gpu.run(asked)
    page = asked.out.read_text()
    assert "| tiny | float32 | all | not run: the memory is too small | | | |" in page
    assert "| tiny | bfloat16 | plain forward | 1 | " in page


def test_the_limit_ends_a_quantity_and_what_is_not_reached_is_named(asked, jobs):
    jobs(slow=lambda: signal.raise_signal(signal.SIGALRM))  # as when the seconds are over
    asked.precisions = ["float32", "bfloat16"]
    gpu.run(asked)
    page = asked.out.read_text()
    for what in ("tiny | float32 | the rest", "tiny | bfloat16 | all"):
        assert f"| {what} | not run: the time limit | | | |" in page


def test_a_model_is_built_in_the_type_that_is_measured():
    kinds = {
        p.dtype
        for p in gpu.Subject(gpu.SHAPES["tiny"], "bfloat16", "cpu").policy.model.parameters()
    }
    assert kinds == {torch.bfloat16}
    assert torch.get_default_dtype() == torch.float32


def test_operations_of_attention_are_those_that_torch_counts_and_shared_heads_count_as_often():
    q, k, shared = (torch.Size((2, heads, n, 8)) for heads, n in ((4, 5), (4, 7), (2, 7)))
    forward, backward = gpu.operations_of_attention(0, 2), gpu.operations_of_attention(1, 5)
    assert forward(q, k, k) == forward(q, shared, shared) == sdpa_flop_count(q, k, k)
    assert backward(q, q, k, k) == sdpa_backward_flop_count(q, q, k, k)
