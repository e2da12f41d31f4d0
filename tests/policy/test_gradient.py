"""Gradients in 16 bits, against TRL's own forward and backward passes."""

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from trl.trainer.utils import add_fused_lm_head

from isentrope import Precision
from isentrope.models.batching import as_trained
from isentrope.parallel.ranks import Ranks
from isentrope.policy.gradient import weighted_gradient
from tests import cases

BATCH = cases.ragged(6)


def of_trl(model, a, size):
    """Summed gradients of TRL's fused head over padded micro-batches of `size` rows."""
    add_fused_lm_head(model.get_base_model() if hasattr(model, "peft_config") else model)
    prompts = pad_sequence(BATCH.prompt_ids, True, 0, "left")
    responses = pad_sequence(BATCH.response_ids, True, 0)
    seen = [
        pad_sequence([torch.ones_like(x) for x in ids], True, 0, side)
        for ids, side in ((BATCH.prompt_ids, "left"), (BATCH.response_ids, "right"))
    ]
    ids, mask = torch.cat((prompts, responses), 1), torch.cat(seen, 1)
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, : prompts.shape[1]] = -100
    for rows in torch.arange(len(ids)).split(size):
        with torch.autocast("cpu", torch.bfloat16, enabled=model.dtype is torch.float32):
            out = model(
                ids[rows], attention_mask=mask[rows], labels=labels[rows], fused_lm_head=True
            )
        (out.log_probs[:, -responses.shape[1] :] * a[rows]).sum().backward()
    return {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("build", [cases.lora_policy, cases.policy])
@pytest.mark.parametrize("size", [6, 4])
@pytest.mark.parametrize("precision", [Precision("float32", autocast="bfloat16"), "bfloat16"])
def test_a_gradient_in_16_bits_is_rounded_as_that_of_trl(build, size, precision):
    policy = build("qwen2").convert(precision)
    a = torch.randn(BATCH.mask.shape, generator=torch.Generator().manual_seed(2))
    found = weighted_gradient(policy, BATCH, a.double() * BATCH.mask, micro_batch=size)
    expected = of_trl(policy.model, a * BATCH.mask, size)
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 1e-5 * gradient.norm(), name


def test_micro_batches_of_training_are_dealt_whole():
    shares = [as_trained(BATCH, 2, 1000, Ranks(own, 2)) for own in range(2)]
    assert len({len(share) for share in shares}) == 1
    counted = [b.sequences.tolist() for share in shares for b in share if b.counted]
    assert sorted(counted) == [[0, 1], [2, 3], [4, 5]]
