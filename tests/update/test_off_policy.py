"""Weights of a stale batch, against autograd of the clipped surrogate."""

import pytest
import torch

from isentrope import score
from isentrope.nouns.choices import CLIPPED, OBJECTIVES
from isentrope.nouns.vectors import axpy, norm
from isentrope.policy.gradient import weighted_gradient
from isentrope.update.objective import token_weights
from isentrope.update.off_policy import importance_ratios
from tests import cases

LENGTH = 9


def fresh_batch(policy, n=8):
    drawn = cases.ragged(n, seed=7)
    scores = score(policy, drawn)
    generator = torch.Generator().manual_seed(2)
    return drawn.with_columns(
        sampler_logprobs=drawn.ragged(scores.logprobs),
        advantages=torch.randn(n, generator=generator, dtype=torch.float64),
    )


def stale_batch(policy, eta=0.4):
    """The sampler stood at θ + ηv."""
    batch = fresh_batch(policy)
    then = score(policy, batch, policy.parameters_along(cases.direction(policy), eta))
    return batch.with_columns(sampler_logprobs=batch.ragged(then.logprobs))


def surrogate_gradient(policy, batch, clip):
    """PPO's objective with Dr. GRPO's weights, response by response, by plain autograd."""
    total = torch.zeros((), dtype=torch.float64)
    rows = zip(
        batch.prompt_ids, batch.response_ids, batch.sampler_logprobs, batch.advantages, strict=True
    )
    for prompt, response, before, advantage in rows:
        with policy.precision.active():
            logits = policy.model(input_ids=torch.cat([prompt, response])[None]).logits[0]
        logits = logits[len(prompt) - 1 : -1]
        s = logits.log_softmax(-1).gather(1, response[:, None])[:, 0]
        ratio = (s - before).exp()
        bounded = ratio if clip is None else ratio.clamp(1 - clip[0], 1 + clip[1])
        total = total + torch.minimum(ratio * advantage, bounded * advantage).sum()
    parameters = dict(policy.model.named_parameters())
    mean = total / (len(batch) * LENGTH)
    gradients = torch.autograd.grad(mean, [parameters[n] for n in policy.names])
    return dict(zip(policy.names, gradients, strict=True))


def off_policy_weights(policy, batch, objective="dr_grpo", length=None, clip=(0.2, 0.2)):
    """The batch with the token weights of the clipped surrogate; "cispo" caps and drops nothing."""
    return importance_ratios(policy, batch, clip).weighted(batch, objective, length)


@pytest.mark.parametrize("name", ["table", "qwen2"])
@pytest.mark.parametrize("clip", [(0.2, 0.2), (0.1, 0.4), None])
def test_the_weights_are_the_gradient_of_the_clipped_surrogate(name, clip):
    policy = cases.policy(name)
    batch = stale_batch(policy)
    weighted = off_policy_weights(policy, batch, length=LENGTH, clip=clip)
    found = weighted_gradient(policy, weighted, token_weights(weighted, "recorded"))
    expected = surrogate_gradient(policy, batch, clip)
    assert norm(axpy(-1.0, expected, found)) < 1e-12 * norm(expected)


@pytest.mark.parametrize("objective", CLIPPED)
def test_a_fresh_batch_has_the_on_policy_weights(objective):
    policy = cases.policy("qwen2")
    batch = fresh_batch(policy)
    weighted = off_policy_weights(policy, batch, objective, LENGTH)
    torch.testing.assert_close(
        token_weights(weighted, "recorded"),
        token_weights(batch, objective, LENGTH, clip_high=0.2),
        rtol=1e-12,
        atol=0,
    )


def test_cispo_caps_the_ratio_and_keeps_every_token():
    policy = cases.policy("qwen2")
    batch = stale_batch(policy)
    ratios = importance_ratios(policy, batch, None).ratios
    weighted = off_policy_weights(policy, batch, "cispo", clip=(0.2, 1.1))
    expected = ratios.clamp(max=1.1) * token_weights(batch, "dapo")
    assert bool((ratios > 1.1).any())
    torch.testing.assert_close(token_weights(weighted, "recorded"), expected)


@pytest.mark.parametrize("objective", sorted({*OBJECTIVES, "sft"} - {*CLIPPED}))
def test_losses_that_are_other_functions_of_the_ratio_are_refused(objective):
    policy = cases.policy("table")
    with pytest.raises(ValueError, match="stale batch under"):
        off_policy_weights(policy, fresh_batch(policy), objective)


def test_the_clip_drops_only_tokens_that_moved_the_way_of_their_advantage():
    policy = cases.policy("qwen2")
    batch = stale_batch(policy)
    found = importance_ratios(policy, batch, (0.1, 0.3))
    naive = 0
    for i, length in enumerate(batch.lengths.tolist()):
        for k in range(length):
            r, a = float(found.ratios[i, k]), float(batch.advantages[i])
            dropped = (a > 0 and r > 1.3) or (a < 0 and r < 0.9)
            assert bool(found.clipped[i, k]) == dropped
            naive += dropped
    assert int(found.clipped.sum()) == naive > 0
    assert bool(((found.ratios > 1.3) & ~found.clipped).any())
    tokens = int(batch.lengths.sum())
    assert f"drops the gradient of {naive} of {tokens} tokens" in found.warnings[0]


def test_the_range_of_the_ratios_is_reported():
    policy = cases.policy("table")
    batch = fresh_batch(policy)
    shift = [torch.zeros(len(s)) for s in batch.sampler_logprobs]
    shift[3][0], shift[5][0] = -3.0, 1.0
    moved = [s + d for s, d in zip(batch.sampler_logprobs, shift, strict=True)]
    found = importance_ratios(policy, batch.with_columns(sampler_logprobs=moved), None)
    assert float(found.ratios.max()) == pytest.approx(torch.tensor(3.0).exp().item())
    assert float(found.ratios.min()) == pytest.approx(torch.tensor(-1.0).exp().item())
    assert not bool(found.clipped.any())
    assert "1 of" in found.warnings[0]
    assert "more than ten times" in found.warnings[0]


@pytest.mark.parametrize(
    ("change", "clip", "words"),
    [
        ({"advantages": None}, None, "no advantages"),
        ({"sampler_logprobs": None}, None, "log-probabilities"),
        ({"sampler_logprobs": "impossible"}, None, "where draws of any policy have 1"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_a_sentence(change, clip, words):
    policy = cases.policy("table")
    batch = fresh_batch(policy)
    if change.get("sampler_logprobs") == "impossible":
        change = {"sampler_logprobs": [x - 1e4 for x in batch.sampler_logprobs]}
    with pytest.raises(ValueError, match=words):
        importance_ratios(policy, batch.with_columns(**change), clip)


def test_the_clip_is_a_fifth_to_both_sides_unless_another_is_given():
    policy = cases.policy("qwen2")
    batch = stale_batch(policy)
    usual, given, wider = (
        importance_ratios(policy, batch, *clip).clipped for clip in ((), ((0.2, 0.2),), (None,))
    )
    assert torch.equal(usual, given)
    assert not torch.equal(usual, wider)
