"""The exact influence of the tokens of one step on `compose`, whose policy is a network of its own.

    δH_ik = c_ik ∂_u s_ik,   u = P g_H      δH on held-out responses E (T6)
    D_ik  = c_ik <∂H_ik, P ∂s_ik>           what the token does to the entropy of its own state

c is that of Dr. GRPO, P that of the coming step of AdamW. ∂_u s is a central difference in float64,
and the gradients are autograd's. The entropy is per response (ℋ).
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor

from isentrope.attribution.proxies import proxies
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy as LanguagePolicy
from isentrope.policy.token_statistics import Scores
from isentrope.probe.coming_step import coming_step
from studies.compose_arm import Arm, Batch
from studies.compose_base import Dials, make_base, make_skilled
from studies.compose_budget import PlainPolicy
from studies.compose_policy import RESPONSE, Policy, sample, score, token_mask
from studies.compose_run import Settings, optimize, rollouts
from studies.compose_task import Prompts, join, table
from studies.token_tables import Measured

U_SETTINGS = Settings(prompts=1024, composed=320)
HALF_OF_E = 1024
"""Held-out responses in either half of E, one per prompt drawn."""
DIFFERENCE = 1e-6
"""Length of the central difference, as a share of |θ|/|u|."""


def trained_policy(steps: int) -> tuple[Policy, torch.optim.Optimizer]:
    """Base 0 after steps of vanilla, with seed 0, and its optimizer."""
    dials = Dials()
    policy = copy.deepcopy(make_base(dials, 0, make_skilled(dials, 0)).policy)
    settings = Settings()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.rate, weight_decay=0.0)
    arm = Arm()
    prompts, tokens = (torch.Generator().manual_seed(i) for i in range(2))
    for step in range(steps):
        optimize(arm, rollouts(policy, step, settings, prompts, tokens), optimizer)
    return policy, optimizer


def measure_compose(steps: int, own_states: int) -> Measured:
    """Influence and own-state change of the tokens of a step.

    Args:
        steps: Vanilla steps before it.
        own_states: Tokens whose own state is differentiated.

    Returns:
        What the audit takes.
    """
    policy, optimizer = trained_policy(steps)
    generators = [torch.Generator().manual_seed(100 + i) for i in range(2)]
    batch = rollouts(policy, steps, U_SETTINGS, *generators)
    preconditioner = _preconditioner(policy, optimizer, batch)
    policy = policy.double()
    E = [_entropy_gradient(policy, seed) for seed in (7, 8)]
    weights = batch.weights.double()
    halves = [weights * _slope(policy, batch, _times(preconditioner, g)) / 2 for g in E]
    logprobs = _every_logprob(policy, batch)
    mask = batch.mask.bool()
    probabilities = logprobs.exp()
    entropies = -(probabilities * logprobs).sum(-1, keepdim=True)
    means = (probabilities * proxies.discriminator(logprobs, entropies)).sum(-1) * mask
    chosen = logprobs.gather(2, batch.responses[..., None])[..., 0]
    scores = Scores((chosen * mask).detach(), (entropies[..., 0] * mask).detach(), mask)
    acting = mask & (weights != 0)
    places = acting.nonzero()
    drawn = torch.randperm(len(places), generator=torch.Generator().manual_seed(9))[:own_states]
    own = torch.zeros_like(weights)
    for i, k in places[drawn].tolist():
        own[i, k] = weights[i, k] * _own_state(policy, batch, preconditioner, i, k)
    sampled = torch.zeros_like(acting)
    sampled[tuple(places[drawn].T)] = True
    return Measured(
        scores=scores,
        advantages=batch.advantages.double(),
        means=means.detach(),
        prompt_index=batch.owner,
        acting=acting,
        influence=halves[0] + halves[1],
        halves=(halves[0], halves[1]),
        own_state=own,
        sampled=sampled,
    )


def _preconditioner(policy: Policy, optimizer: torch.optim.Optimizer, batch: Batch) -> Vector:
    optimizer.zero_grad()
    (-(batch.weights * batch.logprobs).sum()).backward(retain_graph=True)
    coming = coming_step(cast(LanguagePolicy, PlainPolicy(policy)), optimizer)
    optimizer.zero_grad()
    return {name: x.double() for name, x in coming.preconditioner.items()}


def _times(preconditioner: Vector, gradient: Vector) -> Vector:
    return {name: preconditioner[name] * x for name, x in gradient.items()}


def _gradient(policy: Policy, total: Tensor) -> Vector:
    names, parameters = zip(*policy.named_parameters(), strict=True)
    parts = torch.autograd.grad(total, parameters)
    return dict(zip(names, parts, strict=True))


def _held_out(count: int, seed: int) -> Prompts:
    generator = torch.Generator().manual_seed(seed)
    composed = round(count * U_SETTINGS.composed / U_SETTINGS.prompts)
    return join(
        table(True, True).draw(composed, generator),
        table(False, True).draw(count - composed, generator),
    )


def _entropy_gradient(policy: Policy, seed: int) -> Vector:
    """∂ℋ from fresh responses: the pathwise part, and entropy to go with a mean by position."""
    prompts = _held_out(HALF_OF_E, seed)
    owner = torch.arange(HALF_OF_E)
    generator = torch.Generator().manual_seed(1000 + seed)
    uniforms = torch.rand(RESPONSE, HALF_OF_E, generator=generator)
    responses, lengths = sample(policy, prompts.tokens, owner, uniforms)
    mask = token_mask(lengths).double()
    every = score(policy, prompts.tokens, owner, responses, lengths).log_softmax(-1)
    s = every.gather(2, responses[..., None])[..., 0] * mask
    H = -(every.exp() * every).sum(-1) * mask
    later = H.detach().flip(1).cumsum(1).flip(1) - H.detach()  # entropy of the tokens after
    reached = mask.sum(0).clamp_min(2.0)
    total = (later * mask).sum(0)
    baseline = (total - later) / (reached - 1)  # over the other responses
    return _gradient(policy, (H + (later - baseline) * mask * s).sum() / HALF_OF_E)


def _every_logprob(policy: Policy, batch: Batch) -> Tensor:
    """(n, 8, 12) log π of every token of the vocabulary."""
    args = (batch.prompts.tokens, batch.owner, batch.responses, batch.lengths)
    return score(policy, *args).log_softmax(-1)


def _token_logprobs(policy: Policy, batch: Batch) -> Tensor:
    every = _every_logprob(policy, batch)
    return every.gather(2, batch.responses[..., None])[..., 0] * batch.mask.double()


@torch.no_grad()
def _slope(policy: Policy, batch: Batch, direction: Vector) -> Tensor:
    """(n, 8) ∂_u s by a central difference."""
    theta = {name: p.detach().clone() for name, p in policy.named_parameters()}
    sizes = [sum(float(x.square().sum()) for x in v.values()) ** 0.5 for v in (theta, direction)]
    length = DIFFERENCE * sizes[0] / sizes[1]
    ends: list[Tensor] = []
    for sign in (1.0, -1.0):
        for name, p in policy.named_parameters():
            p.copy_(theta[name] + sign * length * direction[name])
        ends.append(_token_logprobs(policy, batch))
    for name, p in policy.named_parameters():
        p.copy_(theta[name])
    return (ends[0] - ends[1]) / (2 * length)


def _own_state(policy: Policy, batch: Batch, preconditioner: Vector, i: int, k: int) -> float:
    """<∂H_ik, P ∂s_ik> of one token."""
    prompt = batch.prompts.tokens[batch.owner[i]][None]
    row = slice(i, i + 1)
    zero = torch.zeros(1, dtype=batch.owner.dtype)
    args = (prompt, zero, batch.responses[row], batch.lengths[row])

    def logprobs() -> Tensor:
        return score(policy, *args).log_softmax(-1)[0, k]

    of_token = _gradient(policy, logprobs()[batch.responses[i, k]])
    every = logprobs()
    of_entropy = _gradient(policy, -(every.exp() * every).sum())
    pairs = ((of_entropy[n] * preconditioner[n] * x).sum() for n, x in of_token.items())
    return float(sum(pairs))
