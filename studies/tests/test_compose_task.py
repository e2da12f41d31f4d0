"""The task `compose`: exact probabilities, and demonstrations that follow the dials."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from studies.compose_base import Dials, demonstrations, fine_tune, make_base, make_skilled
from studies.compose_policy import CHAIN, END, RESPONSE, Policy, sample, score, token_mask
from studies.compose_task import (
    COLD,
    Prompts,
    chain,
    direct,
    join,
    lengths_of,
    read,
    table,
    verify,
)

MAP = {
    12: lambda x: x[::-1],
    13: lambda x: [(d + 1) % 10 for d in x],
    14: lambda x: [x[1], x[0], x[2]],
    15: lambda x: [2 * d % 10 for d in x],
}


def warm_policy(seed=0):
    """Logits far from uniform, so that a wrong position or mask shows."""
    policy = Policy(seed).double()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(3.0)
    return policy


def some_prompts(n=3):
    return join(table(True, False)[torch.arange(n)], table(False, False)[torch.arange(n)])


@torch.no_grad()
def naive_logits(policy, prompt, response):
    """Logits of the next token from the whole prefix at once, without keys that are kept."""
    tokens = torch.tensor([[*prompt.tolist(), *response]])
    return policy(tokens)[0][0, -1]


@pytest.mark.parametrize("composed", [True, False])
def test_answers_follow_the_maps_and_no_held_out_prompt_is_trained_on(composed):
    parts = [table(composed, held_out) for held_out in (True, False)]
    for prompts in parts:
        for row in range(0, len(prompts), 97):
            a, b, *digits, mark = prompts.tokens[row].tolist()
            first = MAP[a](digits) if composed else digits
            answer = MAP[b](first)
            assert prompts.answer[row].tolist() == answer
            assert prompts.first[row].tolist() == (first if composed else answer)
            assert mark == CHAIN
            assert not composed or first != answer
    test, train = ({tuple(t) for t in p.tokens.tolist()} for p in parts)
    assert not test & train
    assert len(test) / len(test | train) == pytest.approx(0.2, abs=0.001)


def test_exactly_the_answer_and_the_chain_are_accepted():
    prompts = some_prompts()
    two = prompts.composed.float()
    assert verify(prompts, direct(prompts.answer)).tolist() == [1.0] * 6
    assert torch.equal(verify(prompts, chain(prompts.first, prompts.answer)), two)
    assert torch.equal(verify(prompts, direct(prompts.first)), 1 - two)
    wrong = chain(prompts.first, prompts.answer)
    wrong[:, 7] = 0  # no end
    assert verify(prompts, wrong).sum() == 0
    swapped = chain((prompts.first + 1) % 10, prompts.answer)
    assert verify(prompts, swapped).sum() == 0


def test_teacher_forcing_equals_a_loop_over_prefixes():
    policy, prompts = warm_policy(), some_prompts()
    generator = torch.Generator().manual_seed(0)
    owner = torch.arange(6).repeat_interleave(5)
    responses, lengths = sample(
        policy, prompts.tokens, owner, torch.rand(RESPONSE, 30, generator=generator)
    )
    responses[0], lengths[0] = torch.arange(8), 8
    responses[1:3], lengths[1:3] = responses[0], lengths[0]  # equal responses to one prompt
    responses[5], lengths[5] = responses[0], lengths[0]  # and to another
    found = score(policy, prompts.tokens, owner, responses, lengths)
    assert len(set(lengths.tolist())) > 2
    for row in range(30):
        for t in range(int(lengths[row])):
            prefix = responses[row, :t].tolist()
            expected = naive_logits(policy, prompts.tokens[owner[row]], prefix)
            torch.testing.assert_close(found[row, t], expected, rtol=1e-9, atol=1e-9)


def test_samples_have_the_probabilities_of_enumerated_responses():
    """All responses of at most two tokens, and the first two tokens of longer ones."""
    policy, prompts = warm_policy(1), some_prompts(1)[torch.tensor([0])]
    n = 20_000
    uniforms = torch.rand(RESPONSE, n, generator=torch.Generator().manual_seed(1))
    owner = torch.zeros(n, dtype=torch.long)
    responses, lengths = sample(policy, prompts.tokens, owner, uniforms)
    expected = {}
    first = naive_logits(policy, prompts.tokens[0], []).softmax(0)
    for a in range(12):
        if a == END:
            expected[END, END] = float(first[END])
            continue
        second = naive_logits(policy, prompts.tokens[0], [a]).softmax(0)
        expected |= {(a, b): float(first[a] * second[b]) for b in range(12)}
    assert sum(expected.values()) == pytest.approx(1.0)
    counts = dict.fromkeys(expected, 0)
    for pair in responses[:, :2].tolist():
        counts[tuple(pair)] += 1
    for pair, p in expected.items():
        assert abs(counts[pair] - n * p) <= 6 * math.sqrt(n * p) + 3
    ended = torch.stack([lengths_of(responses), lengths])
    assert torch.equal(ended[0], ended[1])


def test_a_reading_equals_products_over_single_tokens():
    policy = warm_policy(2)
    reading = read(policy, count=3)
    sums = dict.fromkeys(("composed", "cold", "greedy", "strategy", "first"), 0.0)
    prompts = table(True, True)
    for row in range(3):
        for text in (direct(prompts.answer), chain(prompts.first, prompts.answer)):
            response = text[row].tolist()
            end = response.index(END) + 1
            logits = [
                naive_logits(policy, prompts.tokens[row], response[:t]).double() for t in range(end)
            ]
            for name, T in (("composed", 1.0), ("cold", COLD)):
                each = [(z / T).softmax(0)[x] for z, x in zip(logits, response, strict=False)]
                sums[name] += float(np.prod(each)) / 3
            greedy = all(int(z.argmax()) == x for z, x in zip(logits, response, strict=False))
            sums["greedy"] += greedy / 3
        sums["strategy"] += float(logits[3].softmax(0)[CHAIN]) / 3
        links = [z.softmax(0)[x] for z, x in zip(logits[:3], response[:3], strict=True)]
        sums["first"] += float(np.prod(links)) / 3
    assert reading.composed == pytest.approx(sums["composed"], rel=1e-6)
    assert reading.composed_cold == pytest.approx(sums["cold"], rel=1e-6)
    assert reading.greedy == pytest.approx(sums["greedy"])
    assert reading.strategy == pytest.approx(sums["strategy"], rel=1e-6)
    assert reading.strategy_unsolved == pytest.approx(sums["strategy"], rel=1e-6)
    assert reading.first == pytest.approx(sums["first"], rel=1e-6)


def test_demonstrations_have_the_shares_of_the_dials():
    dials = Dials(batch=20_000, junk=0.1, skill=0.4, eta=0.2, composed=0.3)
    prompts, responses, weights = demonstrations(dials, 0.2, torch.Generator().manual_seed(0))
    two = prompts.composed
    practice = two & (weights[:, 0] == 0)
    chained = lengths_of(responses) == 8

    def share(of, among):
        return float((of & among).sum() / among.sum()), int(among.sum())

    for found, expected in (
        (share(practice, two), dials.skill),
        (share(chained, two & ~practice), 0.2),
        (share(chained, ~two), dials.junk),
    ):
        low, high = stats.binom.interval(1 - 1e-6, found[1], expected)
        assert low <= found[0] * found[1] <= high
    assert torch.equal(responses[practice][:, :3], prompts.first[practice])
    errors = (responses[~two & ~chained][:, :3] != prompts.answer[~two & ~chained]).float().mean()
    assert float(errors) == pytest.approx(0.9 * dials.eta, abs=0.01)
    assert torch.equal(weights.sum(1), token_mask(lengths_of(responses)).sum(1) - 4.0 * practice)


def test_fine_tuning_is_a_function_of_its_seed():
    dials = Dials(skill_steps=2, style_steps=2, batch=8)
    found = []
    for seed in (5, 5, 6):
        policy = make_skilled(dials, 3)
        fine_tune(policy, dials, seed, 0.1)
        found.append(torch.cat([p.detach().flatten() for p in policy.parameters()]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_base_whose_strategy_no_q_gives_is_refused(monkeypatch):
    monkeypatch.setattr("studies.compose_base.ATTEMPTS", 2)
    dials = Dials(skill_steps=1, style_steps=1, batch=8, strategy=0.9)
    with pytest.raises(ValueError, match=r"No q gives base 4 P\('>'\) = 0\.9: 0\.0070 gives 0\.0"):
        make_base(dials, 4, make_skilled(dials, 4))


def test_prompts_are_drawn_from_all_of_a_kind():
    drawn = table(True, False).draw(500, torch.Generator().manual_seed(0))
    assert isinstance(drawn, Prompts)
    pairs = {tuple(x) for x in drawn.tokens[:, :2].tolist()}
    assert pairs == set(itertools.permutations(MAP, 2))
