import math
import weakref

import pytest
import torch

from isentrope import score
from isentrope.nouns.vectors import axpy
from isentrope.policy import chi_square, token_statistics
from isentrope.policy.chi_square import RowSampler, divergence_at_theta, score_moved
from tests import cases


def naive(policy, rollouts, v, eta, temperature):
    """(n, t, 4) χ², κ, ρ_2, ρ_4 from the model's own logits, one sequence at a time."""
    out = torch.zeros(len(rollouts), int(rollouts.lengths.max()), 4, dtype=torch.float64)
    for i, (prompt, response) in enumerate(
        zip(rollouts.prompt_ids, rollouts.response_ids, strict=True)
    ):
        ids, here = torch.cat((prompt, response))[None], slice(len(prompt) - 1, -1)
        with torch.no_grad(), policy.precision.active():
            drawn = policy.model(input_ids=ids).logits[0, here] / temperature
            with policy.shifted(v, eta):
                moved = policy.model(input_ids=ids).logits[0, here] / policy.temperature
        p, q = drawn.softmax(-1), moved.softmax(-1)
        d = (q / p).log()
        rest = d.exp() - 1 - d - d**2 / 2
        for k, (x, power) in enumerate(((q / p - 1, 2), (q / p - 1, 4), (rest, 2), (rest, 4))):
            out[i, : len(response), k] = (p * x**power).sum(-1)
    return out


@pytest.mark.parametrize(
    ("name", "temperature"),
    [("qwen2", 1.0), ("qwen2", 0.8), ("llama", 0.8), ("table", 1.0), ("lora", 0.8)],
)
def test_moments_are_sums_over_the_whole_vocabulary(name, temperature, monkeypatch):
    monkeypatch.setattr(token_statistics, "LOGITS_HELD", 24)  # a few tokens at a time
    monkeypatch.setattr(chi_square, "LOGITS_COMPARED", 12)
    policy = cases.lora_policy("qwen2") if name == "lora" else cases.policy(name, vocab_chunk=2)
    v = cases.direction(policy)
    batch = cases.exact("table").sample(5, 0) if name == "table" else cases.ragged()
    ((scores, found),) = score_moved(
        policy, batch, v, [0.3], sampler=RowSampler(temperature), remainder=True
    )
    expected = naive(policy, batch, v, 0.3, temperature)
    torch.testing.assert_close(torch.cat((found.jumps, found.remainder), 2), expected)
    plain = score(policy, batch, policy.parameters_along(v, 0.3))
    torch.testing.assert_close(scores.logprobs, plain.logprobs)
    torch.testing.assert_close(scores.entropies, plain.entropies)


@pytest.mark.parametrize("make", [cases.lora_policy, cases.policy])
def test_several_rates_give_what_each_gives_alone(make):
    policy, batch, rates = make("qwen2"), cases.ragged(), [0.1, 0.0, -0.3]
    v = cases.direction(policy)
    for eta, (scores, divergence) in zip(
        rates, score_moved(policy, batch, v, rates, remainder=True), strict=True
    ):
        ((alone, moved),) = score_moved(policy, batch, v, [eta], remainder=True)
        torch.testing.assert_close(scores.entropies, alone.entropies)
        torch.testing.assert_close(divergence.jumps, moved.jumps)
        torch.testing.assert_close(divergence.remainder, moved.remainder)


def test_a_frozen_head_gives_the_reference_of_all_rates_once():
    policy, batch = cases.lora_policy("qwen2"), cases.ragged()
    logits, held = [], []

    def follow(head, inputs, output):
        logits.append(weakref.ref(output.untyped_storage()))
        held.append(sum(storage() is not None for storage in logits))

    policy.head.register_forward_hook(follow)
    score_moved(policy, batch, cases.direction(policy), [0.1] * 7)
    assert len(logits) == 8
    assert max(held) <= 3  # however many rates there are


def test_tiny_steps_keep_their_moments():
    """χ² falls with η² and ρ_2 with η⁶: neither is lost in e^d − 1 − d − d²/2."""
    policy, batch = cases.policy("qwen2"), cases.ragged()
    v = cases.direction(policy)
    long, short = score_moved(policy, batch, v, [1e-5, 1e-6], remainder=True)
    mask = long[0].mask
    ratio = (long[1].jumps / short[1].jumps)[mask]
    torch.testing.assert_close(ratio[:, 0], torch.full_like(ratio[:, 0], 1e2), rtol=1e-3, atol=0)
    ratio = (long[1].remainder / short[1].remainder)[mask]
    torch.testing.assert_close(ratio[:, 0], torch.full_like(ratio[:, 0], 1e6), rtol=1e-3, atol=0)


def test_the_policy_is_at_no_distance_from_itself():
    policy, batch = cases.policy("llama"), cases.ragged()
    assert float(divergence_at_theta(policy, batch, RowSampler(1.0)).abs().max()) < 1e-25
    assert float(divergence_at_theta(policy, batch, RowSampler(0.7))[..., 0].max()) > 1e-3


def test_one_step_into_nan_leaves_the_others():
    exact = cases.exact("table")
    v = cases.direction(exact.policy)
    good, bad = score_moved(exact.policy, exact.sample(4, 0), axpy(0.0, v, v), [0.1, 1e308])
    assert bad is None
    assert math.isfinite(float(good[1].jumps.sum()))
