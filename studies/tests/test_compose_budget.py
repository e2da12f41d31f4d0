"""The budget on `compose` is the library's: its readings, and its correction of a step."""

import copy

import pytest
import torch

from isentrope.control import leave_one_out
from isentrope.control.gradients import ControlSample, slope_along
from isentrope.probe.coming_step import coming_step
from studies import compose_budget as own
from studies.compose_arm import Arm
from studies.compose_arms import ARMS, UPPER_BOUNDS
from studies.compose_policy import Policy
from studies.compose_run import Settings, optimize
from studies.tests.test_compose_arms import base as base  # a fixture
from studies.tests.test_compose_arms import batch_of, flat, naive, with_rewards


def prepared(base):
    """A policy after one step, the gradient of the next in place, its optimizer and batch."""
    policy = copy.deepcopy(base.policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-4, weight_decay=0.0)
    optimize(Arm(), with_rewards(batch_of(policy, 0, 5)), optimizer)
    batch = with_rewards(batch_of(policy, 1, 8))
    optimizer.zero_grad()
    (-(batch.weights * batch.logprobs).sum()).backward(retain_graph=True)
    return policy, optimizer, batch


def test_responses_of_a_batch_are_those_of_a_control(base):
    _, _, batch = prepared(base)
    E = own.drawn(batch, batch.weights)
    assert len(E) == len(batch.lengths)
    assert (E.prompt_index.diff() >= 0).all()
    found = sorted(
        (*p.tolist(), *r.tolist(), *h.tolist(), *c.tolist())
        for p, r, h, c in zip(
            E.prompt_ids, E.response_ids, E.sampler_entropies, E.token_weights, strict=True
        )
    )
    t = batch.lengths.tolist()
    expected = sorted(
        (
            *batch.prompts.tokens[batch.owner[i]].tolist(),
            *batch.responses[i, : t[i]].tolist(),
            *batch.entropies[i, : t[i]].tolist(),
            *batch.weights[i, : t[i]].tolist(),
        )
        for i in range(len(t))
    )
    assert found == expected


def test_gradients_of_rows_are_those_of_the_whole_sequences(base):
    policy, _, batch = prepared(base)
    E = own.drawn(batch, batch.weights)
    rows = torch.tensor([0, 3, 9])
    numbers = torch.Generator().manual_seed(0)
    a, b = (torch.randn(len(E), E.mask.shape[1], generator=numbers) * E.mask for _ in range(2))
    (found,) = own.gradients_of_rows(policy, E, rows, [(a, b)])
    total = 0.0
    for i in rows.tolist():
        prompt, response = E.prompt_ids[i].tolist(), E.response_ids[i].tolist()
        logits = policy(torch.tensor([prompt + response]))[0][0, 5 : 5 + len(response)]
        logprobs = logits.log_softmax(-1)
        for t, token in enumerate(response):
            H = -(logprobs[t].exp() * logprobs[t]).sum()
            total = total + a[i, t] * logprobs[t, token] + b[i, t] * H
    torch.testing.assert_close(
        torch.cat([x.flatten() for x in found.values()]).float(),
        flat(total, policy),
        rtol=2e-3,
        atol=2e-6,
    )


@pytest.mark.parametrize("functional", ["per_sequence", "per_token"])
def test_a_half_is_read_as_the_library_reads_it(base, functional, monkeypatch):
    policy, optimizer, batch = prepared(base)
    plain = own.PlainPolicy(policy)
    plain.device = torch.device("cpu")
    coming = coming_step(plain, optimizer)
    sample = ControlSample(own.drawn(batch, batch.weights), functional)
    monkeypatch.setattr(
        leave_one_out,
        "gradients_of_rows",
        lambda _, E, rows, weights: own.gradients_of_rows(policy, E, rows, weights),
    )
    trained = int(leave_one_out.in_the_loss(sample.rollouts).sum())
    library, along_library = leave_one_out.read_half(plain, sample, coming, 1.0, trained)
    found, along_v = own.read_half(policy, sample, coming, trained)
    torch.testing.assert_close(along_v, along_library)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, library[name])
    plainly = slope_along(found, coming.direction)
    assert (along_v - plainly).abs().max() > 1e-9  # something is left out


def test_a_budget_adds_its_correction_to_the_step(base):
    policy = copy.deepcopy(base.policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-4, weight_decay=0.0)
    arm = own.Budget()
    arm.start(policy, 0)
    added = 0.0
    for step in range(6):
        batch = with_rewards(batch_of(policy, step, 10 * step))
        before = copy.deepcopy(policy), copy.deepcopy(optimizer.state_dict())
        optimize(arm, batch, optimizer)
        twin = before[0]
        other = torch.optim.AdamW(twin.parameters(), lr=3e-4, weight_decay=0.0)
        other.load_state_dict(before[1])
        for p, q in zip(twin.parameters(), policy.parameters(), strict=True):
            p.grad = q.grad.clone()
        other.step()
        component = arm.budget.component
        for (name, q), p in zip(policy.named_parameters(), twin.parameters(), strict=True):
            own_part = 0.0 if component is None else 3e-4 * component[name]
            torch.testing.assert_close(q.double(), p.double() + own_part, rtol=0, atol=1e-6)
        if component is not None:
            added = max(added, max(float(x.abs().max()) for x in component.values()))
    assert 3e-4 * added > 1e-5


def test_targets_are_of_the_first_batch(base):
    policy, _, batch = prepared(base)
    nats = sum(float(h.detach()) for row in naive(policy, batch)[1] for h in row)
    arm = own.Budget(share=0.5)
    target = arm._target(batch)
    assert (target.kind, target.steps) == ("linear", 200)
    assert target.to == pytest.approx(0.5 * nats / len(batch.lengths), rel=1e-3)
    assert own.Budget()._target(batch).kind == "hold"
    assert Settings().steps == own.Budget.LINEAR


def test_the_strategy_position_is_after_three_digits(base):
    from isentrope.estimators.positions import named_positions

    _, _, batch = prepared(base)
    E = own.drawn(batch, batch.weights)
    found = named_positions(E, own.STRATEGY_POSITION, own.PlainPolicy(Policy()).tokenizer)
    for row, response in zip(found, E.response_ids, strict=True):
        there = len(response) > 3 and all(int(x) < 10 for x in response[:3])
        assert row.nonzero()[:, 0].tolist() == ([3] if there else [])
    assert found.any()
    assert ARMS["budget_strategy"]().where == own.STRATEGY_POSITION
    assert "budget_strategy" in UPPER_BOUNDS
