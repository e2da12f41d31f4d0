"""Attention in blocks of queries: the numbers of the whole, with less memory."""

import pytest
import torch

from isentrope.models import attention
from isentrope.policy.gradient import score_jvp, weighted_gradient
from isentrope.policy.scoring import score_along
from tests import cases

NAMES = ("qwen2", "gpt_neox")


@pytest.fixture
def blocks(monkeypatch):
    """Few attention weights are held from here on."""
    return lambda: monkeypatch.setattr(attention, "WEIGHTS_HELD", 40)


@pytest.mark.parametrize("name", NAMES)
def test_forward_mode_in_blocks_is_that_of_the_whole(name, blocks):
    policy, E = cases.lora_policy(name), cases.ragged(6, seed=3)
    v = cases.direction(policy)
    whole = score_along(policy, E, v, 2)
    scores, *slopes = score_jvp(policy, E, [v, v])
    blocks()
    for one, other in zip(whole, score_along(policy, E, v, 2), strict=True):
        torch.testing.assert_close(one.logprobs, other.logprobs, rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(one.entropies, other.entropies, rtol=1e-10, atol=1e-11)
    again, *in_blocks = score_jvp(policy, E, [v, v])
    torch.testing.assert_close(again.logprobs, scores.logprobs, rtol=1e-10, atol=1e-11)
    for name in ("logprobs", "entropies"):
        one, other = (getattr(x[1], name) for x in (in_blocks, slopes))
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_in_blocks_are_those_of_the_whole(name, blocks):
    policy, E = cases.lora_policy(name), cases.ragged(6, seed=3)
    weights = E.mask.double()
    whole = weighted_gradient(policy, E, weights, weights)
    blocks()
    for n, x in weighted_gradient(policy, E, weights, weights).items():
        torch.testing.assert_close(x, whole[n], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("directions", "calls", "most"), [(1, 5, 40), (2, 9, 20)])
def test_at_most_so_many_weights_are_held_at_once(blocks, monkeypatch, directions, calls, most):
    blocks()
    held = []

    def watched(query, key, *rest, **options):
        held.append(query.shape[:-1].numel() * key.shape[-2])
        return torch.nn.functional.scaled_dot_product_attention(query, key, *rest, **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", watched)
    q, k, v = torch.randn(3, 1, 2, 9, 4, dtype=torch.float64)
    found = attention._attend_in_blocks(q, k, v, is_causal=True, directions=directions)
    whole = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-13)
    assert len(held) == calls
    assert max(held) <= most


@pytest.mark.parametrize("make", [cases.lora_policy, cases.policy])
def test_directions_of_a_pass_share_the_weights_that_are_held(make, blocks, monkeypatch):
    policy, E = make("qwen2"), cases.ragged(6, seed=3)
    asked = []
    queries = attention._queries_at_once

    def watched(query, keys, directions):
        asked.append(directions)
        return queries(query, keys, directions)

    monkeypatch.setattr(attention, "_queries_at_once", watched)
    blocks()
    score_jvp(policy, E, [cases.direction(policy)] * 3)
    assert set(asked) == {3}
