"""A record that cannot be that of its responses is refused, and the cause is named."""

import math

import pytest
import torch

import isentrope as ise
from isentrope import score
from isentrope.policy.at_temperature import logprobs_at
from isentrope.policy.ratio_test import P_LIMIT, ratio_test
from tests import cases

TEMPERATURE = 0.6
PROMPTS = [[1, 2], [3], [4, 5, 6]]


def policy(temperature=TEMPERATURE, seed=0):
    return cases.policy("qwen2", 40, seed, temperature=temperature)


def earlier(of, eta):
    """The policy a step before, which drew the batch."""
    sampler, v = policy(of.temperature), cases.direction(of)
    with torch.no_grad():
        for name, x in sampler.theta.items():
            x.add_(eta * v[name])
    return sampler


def drawn(of, n=60):
    """Responses of a policy, hundreds of tokens, with what they were drawn with."""
    return ise.sample(of, PROMPTS, n, max_new_tokens=12, seed=0)


def recorded(batch, values):
    return batch.with_columns(sampler_logprobs=batch.ragged(values))


def moved(batch):
    """Every value is that of the token before; the first has its own."""
    rows = [torch.cat([x[:1], x[:-1]]) for x in batch.sampler_logprobs]
    return batch.with_columns(sampler_logprobs=rows)


def filtered(of, batch, k=4):
    """Draws from the k likeliest tokens, and what is renormalised over them."""
    rows, responses, generator = [], [], torch.Generator().manual_seed(0)
    for prompt in batch.prompt_ids:
        ids, values = prompt, []
        for _ in range(10):
            logits = of.model(input_ids=ids[None]).logits[0, -1].double() / of.temperature
            top = logits.topk(k)
            p = top.values.softmax(0)
            place = int(torch.multinomial(p, 1, generator=generator))
            ids = torch.cat([ids, top.indices[place : place + 1]])
            values.append(p[place].log())
        responses.append(ids[len(prompt) :])
        rows.append(torch.stack(values).detach())
    return ise.Rollouts(batch.prompt_ids, responses, batch.prompt_index, sampler_logprobs=rows)


RECORDS = {
    "raw": lambda of, batch: recorded(batch, logprobs_at(of, batch, 1.0)),
    "scaled": lambda of, batch: recorded(batch, logprobs_at(of, batch, 1.0) / TEMPERATURE),
    "temperature": lambda of, batch: recorded(batch, logprobs_at(of, batch, 0.8)),
    "moved": lambda of, batch: moved(batch),
    "truncated": filtered,
    "other": lambda of, batch: recorded(batch, score(policy(seed=3), batch).logprobs),
}


@pytest.mark.parametrize("eta", [0.0, 0.03])
def test_the_fault_of_a_record_is_named_whether_the_batch_is_fresh_or_stale(eta):
    of = policy()
    sampler = earlier(of, eta)
    batch = drawn(sampler)
    assert ise.check_logprobs(of, batch).sound
    for fault, record in RECORDS.items():
        assert ise.check_logprobs(of, record(sampler, batch)).fault == fault


def test_raw_values_are_named_with_the_setting_of_vllm_that_mends_them():
    of = policy()
    found = ise.check_logprobs(of, RECORDS["raw"](of, drawn(of)))
    assert "log-probabilities before the temperature" in found.sentence
    assert "logprobs_mode=processed_logprobs" in found.sentence
    assert found.p_value < P_LIMIT
    assert found.mean_ratio > 1 + 4 * found.standard_error


def test_draws_at_another_temperature_are_told_from_a_record_at_one():
    found = ise.check_logprobs(policy(), drawn(policy(1.0)))
    assert found.fault == "temperature"
    assert "score at the temperature of the sampler" in found.sentence


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x + math.inf * (x == x[0]), "not finite"),
        (lambda x: x.exp(), "probabilities, so take their logarithm"),
        (lambda x: -3 * x - 1e-9, "surprisals, so change their sign"),
        (lambda x: x + 1, "above 0, and no log-probability is"),
    ],
)
def test_impossible_values_are_named(change, words):
    of = policy()
    batch = drawn(of, 4)
    rows = [change(x - 1e-3) for x in batch.sampler_logprobs]
    found = ise.check_logprobs(of, batch.with_columns(sampler_logprobs=rows))
    assert found.fault == "impossible"
    assert words in found.sentence


def test_the_mean_is_that_of_the_ratios_over_all_tokens():
    of = policy()
    batch = drawn(earlier(of, 0.1), 5)
    found, scores = ise.check_logprobs(of, batch), score(of, batch)
    ratios = [
        math.exp(s - q)
        for row, mask, kept in zip(
            scores.logprobs.tolist(), scores.mask.tolist(), batch.sampler_logprobs, strict=True
        )
        for s, q in zip(
            [s for s, m in zip(row, mask, strict=True) if m], kept.tolist(), strict=True
        )
    ]
    assert found.tokens == len(ratios)
    assert found.mean_ratio == pytest.approx(sum(ratios) / len(ratios), rel=1e-12)


def ratios_of(stale, tail, rare, n, generator):
    """(n,) log π/π_s of draws of π_s, each at its own random prefix of 30 tokens.

    Logits move by `stale` times normals, or Student's t of 3 freedoms where `tail`. At a share
    `rare` of prefixes one token goes from 1e-3 to .2.
    """

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    logits, change = 3 * normal(n, 30), normal(n, 30)
    if tail:
        change = change / (normal(n, 30, 3).square().mean(2)).sqrt()
    q, p = logits.softmax(1), (logits + stale * change).softmax(1)
    here = torch.rand(n, generator=generator) < rare
    for x, mass in ((q, 1e-3), (p, 0.2)):
        x[here] *= 1 - mass
        x[here, 0] += mass
    tokens = torch.multinomial(q, 1, generator=generator)
    return (p.gather(1, tokens) / q.gather(1, tokens)).log()[:, 0]


@pytest.mark.parametrize(
    ("stale", "tail", "rare"),
    [(0.1, False, 0.0), (1.0, False, 0.0), (1.0, True, 0.0), (0.1, False, 0.05), (0.1, False, 0.2)],
)
def test_sound_records_of_stale_policies_pass_with_long_tails_and_rare_modes(stale, tail, rare):
    generator, beyond = torch.Generator().manual_seed(0), 0
    for n in (250, 1000, 4000):
        for _ in range(20):
            found = ratio_test(ratios_of(stale, tail, rare, n, generator))
            assert not found.fails
            beyond += abs(found.z) > 4
    if tail:  # where a normal z raises many false alarms
        assert beyond > 3


def test_a_small_fault_of_many_tokens_fails_and_rounding_does_not():
    generator = torch.Generator().manual_seed(0)
    ratios = ratios_of(0.1, False, 0.0, 20000, generator)
    assert not ratio_test(ratios).fails
    assert ratio_test(ratios + 0.05).fails
    assert ratio_test(ratios - 0.05).fails
    assert not ratio_test(ratios + 0.0015).fails
