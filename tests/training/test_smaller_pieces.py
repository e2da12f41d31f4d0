"""A memory that is full in the update: smaller pieces give the gradient of the whole."""

from functools import cache
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from tests.training import runs

ROWS = runs.GROUPS * runs.SIZE // 2
"""Sequences of a micro-batch."""


def train(folder, holds=ROWS, fails="forward", **options):
    """One step of training where the memory holds so many sequences of a backward pass."""
    made = runs.trainer(folder, steps=1, max_grad_norm=1e3, **options)
    run = SimpleNamespace(rows=[], gradients={}, table=None, line=None)
    score, norm = made._get_per_token_logps_and_entropies, made._get_grad_norm
    backward = made.accelerator.backward

    def scored(model, input_ids, *rest, **named):
        if torch.is_grad_enabled():
            run.rows.append(len(input_ids))
            if fails == "forward" and len(input_ids) > holds:
                raise torch.OutOfMemoryError("CUDA out of memory.")
        return score(model, input_ids, *rest, **named)

    def pulled_back(loss, **named):
        backward(loss, **named)
        failing = fails == "backward" or (fails == "second backward" and len(run.rows) == 2)
        if failing and run.rows[-1] > holds:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def kept(model, grad_norm=None):
        run.gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}
        return norm(model, grad_norm)

    made._get_per_token_logps_and_entropies = scored
    made.accelerator.backward = pulled_back
    made._get_grad_norm = kept
    made.train()
    run.table = pd.read_parquet(next((folder / "logs" / "rollouts").glob("*.parquet")))
    (run.line,) = runs.lines(folder)
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A step of a loss in whole micro-batches, once for each."""
    return cache(lambda loss: train(tmp_path_factory.mktemp("whole"), loss_type=loss))


def require_same_step(run, whole):
    assert runs.relative(run.gradients, whole.gradients) < 1e-5
    assert run.line["loss"] == pytest.approx(whole.line["loss"], rel=1e-4, abs=1e-7)
    for name in ("logprobs", "token_weights"):
        (one, other) = (
            torch.cat([torch.tensor(x) for x in table[name]]) for table in (run.table, whole.table)
        )
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


SLOWLY = [pytest.param(x, marks=pytest.mark.slow) for x in ("grpo", "sapo", "cispo", "vespo")]


@pytest.mark.parametrize("loss_type", ["dr_grpo", "luspo", "dapo", *SLOWLY])
def test_a_step_in_pieces_is_that_of_whole_micro_batches(whole, loss_type, tmp_path, caplog):
    assert whole(loss_type).rows == [ROWS] * 2
    run = train(tmp_path, 3, loss_type=loss_type)
    assert run.rows == [8, 4, 2, 2, 2, 2, 2, 2, 2, 2]
    require_same_step(run, whole(loss_type))
    assert "2 sequences per backward pass from here on instead of 4" in caplog.text


def test_what_a_failed_backward_pass_added_to_no_gradient_is_taken_back(whole, tmp_path):
    run = train(tmp_path, 4, "backward")
    assert run.rows == [8, 4, 4, 4, 4]
    require_same_step(run, whole("dr_grpo"))


def test_a_failed_backward_pass_that_changed_a_gradient_ends_the_run(tmp_path):
    with pytest.raises(torch.OutOfMemoryError):
        train(tmp_path, 4, "second backward")


@pytest.mark.parametrize("options", [{"loss_type": "bnpo"}, {"entropy_coef": 0.1}])
def test_a_loss_of_the_whole_micro_batch_is_not_divided(options, tmp_path):
    with pytest.raises(torch.OutOfMemoryError):
        train(tmp_path, 4, **options)


def test_one_sequence_that_does_not_fit_ends_the_run(tmp_path):
    with pytest.raises(torch.OutOfMemoryError):
        train(tmp_path, 0)
