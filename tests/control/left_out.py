"""Steps and predictions of <g_H, v> from the same responses of an enumerated policy."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope import Rollouts, score
from isentrope.control.gradients import ControlSample, gradients_of_rows, slope_along
from isentrope.control.leave_one_out import read_half
from isentrope.nouns.choices import Per
from isentrope.nouns.vectors import dot, multiply
from isentrope.oracle import ExactPolicy
from isentrope.probe.coming_step import ComingStep
from tests import cases

GROUPS, SIZE = 8, 8


def rewards_of(exact: ExactPolicy) -> Tensor:
    """(n,) how often token 2 occurs in a response, less its first token."""
    return torch.tensor(
        [float((r == 2).sum() - r[0]) for r in exact.rollouts.response_ids]
    ).double()


def drawn(exact: ExactPolicy, rewards: Tensor, seed: int) -> Rollouts:
    """One batch of `draws`."""
    return next(draws(exact, rewards, [seed]))


def draws(exact: ExactPolicy, rewards: Tensor, seeds: Iterable[int]) -> Iterator[Rollouts]:
    """Per seed GROUPS prompts with SIZE responses each, and c = A/n of Dr. GRPO for every token."""
    chances, entropies = exact.probabilities(), score(exact.policy, exact.rollouts).entropies
    for seed in seeds:
        yield _drawn(exact, rewards, seed, chances, entropies)


def _drawn(
    exact: ExactPolicy, rewards: Tensor, seed: int, chances: Tensor, entropies: Tensor
) -> Rollouts:
    generator, prompt = torch.Generator().manual_seed(seed), exact.rollouts.prompt_index
    rows = []
    for _ in range(GROUPS):
        p = int(torch.randint(exact.n_prompts, (1,), generator=generator))
        of_prompt = chances * (prompt == p)
        rows.append(torch.multinomial(of_prompt, SIZE, replacement=True, generator=generator))
    index = torch.cat(rows)
    earned = rewards[index].view(GROUPS, SIZE)
    advantages = (earned - earned.mean(1, keepdim=True)).flatten() / len(index)
    E = exact.rollouts.select(index)
    lengths = E.lengths.tolist()
    return E.with_columns(
        prompt_index=torch.arange(GROUPS).repeat_interleave(SIZE),
        sampler_entropies=[row[:t] for row, t in zip(entropies[index], lengths, strict=True)],
        token_weights=[x.expand(t) for x, t in zip(advantages, lengths, strict=True)],
        rewards=earned.flatten(),
    )


@dataclass(frozen=True)
class Prediction:
    """<g_H, v> of one batch: true, with each prompt left out, and plainly."""

    truth: float
    left_out: float
    plain: float


def predictions(exact: ExactPolicy, per: Per, n: int) -> Iterator[Prediction]:
    """Predict the steps of many batches of one policy."""
    policy, rewards = exact.policy, rewards_of(exact)
    P = {n: x.abs() + 0.1 for n, x in cases.direction(policy, 5).items()}
    none = {n: torch.zeros_like(x) for n, x in policy.theta.items()}
    g_H = exact.entropy_gradient(per)
    for U in draws(exact, rewards, range(n)):
        weights = U.padded("token_weights"), None
        (of_loss,) = gradients_of_rows(policy, U, torch.arange(len(U)), [weights])
        v = multiply(P, of_loss)
        parts = {"momentum": none, "decay": none, "gradient": v}
        coming = ComingStep(parts, P, 1.0)
        sample = ControlSample(U, f"per_{per}")
        halves = [
            read_half(policy, sample.select(rows), coming, 1.0, len(U))
            for rows in torch.arange(len(U)).tensor_split(2)
        ]
        along = [(along_v, slope_along(gradients, v)) for gradients, along_v in halves]
        left_out, plain = (sum(float(x.sum()) for x in of) / 2 for of in zip(*along, strict=True))
        yield Prediction(dot(g_H, v), left_out, plain)


def ratio(predicted: Tensor, truth: Tensor) -> tuple[float, float]:
    """Σ predicted / Σ true and its jackknife error over draws."""
    whole = float(predicted.sum() / truth.sum())
    without = (predicted.sum() - predicted) / (truth.sum() - truth)
    n = len(truth)
    return whole, float(((n - 1) / n * (without - without.mean()).square().sum()).sqrt())
