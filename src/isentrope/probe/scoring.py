"""An E mini-batch, drawn, and scored before and after a step by all processes of a run.

Each process draws and scores a share; where the base is sharded all take part in every pass, and
each has the whole (`Policy.share_work`).

    before the step    scores at θ and their derivatives along v = momentum + decay + gradient, and
                       + control where the step is corrected
    after the step     scores at θ' = θ + ηv, on the same samples

A model whose derivatives are wrong (DoRA detaches a norm), or that has none, is scored without
them: ΔH needs the scores alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from isentrope.estimators.functional import Functionals
from isentrope.estimators.positions import position_classes
from isentrope.estimators.sample import ScoredBatch, cotangents
from isentrope.estimators.sampler_match import match_sampler
from isentrope.models.architecture import UnsupportedModelError, derivative_of_scores
from isentrope.nouns.rollouts import Rollouts, concatenate
from isentrope.nouns.vectors import Vector
from isentrope.parallel.ranks import sum_over_processes
from isentrope.policy.chi_square import Divergence, score_moved
from isentrope.policy.derivative_guard import DerivativeError
from isentrope.policy.gradient import score_jvp, weighted_gradient
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score, score_along
from isentrope.policy.token_statistics import Scores
from isentrope.probe.guard import on_every_process
from isentrope.probe.options import ProbeOptions
from isentrope.sampling.draw import sample_responses
from isentrope.sampling.generate import rollouts_of
from isentrope.sampling.prompts import PromptLike, as_prompts, require_room
from isentrope.system.processes import gather, rank, world_size


@dataclass(frozen=True)
class ScoredBefore:
    """An E mini-batch scored before a step.

    Attributes:
        eta: Learning rate of the step.
        share: This process's share of the rollouts, or all of them.
        sample: The whole mini-batch at θ, with its derivatives along the step.
        slopes: Derivatives of the scores by component of v, those that are not zero; empty where
            they are withheld.
        withheld: Why the model gives no derivatives; empty where it gives some.
        divergence: How far θ + ηv moves each distribution.
        rewards: (n,) of the whole mini-batch; None where it has none.
        classes: (n, t) positions by class, with rewards; an E of one response per prompt has no
            solved prompts.
    """

    eta: float
    share: Rollouts
    sample: ScoredBatch
    slopes: dict[str, Scores]
    withheld: str
    divergence: Divergence
    rewards: Tensor | None
    classes: dict[str, Tensor]


def rows_of_process(policy: Policy, size: int) -> Tensor:
    """The rows of a mini-batch that this process draws and scores, as a slice of 0 .. size − 1."""
    rows = torch.arange(size)
    return rows if policy.sharded else rows.tensor_split(world_size())[rank()]


def draw_share(
    policy: Policy,
    prompts: Sequence[PromptLike],
    size: int,
    max_new_tokens: int,
    generator: torch.Generator,
    batch_size: int = 64,
) -> Rollouts:
    """Draw this process's part of an E mini-batch, which is the same however it is shared.

    Args:
        policy: The policy at θ.
        prompts: Those that the mini-batch is drawn from, with replacement.
        size: Prompts of the whole mini-batch.
        max_new_tokens: Longest response in tokens.
        generator: Fixes prompts and tokens.
        batch_size: Sequences sampled at a time on this process.

    Returns:
        The rows `rows_of_process`, one response per prompt.

    Raises:
        ValueError: If there are more processes than prompts, or a prompt leaves no room.
    """
    if size < world_size():
        raise ValueError(f"{size} sequences cannot be shared by {world_size()} processes.")
    draws = torch.randint(len(prompts), (size,), generator=generator)
    uniforms = torch.rand(size, max_new_tokens, generator=generator, dtype=torch.float64)
    chosen = as_prompts(policy, [prompts[i] for i in draws.tolist()])
    require_room(policy, chosen, max_new_tokens)
    rows = rows_of_process(policy, size)
    share = [chosen[i] for i in rows.tolist()]
    ids = [torch.tensor(prompt.token_ids) for prompt in share]
    drawn = on_every_process(
        policy.sharded,
        lambda: sample_responses(policy, ids, uniforms[rows], max_new_tokens, batch_size),
    )
    return rollouts_of(policy, share, torch.arange(len(share)), **drawn._asdict())


def look_ahead(
    policy: Policy,
    share: Rollouts,
    components: Mapping[str, Vector],
    eta: float,
    options: ProbeOptions,
    withheld: str = "",
) -> ScoredBefore:
    """Score an E mini-batch at θ, and its derivatives along the step; every process must call this.

    Args:
        policy: The policy at θ.
        share: This process's share of the mini-batch, one response per prompt.
        components: Parts of v that are not zero, at least one.
        eta: Learning rate of the step, at which the weights are judged.
        options: Which entropy is read, how, and whether to second order.
        withheld: Why an earlier mini-batch has no derivatives: none are tried.

    Returns:
        The scored mini-batch, the same on every process but for `share`.
    """
    v: Vector = {
        n: torch.stack([part[n].double() for part in components.values()]).sum(0)
        for n in policy.names
    }
    score_share = partial(_score_share, policy, share, components, v, eta, options, withheld)
    cause, shares = on_every_process(policy.sharded, score_share)
    withheld = next(filter(None, gather(cause)), "")
    base, *series = _join_shares(policy, shares[:3] if withheld else shares)
    moments = series[:2]
    slopes = series[2 : 2 + len(components)]
    second = series[2 + len(components) :]
    along_step = [sum_of_scores(slopes)] if slopes else []
    batch = share if policy.sharded else concatenate(gather(share))
    classes: dict[str, Tensor] = {}
    if batch.rewards is not None:
        classes = position_classes(  # without rewards: classes of positions, none of prompts
            batch.with_columns(rewards=None),
            base.entropies,
            options.position_pattern,
            policy.tokenizer,
        )
    return ScoredBefore(
        eta=eta,
        share=share,
        sample=ScoredBatch(
            Functionals(options.functional, options.method, base.mask.double()),
            batch.padded("sampler_logprobs"),
            (base, *along_step, *second),
            torch.arange(len(batch)),
            match_sampler(policy, batch, base),
        ),
        slopes=dict(zip(components, slopes, strict=False)),
        withheld=withheld,
        divergence=Divergence(*(torch.stack((x.logprobs, x.entropies), 2) for x in moments)),
        rewards=batch.rewards,
        classes=classes,
    )


def _score_share(
    policy: Policy,
    share: Rollouts,
    components: Mapping[str, Vector],
    v: Vector,
    eta: float,
    options: ProbeOptions,
    withheld: str,
) -> tuple[str, list[Scores]]:
    """What one process computes of its share of an E mini-batch.

    Args:
        policy: The policy at θ.
        share: The share.
        components: Parts of v.
        v: The step.
        eta: Its learning rate.
        options: Whether to second order.
        withheld: Why no derivatives are tried; empty where they are.

    Returns:
        Why there are no derivatives; scores at θ, χ² and κ, ρ_2 and ρ_4 at θ + ηv; derivatives.
    """
    cause = withheld
    if cause:
        series = [score(policy, share)]
    else:
        curved = v if options.second_order else None
        cause, series = _differentiate(policy, share, [*components.values()], curved)
    base, *derivatives = series
    policy.require_own_logits(share, base)
    (moved_scores,) = score_moved(policy, share, v, [eta], remainder=True)
    if moved_scores is None:  # nowhere finite
        jumps = torch.zeros(*base.mask.shape, 2).double()
        jumps[base.mask] = torch.inf
        moments = [jumps, jumps]
    else:
        _, divergence = moved_scores
        moments = [divergence.jumps, cast(Tensor, divergence.remainder)]
    pairs = [Scores(x[..., 0], x[..., 1], base.mask) for x in moments]
    return cause, [base, *pairs, *derivatives]


def _differentiate(
    policy: Policy, share: Rollouts, directions: Sequence[Vector], curved: Vector | None
) -> tuple[str, list[Scores]]:
    """Scores at θ with their slopes along directions, and ∂² along one more where it is given.

    Returns:
        Why there are no derivatives, empty where there are some; and the scores at θ, alone then.
    """
    advice = ""
    try:
        series = [*score_jvp(policy, share, directions)]
        if curved is not None:
            advice = " The first order alone is right: set second_order=False."
            series += score_along(policy, share, curved, 2)[2:]
        return "", series
    except (DerivativeError, UnsupportedModelError) as error:
        return error.cause + advice, [score(policy, share)]


def sum_of_scores(parts: Sequence[Scores]) -> Scores:
    """Scores added up, token by token."""
    s = torch.stack([x.logprobs for x in parts]).sum(0)
    return Scores(s, torch.stack([x.entropies for x in parts]).sum(0), parts[0].mask)


def gradient_of_reading(policy: Policy, before: ScoredBefore) -> Vector:
    """G = ∂F of the mini-batch of a reading, by one backward pass; every process must call this.

    Args:
        policy: The policy at θ.
        before: The mini-batch, scored at θ.

    Returns:
        The gradient by parameter name, float32, the same on every process.
    """
    rows = rows_of_process(policy, len(before.sample.prompt_index))
    t = int(before.share.lengths.max())
    a, b = (x[rows, :t] for x in cotangents(before.sample))

    def differentiate() -> Vector:
        with derivative_of_scores(policy.model):
            return weighted_gradient(policy, before.share, a, b)

    gradient = on_every_process(policy.sharded, differentiate)
    if not policy.sharded:
        sum_over_processes(gradient.values())
    return {name: x.float() for name, x in gradient.items()}


def look_back(policy: Policy, before: ScoredBefore) -> Scores:
    """Score the same mini-batch at θ'; every process must call this.

    Returns:
        Scores of the whole mini-batch.
    """
    scores = on_every_process(policy.sharded, lambda: score(policy, before.share))
    return _join_shares(policy, [scores])[0]


def _join_shares(policy: Policy, parts: list[Scores]) -> list[Scores]:
    """The scores of the whole mini-batch, padded to one width."""
    if policy.sharded:
        return parts
    shares = gather([(s.logprobs, s.entropies, s.mask) for s in parts])

    def join(tensors: Sequence[Tensor]) -> Tensor:
        return pad_sequence([row for tensor in tensors for row in tensor], batch_first=True)

    return [
        Scores(*map(join, zip(*of_processes, strict=True)))
        for of_processes in zip(*shares, strict=True)
    ]
