"""The mask that all layers share: each layer attends as with the mask of its own."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import isentrope as ise
from isentrope.models import attention
from isentrope.policy.gradient import score_jvp, weighted_gradient
from isentrope.policy.scoring import score_along
from tests import cases
from tests.architectures import SETTINGS

MIXED = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
KINDS = {
    "gemma3_text": MIXED,
    "mistral": {"sliding_window": 4},
    "qwen2": MIXED | {"use_sliding_window": True},
    "qwen3": MIXED | {"use_sliding_window": True},
}
"""Windows that are shorter than the sequences, beside full attention but in Mistral. Gemma 2 caps
its scores, so it does not run the kernel that shares masks."""

EQUAL, PADDED = (6, 6, 6), (9, 2, 5, 7)
CASES = [*((kind, "float64") for kind in KINDS), ("qwen3", "float32"), ("qwen3", "bfloat16")]


@cases.built_once
def policy_of(kind, precision):
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SETTINGS[kind], **KINDS[kind]})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    for p in model.parameters():
        p.data.add_(0.1 * torch.randn_like(p))
    return ise.Policy(model, precision=precision, eos_token_id=0, pad_token_id=1)


def sequences(lengths):
    """Prompts of three tokens and responses of so many."""
    generator = torch.Generator().manual_seed(0)

    def tokens(n):
        return torch.randint(2, 5, (n,), generator=generator)

    index = torch.arange(len(lengths))
    return ise.Rollouts([tokens(3) for _ in lengths], [tokens(n) for n in lengths], index)


def scores_and_derivatives(policy, E):
    v = cases.direction(policy)
    weights = E.mask.double()
    passes = (ise.score(policy, E), *score_along(policy, E, v, 2), *score_jvp(policy, E, [v, v]))
    values = [x for one in passes for x in (one.logprobs, one.entropies)]
    return [*values, *weighted_gradient(policy, E, weights, weights).values()]


@pytest.mark.parametrize(
    ("kind", "precision", "lengths"),
    [*((*case, PADDED) for case in CASES), *((kind, "float64", EQUAL) for kind in KINDS)],
)
def test_layers_with_a_window_and_without_attend_as_with_masks_of_their_own(
    kind, precision, lengths, monkeypatch
):
    policy, E = policy_of(kind, precision), sequences(lengths)
    for max_tokens in (1000, 20):  # one micro-batch, then several of other lengths
        policy.max_tokens = max_tokens
        shared = scores_and_derivatives(policy, E)
        with monkeypatch.context() as patch:
            patch.setattr(attention, "_masks_made_once", nullcontext)
            alone = scores_and_derivatives(policy, E)
        near = {"float64": 1e-12, "float32": 1e-4, "bfloat16": 0.05}[precision]
        for one, other in zip(shared, alone, strict=True):
            scale = float(other.abs().max())
            torch.testing.assert_close(one, other, rtol=near, atol=near * scale)


def attend(queries, keys, mask=None, **options):
    layer = SimpleNamespace(is_causal=True, num_key_value_groups=1)
    return ALL_ATTENTION_FUNCTIONS["sdpa"](layer, queries, keys, keys, mask, **options)[0]


def test_layers_that_share_no_mask_have_none_of_another():
    """After a causal layer: one that sees all keys, one with more keys, one of another type."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 2, 5, 4, generator=generator, dtype=torch.float64)
    more = torch.cat((k, k), 2)
    seen = torch.ones(1, 1, 5, 10, dtype=torch.bool).tril(5)
    calls = [
        (q, k, None, {}),
        (q, k, None, {"is_causal": False}),
        (q, more, None, {"is_causal": False}),
        (q, more, None, {}),
        (q, more, seen, {}),
        (q.float(), k.float(), None, {}),
        (q[:, :, :1], k, None, {}),
        (q, k, None, {"position_bias": torch.ones(1, 2, 5, 5, dtype=torch.float64)}),
    ]
    alone = [attend(a, b, mask, **options) for a, b, mask, options in calls]
    with attention._masks_made_once():
        shared = [attend(a, b, mask, **options) for a, b, mask, options in calls * 2]
    for one, other in zip(shared, alone * 2, strict=True):
        torch.testing.assert_close(one, other)


def test_micro_batches_of_two_threads_that_overlap_leave_the_kernel_as_it_was():
    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    begun = threading.Event()
    over = threading.Event()

    def read():
        with attention._masks_made_once():
            begun.set()
            over.wait(60)

    other = threading.Thread(target=read)
    with attention._masks_made_once():
        other.start()
        assert begun.wait(60)
    over.set()
    other.join()
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before
