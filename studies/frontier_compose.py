"""The frontier of a step on `compose`, whose policy is a network of its own (T14).

Gradients of groups are plain autograd's in float64, of ℋ in nats per response. The step is the one
that AdamW would take on U next, and a control's free part is that of AdamW on the loss under the
control.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from isentrope.attribution.frontier.edge import Edge
from isentrope.attribution.frontier.frontier import Frontier, frontier_of_step
from isentrope.attribution.frontier.gradient_products import GradientPair
from isentrope.attribution.frontier.places import Place, place_part
from isentrope.attribution.gradients.gradient_store import HeldVectors
from isentrope.attribution.gradients.groups import GradientGroups, of_reward
from isentrope.control.bonus import Bonus as BonusRule
from isentrope.control.covariance import ClipCov
from isentrope.control.repo_r import RepoR
from isentrope.estimators.functional import Functionals
from isentrope.estimators.sample import ScoredBatch, cotangents
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy as LanguagePolicy
from isentrope.policy.token_statistics import Scores
from isentrope.probe.coming_step import ComingStep, coming_step
from isentrope.update.step import Step
from studies.compose_arm import Batch
from studies.compose_arms import tokens_of
from studies.compose_budget import PlainPolicy
from studies.compose_estimates import trained_policy
from studies.compose_policy import RESPONSE, Policy, sample, score, token_mask
from studies.compose_run import Settings, rollouts
from studies.compose_task import join, table, verify

GROUPS = 16
E_PROMPTS = 4096
COMPOSED = 5 / 16
"""Share of prompts with two maps, as in training."""
RULES = {"clip_cov": ClipCov, "repo_r": RepoR, "bonus": BonusRule}


def gradient(policy: Policy, total: Tensor) -> Vector:
    """Of a scalar, by parameter."""
    names, parameters = zip(*policy.named_parameters(), strict=True)
    parts = torch.autograd.grad(total, parameters, retain_graph=True)
    return dict(zip(names, parts, strict=True))


def gradient_pair(policy: Policy, P: Vector) -> GradientPair:
    """g_J and g_H of held-out responses, one per prompt."""
    numbers = torch.Generator().manual_seed(7)
    composed = round(COMPOSED * E_PROMPTS)
    prompts = join(
        table(True, True).draw(composed, numbers),
        table(False, True).draw(E_PROMPTS - composed, numbers),
    )
    owner = torch.arange(E_PROMPTS)
    uniforms = torch.rand(RESPONSE, E_PROMPTS, generator=torch.Generator().manual_seed(1007))
    responses, lengths = sample(policy, prompts.tokens, owner, uniforms)
    rewards = verify(prompts[owner], responses).double()
    mask = token_mask(lengths).double()
    logs = score(policy, prompts.tokens, owner, responses, lengths).log_softmax(-1)
    s = logs.gather(2, responses[..., None])[..., 0] * mask
    H = -(logs.exp() * logs).sum(-1) * mask
    scores = Scores(s.detach(), H.detach(), mask.bool())
    f = Functionals("per_sequence", "prefix", mask)
    scored = ScoredBatch(f, scores.logprobs, (scores,), owner)
    # prompts of two maps come first, so that groups in turns have equally many of them
    group = owner % GROUPS

    def by_groups(of_sample: ScoredBatch, *, entropies: bool) -> GradientGroups:
        a, b = cotangents(of_sample)
        held = HeldVectors(P, GROUPS)
        terms = (a * s + b * H if entropies else a * s).sum(1)
        for g in range(GROUPS):
            held.add(g, gradient(policy, terms[group == g].sum()))
        return GradientGroups(held, group, of_sample)

    return GradientPair(
        by_groups(of_reward(scored, rewards), entropies=False),
        by_groups(scored, entropies=True),
        P,
    )


def coming(
    policy: Policy, optimizer: torch.optim.Optimizer, batch: Batch, loss: Tensor
) -> ComingStep:
    """The step that the optimizer would take on a loss."""
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    step = coming_step(cast(LanguagePolicy, PlainPolicy(policy)), optimizer)
    optimizer.zero_grad()
    return step


def as_step(coming_one: ComingStep) -> Step:
    """The same in the form that the frontier takes."""
    return Step(
        direction=coming_one.direction,
        preconditioner={name: x.double() for name, x in coming_one.preconditioner.items()},
        components=coming_one.components,
        token_weights=torch.zeros(1, 1),
        batch="",
        learning_rate=coming_one.learning_rate,
        gradient_norm=1.0,
        clip_factor=1.0,
        matched_by="",
    )


def frontiers(steps: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    """The frontier of vanilla by prompts of U, and the controls at the largest U."""
    policy, optimizer = trained_policy(steps)
    by_size: dict[int, Frontier] = {}
    places: dict[str, Place] = {}
    exact = copy.deepcopy(policy).double()
    for size in sizes:
        settings = Settings(prompts=size, composed=round(COMPOSED * size))
        generators = [torch.Generator().manual_seed(100 + i) for i in range(2)]
        batch = rollouts(policy, steps, settings, *generators)
        plain = coming(policy, optimizer, batch, -(batch.weights * batch.logprobs).sum())
        step = as_step(plain)
        edge = Edge.of_step(gradient_pair(exact, step.preconditioner), step)
        by_size[size] = frontier_of_step(edge, step)
        if size == sizes[-1] and not edge.missing:
            along = edge.gradients.along(step.components["gradient"])
            for name, loss in losses(batch):
                part = coming(policy, optimizer, batch, loss).components["gradient"]
                places[name] = place_part(edge, part, along)
    return {"by_size": by_size, "places": places, "rate": 3e-4}


def losses(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """The loss of half the rate, and of each token control at its default strength."""
    yield "shrunk_step", -0.5 * (batch.weights * batch.logprobs).sum()
    tokens = tokens_of(batch)
    for name, rule in RULES.items():
        built = rule()
        rewritten = built.rewrite(tokens, built.strength)
        loss = -(rewritten.weights.float() * batch.logprobs).sum()
        if rewritten.entropy_weights is not None:
            loss = loss - (rewritten.entropy_weights.float() * batch.entropies).sum()
        yield name, loss
