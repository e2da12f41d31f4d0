"""Do the intervals of a step's frontier cover, also where a rule decides whether they are shown?

    python -m validation.frontier_coverage

The policies are three chains (`chains`): a rare long mode, prompts of very unequal entropy, and a
rare short mode of high entropy. A response earns the sum of random numbers of its tokens. Gradients
of a batch are sums of the softmax's own derivatives over its tokens, and the truth is visits of
states times advantages, by recursion. The free part of a step (`STEPS`) is P (g + x), with g that
of reward or of entropy and x random; momentum is random, and in some loses as much entropy as the
free part could just give back. What is printed must cover .92, less two Monte-Carlo errors, in
every cell that has an interval in a twentieth of its batches or more.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from isentrope.attribution.frontier.edge import Edge
from isentrope.attribution.frontier.frontier import Frontier, frontier_of_step
from isentrope.attribution.frontier.gradient_products import GradientPair
from isentrope.attribution.gradients.gradient_store import HeldVectors
from isentrope.attribution.gradients.groups import GradientGroups, of_reward, ratio_terms
from isentrope.estimators.entropy import cotangents
from isentrope.estimators.functional import Functionals
from isentrope.estimators.sample import ScoredBatch
from isentrope.nouns.estimate import Estimate
from isentrope.update.step import Step
from validation.chains import CHAINS, Chain
from validation.switches import FUNCTIONALS, SYMBOL, Prices, Tally

SIZES = (32, 64, 128, 256, 512, 1024)
GROUPS = 16

Cell = tuple[str, int, str, str]
"""Policy, responses, step, quantity."""


@dataclass(frozen=True)
class Exact:
    """A chain with a reward, a functional and a step.

    Attributes:
        chain: The policy.
        functional: ℋ or h.
        noise: Of the free part, in lengths of the gradient that it follows.
        follows: 0 for a free part that follows the gradient of reward, 1 for that of entropy.
        spent: What momentum loses of entropy, in shares of the most that the free part could bring.
    """

    chain: Chain
    functional: str
    noise: float
    follows: int = 0
    spent: float = 0.0

    @cached_property
    def reward(self) -> Tensor:
        """(S, A) what a token earns in a state."""
        return Prices(self.chain, self.functional).reward

    @cached_property
    def gradients(self) -> Tensor:
        """(2, S·A) of J and of entropy: visits times advantages, as in a table of values."""
        log_p = self.chain.log_p()
        p = log_p.exp()
        visits = self.chain.visits(log_p)
        entropy = -(p * log_p).sum(1)
        by_state = {
            "reward": visits[:, None] * self.advantages(self.reward),
            "entropy": visits[:, None]
            * (self.advantages(entropy[:, None]) - p * (log_p + entropy[:, None])),
            "length": visits[:, None] * self.advantages(torch.ones(1, 1).double()),
        }
        total = by_state["entropy"]
        if self.functional == "per_token":
            mean = float(visits @ entropy / visits.sum())
            total = (total - mean * by_state["length"]) / visits.sum()
        return torch.stack((by_state["reward"].flatten(), total.flatten()))

    def advantages(self, earned: Tensor) -> Tensor:
        """(S, A) π (Q − V) where every token of a state earns so much."""
        p = self.chain.log_p().exp()
        ahead = torch.zeros(len(p) + 1, dtype=torch.float64)  # the last is the end
        for _ in range(self.chain.longest):
            ahead[:-1] = (p * (earned + ahead[self.chain.follow])).sum(1)
        return p * (earned + ahead[self.chain.follow] - ahead[:-1, None])

    @cached_property
    def step(self) -> Step:
        """P, momentum and the free part."""
        generator = torch.Generator().manual_seed(9)
        size = self.gradients.shape[1]
        P = 0.1 + torch.rand(size, generator=generator, dtype=torch.float64)
        random = torch.randn(2, size, generator=generator, dtype=torch.float64)
        random /= (P * random.square()).sum(1, keepdim=True).sqrt()
        lengths = (P * self.gradients.square()).sum(1, keepdim=True).sqrt()
        units = self.gradients / lengths
        length = float(lengths[0])
        free = units[self.follows] + self.noise * random[0]
        free *= length * math.hypot(1, self.noise) / float((P * free.square()).sum().sqrt())
        momentum = 0.3 * length * random[1]
        if self.spent:
            most = length * math.hypot(1, self.noise)
            momentum = -self.spent * most * units[1]
        return self.step_of(P, P * momentum, P * free)

    def step_of(self, P: Tensor, momentum: Tensor, free: Tensor) -> Step:
        """A step of two parts."""
        size = len(P)
        parts = {"momentum": momentum, "decay": torch.zeros(size), "gradient": free}
        vectors = {name: {"logits": part.double()} for name, part in parts.items()}
        return Step(
            direction={"logits": momentum + free},
            preconditioner={"logits": P},
            components=vectors,
            token_weights=torch.zeros(1, 1),
            batch="",
            learning_rate=1.0,
            gradient_norm=1.0,
            clip_factor=1.0,
            matched_by="",
        )

    @cached_property
    def truth(self) -> dict[str, float]:
        """The numbers of the frontier of the one step."""
        return self.truth_of(self.step)

    def truth_of(self, step: Step) -> dict[str, float]:
        """The numbers of the frontier, by the angle of the edge."""
        P = step.preconditioner["logits"]
        free = step.components["gradient"]["logits"]
        fixed = self.gradients @ step.components["momentum"]["logits"]
        reward, entropy = (self.gradients @ free).tolist()
        radius = float((free.square() / P).sum())
        (a, s), (_, b) = (self.gradients @ (P[:, None] * self.gradients.T)).tolist()
        reach = [math.sqrt(x * radius) for x in (a, b)]
        angle = math.acos(s / math.sqrt(a * b))

        def best(change: float) -> float:
            turn = math.acos(change / reach[1])
            return reach[0] * (1.0 if turn > angle else math.cos(angle - turn))

        turn = math.acos(min(1.0, entropy / reach[1]))  # rounding
        price = math.sin(angle - turn) / math.sin(turn) * reach[0] / reach[1]
        square = (b * reward**2 - 2 * s * reward * entropy + a * entropy**2) / (a * b - s * s)
        possible = abs(float(fixed[1])) < reach[1]
        return {
            "reward_reach": reach[0],
            "entropy_reach": reach[1],
            "cosine": math.cos(angle),
            "centre_reward": float(fixed[0]),
            "centre_entropy": float(fixed[1]),
            "reward": reward + float(fixed[0]),
            "entropy": entropy + float(fixed[1]),
            "best": best(-float(fixed[1])) + float(fixed[0]) if possible else math.nan,
            "best_at_step": best(entropy) + float(fixed[0]),
            "lost": best(entropy) - reward,
            "reward_for_a_nat": 0.0 if turn > angle else price,
            "reached": min(1.0, math.sqrt(square / radius)),  # rounding
        }

    def drawn(
        self, size: int, generator: torch.Generator
    ) -> tuple[ScoredBatch, Tensor, Tensor, Tensor]:
        """A batch scored at θ, with its states, tokens and rewards."""
        chain = self.chain
        prompts = torch.randint(len(chain.start), (size,), generator=generator)
        heights = torch.rand(size, chain.longest, generator=generator, dtype=torch.float64)
        states, tokens = chain.draw(chain.log_p(), prompts, heights)
        mask = states >= 0
        earned = self.reward[states.clamp_min(0), tokens.clamp_min(0)]
        rewards = torch.where(mask, earned, 0.0).sum(1)
        series = chain.scores(states, tokens)[:1]
        f = Functionals(self.functional, "prefix", mask.double())  # pyright: ignore
        sample = ScoredBatch(f, series[0].logprobs, series, torch.arange(size))
        return sample, states, tokens, rewards

    def gradient_pair(self, size: int, seed: int) -> GradientPair:
        """Both gradients from one batch of responses; the same for every step."""
        generator = torch.Generator().manual_seed(1000 * size + seed)
        sample, states, tokens, rewards = self.drawn(size, generator)
        of_entropy = self.by_groups(sample, states, tokens)
        reward = self.by_groups(of_reward(sample, rewards), states, tokens)
        return GradientPair(reward, of_entropy, self.step.preconditioner)

    def frontier(self, pair: GradientPair) -> Frontier:
        """That of the step."""
        return frontier_of_step(Edge.of_step(pair, self.step), self.step)

    def by_groups(self, sample: ScoredBatch, states: Tensor, tokens: Tensor) -> GradientGroups:
        """A gradient in parts, from ∂s = e − π and ∂H = −π (log π + H) at every token."""
        size = len(states)
        group = torch.arange(size) * GROUPS // size
        of_scores, of_entropies = cotangents(sample)
        parts = self.sums(of_scores, of_entropies, states, tokens, group)
        terms = ratio_terms(sample, group) if hasattr(sample.functional, "functional") else None
        if terms is not None:
            (of_h, of_n), of_length = terms
            length = self.sums(of_length, torch.zeros_like(of_length), states, tokens, group).sum(0)
            parts = parts - of_h[:, None] * length - of_n[:, None] * parts.sum(0)
        held = HeldVectors({"logits": torch.zeros(parts.shape[1], dtype=torch.float64)}, GROUPS)
        for g, part in enumerate(parts):
            held.add(g, {"logits": part})
        return GradientGroups(held, group, sample)

    def sums(
        self,
        of_scores: Tensor,
        of_entropies: Tensor,
        states: Tensor,
        tokens: Tensor,
        group: Tensor,
    ) -> Tensor:
        """(G, S·A) Σ (a ∂s + b ∂H) over the tokens of each group."""
        log_p = self.chain.log_p()
        p = log_p.exp()
        bend = -p * (log_p - (p * log_p).sum(1, keepdim=True))
        mask = states >= 0
        where = (group[:, None].expand_as(states)[mask], states[mask])
        shape = (GROUPS, *p.shape)
        chosen = torch.zeros(shape, dtype=torch.float64)
        chosen.index_put_((*where, tokens[mask]), of_scores[mask], accumulate=True)
        visits = torch.zeros(shape[:2], dtype=torch.float64)
        visits.index_put_(where, of_scores[mask], accumulate=True)
        entropies = torch.zeros(shape[:2], dtype=torch.float64)
        entropies.index_put_(where, of_entropies[mask], accumulate=True)
        return (chosen - visits[..., None] * p + entropies[..., None] * bend).flatten(1)


STEPS: dict[str, dict[str, Any]] = {
    "g_J": {"noise": 0.0},
    "g_J + x": {"noise": 1.0},
    "g_J + 3x": {"noise": 3.0},
    "g_J + x, momentum loses .8": {"noise": 1.0, "spent": 0.8},
    "g_J + x, momentum loses .95": {"noise": 1.0, "spent": 0.95},
    "g_J + x, momentum loses 1": {"noise": 1.0, "spent": 1.0},
    "g_J + x, momentum loses 1.1": {"noise": 1.0, "spent": 1.1},
    "g_H + .3x": {"noise": 0.3, "follows": 1},
    "g_H + x": {"noise": 1.0, "follows": 1},
}
"""By what the free part follows, with x as long as that times a number, and what momentum loses of
the most entropy that the free part could bring."""


def coverage(chains: list[str], batches: int, sizes: tuple[int, ...]) -> dict[Cell, Tally]:
    """Intervals of every policy, size, step and number."""
    cells: dict[Cell, Tally] = {}
    for name in chains:
        for functional in FUNCTIONALS:
            chain = CHAINS[name]()
            steps = {step: Exact(chain, functional, **dials) for step, dials in STEPS.items()}
            first = steps["g_J"]
            for size in sizes:
                for seed in range(batches):
                    pair = first.gradient_pair(size, seed)
                    for step, exact in steps.items():
                        edge = exact.frontier(pair)
                        for number, truth in exact.truth.items():
                            key = (name, size, step, f"{number} {SYMBOL[functional]}")
                            cells.setdefault(key, Tally()).add(getattr(edge, number), truth)
    return cells


def main() -> None:
    """Print the cells that fail, and the lowest coverage of each number."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--chains", nargs="+", choices=list(CHAINS), default=list(CHAINS))
    options = parser.parse_args()
    cells = coverage(options.chains, options.batches, tuple(options.sizes))
    judged = {key: tally for key, tally in cells.items() if tally.judged}
    numbers = [field.name for field in fields(Frontier) if field.type in (Estimate, "Estimate")]
    for number in numbers:
        here = {key: t for key, t in judged.items() if key[3].split()[0] == number}
        if here:
            key = min(here, key=lambda k: here[k].coverage)
            print(f"{number:18} lowest {here[key].coverage:.3f} of {here[key].printed} in {key}")
    failing = {key: tally for key, tally in judged.items() if tally.fails}
    for key, tally in failing.items():
        print("FAILS", key, f"{tally.coverage:.3f} of {tally.printed} ({tally.share:.2f} shown)")
    print(f"{len(failing)} of {len(judged)} judged cells fail")
    sys.exit(bool(failing))


if __name__ == "__main__":
    main()
