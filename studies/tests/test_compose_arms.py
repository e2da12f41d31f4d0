"""Arms of the study on `compose` differ from vanilla where they say, and nowhere else."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from studies.compose_arm import Arm
from studies.compose_arms import (
    ARMS,
    KL,
    UPPER_BOUNDS,
    Adaptive,
    Bonus,
    Demonstrations,
    ElsewhereBonus,
    HalfRate,
    NoMomentum,
    RepoRTarget,
    StrategyBonus,
)
from studies.compose_base import Base
from studies.compose_policy import CHAIN, END, RESPONSE, Policy
from studies.compose_run import Settings, log, optimize, rollouts, train
from studies.compose_task import read, table

SMALL = Settings(steps=4, every=2, held_out=4, prompts=4, composed=2, responses=4)


@pytest.fixture(scope="module")
def base():
    policy = Policy(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(2.0)
    return Base(policy, 0.01, read(policy, 4))


def batch_of(policy, step=0, seed=0):
    numbers = [torch.Generator().manual_seed(seed + i) for i in range(2)]
    return rollouts(policy, step, SMALL, *numbers)


def with_rewards(batch, every=3):
    """Every third response is rewarded, so that the objective has a gradient."""
    rewards = (torch.arange(len(batch.rewards)) % every == 0).float()
    groups = rewards.view(-1, SMALL.responses)
    advantages = (groups - groups.mean(1, keepdim=True)).flatten()
    return replace(batch, rewards=rewards, advantages=advantages)


def gradient(arm, policy, step=0):
    """The gradient that the optimizer gets, flat."""
    batch = with_rewards(batch_of(policy, step))
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    optimize(arm, batch, optimizer)
    return torch.cat([p.grad.flatten() for p in policy.parameters()]), batch


def flat(values, policy):
    return torch.cat([g.flatten() for g in torch.autograd.grad(values, [*policy.parameters()])])


def naive(policy, batch):
    """s and H of every token from the whole sequence at once; lists of lists of scalars."""
    s, h = [], []
    for row, response in enumerate(batch.responses.tolist()):
        prompt = batch.prompts.tokens[batch.owner[row]].tolist()
        length = int(batch.lengths[row])
        logits = policy(torch.tensor([prompt + response[:length]]))[0][0, 5 : 5 + length]
        p = logits.softmax(-1)
        s.append([p[t, x].log() for t, x in enumerate(response[:length])])
        h.append([-(q * q.log()).sum() for q in p])
    return s, h


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-6)


def objective(batch, s):
    n = len(s)
    return -sum(batch.advantages[i] * sum(s[i]) for i in range(n)) / (n * RESPONSE)


def test_vanilla_is_dr_grpo(base):
    policy = copy.deepcopy(base.policy)
    found, batch = gradient(Arm(), policy)
    s, _ = naive(policy, batch)
    close(found, flat(objective(batch, s), policy))
    assert found.norm() > 1e-4


def test_a_bonus_adds_the_mean_entropy_of_all_tokens(base):
    policy = copy.deepcopy(base.policy)
    found, batch = gradient(Bonus(0.3), policy)
    s, h = naive(policy, batch)
    every = [x for row in h for x in row]
    close(found, flat(objective(batch, s) - 0.3 * sum(every) / len(every), policy))


def test_the_strategy_bonus_and_its_complement_split_the_bonus(base):
    policy = copy.deepcopy(base.policy)
    found, batch = gradient(StrategyBonus(0.3), policy)
    s, h = naive(policy, batch)
    at = [
        h[i][3]
        for i, response in enumerate(batch.responses.tolist())
        if all(x < 10 for x in response[:3])
    ]
    assert 0 < len(at) < len(h)
    tokens = sum(map(len, h))
    close(found, flat(objective(batch, s) - 0.3 * sum(at) / tokens, policy))
    every, rest, plain = (gradient(a, policy)[0] for a in (Bonus(0.3), ElsewhereBonus(0.3), Arm()))
    close(found + rest, every + plain)


def test_kl_is_the_k3_estimate_to_the_start(base):
    policy = copy.deepcopy(base.policy)
    arm = KL(0.5)
    arm.start(policy, 0)
    with torch.no_grad():
        policy.head.weight.mul_(1.3)
    found, batch = gradient(arm, policy)
    (s, _), (before, _) = naive(policy, batch), naive(base.policy, batch)
    terms = [
        (b.detach() - x).exp() - (b.detach() - x) - 1
        for one, other in zip(s, before, strict=True)
        for x, b in zip(one, other, strict=True)
    ]
    penalty = 0.5 * sum(terms) / (len(s) * RESPONSE)
    close(found, flat(objective(batch, s) + penalty, policy))


def test_repo_r_weights_rare_tokens_and_searches_its_strength(base):
    policy = copy.deepcopy(base.policy)
    arm = RepoRTarget()
    batch = with_rewards(batch_of(policy))
    weights = arm.token_weights(batch)
    assert arm.strength == 0.0005  # at the target it is halved
    s, a = batch.logprobs.detach(), batch.advantages[:, None]
    factor = torch.where(a > 0, 1 - arm.strength * s, 1 + arm.strength * s).clamp(min=0)
    torch.testing.assert_close(weights, factor * a * batch.mask / a.numel() / RESPONSE)
    lower = replace(batch, entropies=0.5 * batch.entropies)
    strengths = []
    for _ in range(9):
        arm.token_weights(lower)
        strengths.append(arm.strength)
    assert strengths == [min(0.001 * 2**i, 0.05) for i in range(9)]


def test_the_adaptive_coefficient_moves_as_in_trl(base):
    policy = copy.deepcopy(base.policy)
    arm = Adaptive()
    batch = batch_of(policy)
    lower, higher = (replace(batch, entropies=factor * batch.entropies) for factor in (0.5, 1.5))
    applied = []
    for each in (batch, lower, lower, higher, lower, higher):
        arm.loss_terms(each)
        applied.append(arm.numbers["coefficient"])
        arm.after_step(each, None)
    # 0 at first, up by .005 while at or below the target, off in the step after one above
    assert applied == pytest.approx([0.0, 0.005, 0.01, 0.015, 0.0, 0.015])
    assert arm.coefficient == pytest.approx(0.01)


def test_demonstrations_begin_at_their_step_and_change_nothing_before(base):
    settings = Settings(steps=6, every=2, held_out=4, prompts=4, composed=2, responses=4)
    plain = train(Arm(), base, 3, settings)
    rescued = train(Demonstrations(begin=4), base, 3, settings)
    assert plain["readings"][:3] == rescued["readings"][:3]
    assert plain["readings"][3] != rescued["readings"][3]
    for name, values in plain["steps"].items():
        assert values[:5] == rescued["steps"][name][:5]


def test_demonstrations_raise_the_likelihood_of_chains(base):
    policy = copy.deepcopy(base.policy)
    arm = Demonstrations(begin=0)
    arm.start(policy, 0)
    batch = batch_of(policy)
    terms = arm.loss_terms(batch)
    generator = torch.Generator().manual_seed(2)
    prompts = table(True, False).draw(3, generator)
    expected = 0.0
    for row in range(3):
        first, second = prompts.first[row].tolist(), prompts.answer[row].tolist()
        response = [*first, CHAIN, *second, END]
        tokens = torch.tensor([prompts.tokens[row].tolist() + response])
        logprobs = policy(tokens)[0][0, 5:13].log_softmax(-1)
        expected -= sum(float(logprobs[t, x].detach()) for t, x in enumerate(response))
    assert float(terms.detach()) == pytest.approx(expected / batch.mask.numel(), rel=1e-4)


def test_runs_of_a_seed_are_equal_and_of_seeds_differ(base):
    first, again, other = (train(Arm(), base, seed, SMALL) for seed in (1, 1, 2))
    assert [first[k] for k in ("readings", "steps")] == [again[k] for k in ("readings", "steps")]
    assert first["steps"] != other["steps"]


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_runs_and_reports_every_step(arm, base):
    before = copy.deepcopy(base.policy.state_dict())
    made = ARMS[arm]()
    found = train(made, base, 0, SMALL)
    steps = made.steps * SMALL.steps
    assert [r["step"] for r in found["readings"]] == [*range(0, steps + 1, 2)]
    assert all(len(values) == steps for values in found["steps"].values())
    assert {"reward", "entropy_response", "entropy_token", "chain_unsolved"} <= set(found["steps"])
    assert all(torch.equal(x, before[n]) for n, x in base.policy.state_dict().items())


def test_half_the_rate_and_no_momentum_are_what_the_optimizer_gets(base, monkeypatch):
    made = []
    original = torch.optim.AdamW

    def kept(*args, **options):
        made.append(original(*args, **options))
        return made[-1]

    monkeypatch.setattr(torch.optim, "AdamW", kept)
    for arm in (Arm(), HalfRate(), NoMomentum()):
        train(arm, base, 0, SMALL)
    assert [(o.defaults["lr"], o.defaults["betas"][0]) for o in made] == [
        (3e-4, 0.9),
        (1.5e-4, 0.9),
        (3e-4, 0.0),
    ]
    assert set(UPPER_BOUNDS) < set(ARMS)


def test_an_arm_sees_the_gradient_before_the_step_and_the_graph_if_it_asks(base):
    calls = []

    class Own(Arm):
        keeps_graph = True

        def before_step(self, batch, optimizer):
            (parameter,) = optimizer.param_groups[0]["params"][:1]
            calls.append(float(parameter.grad.abs().sum()))
            batch.entropies.sum().backward()  # a second pass over the same graph
            calls.append(float(parameter.grad.abs().sum()))

        def after_step(self, batch, optimizer):
            calls.append(batch.step)

    policy = copy.deepcopy(base.policy)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    optimize(Own(), with_rewards(batch_of(policy, step=7)), optimizer)
    assert calls[1] != calls[0] > 0
    assert calls[2] == 7


def test_the_numbers_of_a_step(base):
    batch = batch_of(base.policy)
    two = batch.prompts.composed[batch.owner]
    rewards = torch.zeros_like(batch.rewards)
    rewards[0] = 1.0  # the group of the first prompt, of two maps, is solved
    batch = replace(batch, rewards=rewards)
    found = log(batch)
    _, h = naive(base.policy, batch)
    assert found["reward"] == pytest.approx(1 / 16)
    assert found["reward_composed"] == pytest.approx(1 / 8)
    total, tokens = sum(float(sum(row).detach()) for row in h), int(batch.lengths.sum())
    assert found["entropy_response"] == pytest.approx(total / 16, rel=1e-4)
    assert found["entropy_token"] == pytest.approx(total / tokens, rel=1e-4)
    rows = [
        i
        for i, response in enumerate(batch.responses.tolist())
        if two[i] and int(batch.owner[i]) != 0 and all(x < 10 for x in response[:3])
    ]
    each = []
    for i in rows:
        prompt = batch.prompts.tokens[batch.owner[i]].tolist()
        logits = base.policy(torch.tensor([prompt + batch.responses[i, :3].tolist()]))[0][0, -1]
        each.append(float(logits.softmax(-1)[CHAIN].detach()))
    expected = sum(each) / len(each) if each else math.nan
    assert found["chain_unsolved"] == pytest.approx(expected, rel=1e-4, nan_ok=True)
