"""Momentum unrolled over past updates, against torch's own optimizer run step by step."""

import copy
from dataclasses import dataclass, replace

import pytest
import torch

from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.attribution.influence.contributions import InfluenceOptions
from isentrope.attribution.influence.influence import influence
from isentrope.estimators.entropy_change import entropy_change
from isentrope.policy.language_model import Policy
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.step import clip_factor, compute_step
from studies.past_updates import Momentum, half_of, past_influence, unroll
from tests import cases
from tests.attribution.test_influence import update_batch

STEPS, CLIP = 5, 0.5
LOOP = GradientOptions("loop")  # learned positions
OPTIMIZERS = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1),
    "adam": lambda groups: torch.optim.Adam(groups, lr=1e-2, betas=(0.8, 0.99)),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9),
}
DECAY = {"adamw": 0.9, "adam": 0.8, "sgd": 0.9}


def recorded(seed):
    """A batch of five random responses with random weights of its tokens."""
    U = update_batch(n=5, prompts=2)
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(len(r), generator=generator).double() for r in U.response_ids]
    return U.with_columns(token_weights=weights)


def log_likelihoods(model, U):
    """Σ_k c_ik log π(t_ik) of every sequence, by the plain model."""
    sums = []
    for prompt, response, c in zip(U.prompt_ids, U.response_ids, U.token_weights, strict=True):
        ids = torch.cat([prompt, response])
        logits = model(input_ids=ids[None]).logits[0, len(prompt) - 1 : -1]
        s = logits.log_softmax(-1).gather(1, response[:, None])[:, 0]
        sums.append(c @ s)
    return torch.stack(sums)


@dataclass
class Past:
    """A step that was taken: the model and the optimizer before it, its batch, its gradient."""

    model: torch.nn.Module
    state: dict
    batch: object
    norm: float
    by_sequence: list  # named gradients of each sequence's sum

    @property
    def policy(self):
        return Policy(self.model, eos_token_id=0, pad_token_id=0)


def trained(name, **options):
    """(policy, optimizer, past steps) of a run in float64 from a fresh optimizer."""
    policy = cases.policy("gpt2")  # whose own code rounds nothing to float32
    model = policy.model
    named = dict(model.named_parameters())
    optimizer = OPTIMIZERS[name]([{"params": [p], **options} for p in named.values()])
    past = []
    for k in range(STEPS):
        U, before = recorded(k), copy.deepcopy(model)
        sums = log_likelihoods(model, U)
        rows = [torch.autograd.grad(s, named.values(), retain_graph=True) for s in sums]
        for p, *parts in zip(named.values(), *rows, strict=True):
            p.grad = -sum(parts)
        norm = float(torch.nn.utils.clip_grad_norm_(named.values(), CLIP))
        kept = copy.deepcopy(optimizer.state_dict())
        optimizer.step()
        past.append(Past(before, kept, U, norm, [dict(zip(named, r, strict=True)) for r in rows]))
    optimizer.zero_grad()
    return policy, optimizer, past


@pytest.fixture(
    scope="module", params=["adamw", "sgd", pytest.param("adam", marks=pytest.mark.slow)]
)
def run(request):
    policy, optimizer, past = trained(request.param)
    U, E = update_batch(), cases.ragged(12, seed=1)
    step = compute_step(policy, U, optimizer, max_grad_norm=CLIP)
    table = influence(
        policy, E, U, step, tokens=False, options=InfluenceOptions(groups=3, gradients=LOOP)
    )
    state = load_optimizer_state(policy, optimizer)
    return request.param, policy, E, step, table, Momentum.of(step, state), past, optimizer


def attributed(table, momentum, past, back):
    """(G, n) of the update `back` steps ago, as the library has it."""
    clip = clip_factor(past.norm, CLIP)
    directions = momentum.directions([table.entropy.groups], back, clip)
    return past_influence(past.policy, past.batch, directions, LOOP)


def test_from_the_first_step_on_the_past_updates_are_the_momentum(run):
    _, policy, E, step, table, momentum, past, _ = run
    updates = [attributed(table, momentum, p, back) for back, p in enumerate(past[::-1], start=1)]
    parts = unroll(table.entropy, step, updates, None)
    along = entropy_change(policy, E, step.components["momentum"], [], order=1).first_order.value
    assert sum(float(x.sum()) for x in parts.updates) == pytest.approx(along, rel=1e-9)
    scale = sum(float(x.abs().sum()) for x in updates)
    assert float(parts.rest.abs().max()) < 1e-9 * scale


def test_each_sequence_is_the_derivative_along_its_own_part_of_the_moment(run):
    name, policy, E, step, table, momentum, past, optimizer = run
    names = dict(policy.model.named_parameters())
    beta, tau = DECAY[name], STEPS + 1
    now = step.loss_gradient
    for back, i in ((1, 0), (2, 3), (5, 4)):
        p = past[-back]
        clip = min(1.0, CLIP / (p.norm + 1e-6))
        direction = {}
        for n, parameter in names.items():
            g = clip * p.by_sequence[i][n]  # what it adds to −m, before its weight
            if name == "sgd":
                direction[n] = beta**back * g
                continue
            group = optimizer.param_groups[0]
            beta2, q = group["betas"][1], optimizer.state[parameter]["exp_avg_sq"]
            q = beta2 * q + (1 - beta2) * (step.clip_factor * now[n]) ** 2
            root = (q / (1 - beta2**tau)).sqrt() + group["eps"]
            direction[n] = (1 - beta) * beta**back * g / ((1 - beta**tau) * root)
        expected = entropy_change(policy, E, direction, [], order=1).first_order.value
        found = attributed(table, momentum, p, back).sum(0)[i]
        assert float(found) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("window", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_what_was_there_before_a_shorter_window_is_the_moment_it_began_with(run, window):
    _, _, _, step, table, momentum, past, _ = run
    recent = list(enumerate(past[: -window - 1 : -1], start=1))
    updates = [attributed(table, momentum, p, back) for back, p in recent]
    back, earliest = recent[-1]
    names = [[n] for n in dict(earliest.model.named_parameters())]
    state = load_optimizer_state(earliest.policy, earliest.state, names=names)
    parts = unroll(table.entropy, step, updates, momentum.before(state.moments, back))
    scale = float(table.entropy.groups.along(step.components["momentum"]).abs().sum())
    assert float(parts.before.abs().sum()) > 0.01 * scale
    assert float(parts.rest.abs().max()) < 1e-9 * scale


def test_a_batch_that_is_left_out_is_in_the_rest(run):
    _, _, _, step, table, momentum, past, _ = run
    updates = [attributed(table, momentum, p, back) for back, p in enumerate(past[::-1], start=1)]
    without = unroll(table.entropy, step, [*updates[:1], *updates[2:]], None)
    assert torch.allclose(without.rest, updates[1].sum(1), rtol=1e-7)


def test_half_of_the_signed_sum_has_the_interval_of_its_errors(run):
    groups = run[4].entropy.groups
    even = groups.shares
    tilt = groups.shares * 0
    tilt[0], tilt[1] = 1.0, -1.0
    updates = {1: 0.3 * even, 2: 0.1 * even, 3: 0.3 * even, 4: 0.3 * even}
    assert half_of(updates, 1.0 * even, groups, 0.95) == (3, 3, 3)
    assert half_of(updates | {2: 5 * tilt}, even, groups, 0.95) == (3, 2, None)
    noise = 100 * tilt  # by size it would hold half; it sums to nothing
    assert half_of(updates | {1: noise}, even, groups, 0.95) == (4, 1, None)
    assert half_of({1: updates[1], 3: updates[3]}, even, groups, 0.95) is None  # a gap
    assert half_of(updates, noise, groups, 0.95) is None


@pytest.mark.parametrize("options", [{"nesterov": True}, {"dampening": 0.5}])
def test_momentum_of_another_form_is_refused(options):
    policy, optimizer, _ = trained("sgd", **options)
    step = compute_step(policy, update_batch(), optimizer)
    with pytest.raises(ValueError, match="Nesterov"):
        Momentum.of(step, load_optimizer_state(policy, optimizer))


def test_parameters_may_decay_at_rates_of_their_own(run):
    name, _, _, _, table, momentum, *_ = run
    first = next(iter(momentum.decay))
    slower = replace(momentum, decay=momentum.decay | {first: 0.99})
    assert slower.weight(3) == pytest.approx(0.99**3)
    usual, other = (next(m.directions([table.entropy.groups], 2, 1.0)) for m in (momentum, slower))
    assert torch.allclose(other[first], usual[first] * (0.99 / DECAY[name]) ** 2)
    assert all(torch.equal(other[n], usual[n]) for n in usual if n != first)
