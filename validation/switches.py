"""Do intervals cover where something decides whether they are shown?

    python -m validation.switches

An interval that is shown or withheld by a statistic of the batch is shown in *selected* batches,
and covers less there if the statistic is correlated with the error. So coverage is measured given
that the interval is printed, on a grid across every switch. The policies are those of `verdict` and
three with responses too long to enumerate (`chains`). A cell that covers less than .92 by more than
two Monte-Carlo errors fails, and so does the command. Cells with an interval in fewer than one
batch in twenty are shown and not judged: no statistic of a batch can tell one that missed a mode
from one of a policy without it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isentrope.estimators import importance
from isentrope.estimators.baseline import cross_fitted_baseline
from isentrope.estimators.entropy_change import EntropyChange, change_of_sample
from isentrope.estimators.functional import Functionals
from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.options import EstimatorOptions
from isentrope.estimators.positions import HIGH, position_classes
from isentrope.estimators.price import Spent, price_of_step
from isentrope.estimators.resampled import coupled_change
from isentrope.estimators.reward_change import reward_change
from isentrope.estimators.sample import ScoredBatch, statistics_of_sample
from isentrope.nouns.choices import PER_OF, Functional
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.chi_square import Divergence
from isentrope.policy.token_statistics import Scores
from validation import verdict
from validation.chains import CHAINS, Chain, derivatives
from validation.origin import write_results

FUNCTIONALS: tuple[Functional, ...] = ("per_token", "per_sequence")
METHODS = ("prefix", "sequence", "doubly-robust")
ROWS = ("flat", "sharp", "rare", "unequal")
"""Policies whose responses are enumerated."""

TARGETS = (0.97, 0.95, 0.93, 0.91, 0.9, 0.89, 0.88, 0.86, 0.83, 0.81, 0.8, 0.79, 0.77)
"""ESS/n of whole responses, around the thresholds .9 and .8."""

LEAST = 0.92
SHOWN = 0.05
"""Share of batches with an interval from which a cell is judged."""
AT_ONCE = 25

Cell = tuple[str, str, str, str]
"""Policy, batch, step, quantity."""


@dataclass
class Tally:
    """Intervals of one cell."""

    inside: int = 0
    printed: int = 0
    batches: int = 0
    above: int = 0

    def add(self, found: Estimate, truth: float) -> None:
        """Count an interval."""
        self.batches += 1
        if found.ci_low == found.ci_low:
            self.printed += 1
            self.inside += found.covers(truth)
            self.above += found.ci_low > truth

    @property
    def coverage(self) -> float:
        """Given that it is printed."""
        return self.inside / self.printed if self.printed else float("nan")

    @property
    def share(self) -> float:
        """Of the batches that have one."""
        return self.printed / self.batches

    @property
    def judged(self) -> bool:
        """Whether enough are printed."""
        return self.printed >= 20 and self.share >= SHOWN

    @property
    def fails(self) -> bool:
        """Whether it covers too little, by more than two Monte-Carlo errors."""
        error = (LEAST * (1 - LEAST) / max(self.printed, 1)) ** 0.5
        return self.judged and self.coverage < LEAST - 2 * error


Batch = tuple[Tensor, Tensor]
"""States and tokens of n responses."""


@dataclass(frozen=True)
class Drawn:
    """The scores of one batch of responses."""

    series: tuple[Scores, ...]
    moved: list[tuple[Scores, Divergence]]
    units: Tensor
    features: Tensor

    def sample(self, functional: str, method: str) -> ScoredBatch:
        """For an estimator."""
        tokens, baseline = self.series[0].mask.double(), None
        if method == "doubly-robust":
            baseline = cross_fitted_baseline(
                self.series[0].entropies, tokens, self.units, functional, features=self.features
            )
        f = Functionals(functional, method, tokens, baseline)  # pyright: ignore
        return ScoredBatch(f, self.series[0].logprobs, self.series, self.units)


class OfChain:
    """Batches of a chain."""

    def __init__(self, name: str, targets: Sequence[float]) -> None:
        self.exact: Chain = CHAINS[name]()
        self.targets = targets
        self.etas = [self.exact.eta_of(target) for target in targets]

    def rows(self, n: int, group: int, seed: int) -> tuple[Batch, Tensor, Tensor]:
        """n responses, their prompt draws, and the uniforms they were drawn from."""
        generator = torch.Generator().manual_seed(1000 * n + seed)
        prompts = torch.randint(len(self.exact.start), (n // group,), generator=generator)
        heights = torch.rand(n, self.exact.longest, generator=generator, dtype=torch.float64)
        prompts = prompts.repeat_interleave(group)
        return self.exact.draw(self.exact.log_p(), prompts, heights), prompts, heights

    def drawn(self, n: int, group: int, seed: int) -> Drawn:
        """One batch."""
        (states, tokens), _, _ = self.rows(n, group, seed)
        moved = [self.exact.moved(eta, states, tokens) for eta in self.etas]
        features = self.exact.log_p()[states.clamp_min(0)]
        return Drawn(self.exact.scores(states, tokens), moved, torch.arange(n) // group, features)


class OfRows:
    """Batches of a policy whose responses are enumerated."""

    def __init__(self, name: str, targets: Sequence[float]) -> None:
        self._study = verdict.Study(name, targets)
        self.exact = self._study.exact
        self.targets, self.etas = targets, self._study.etas

    def drawn(self, n: int, group: int, seed: int) -> Drawn:
        """One batch."""
        self.exact.group = group
        index = self.exact.batch(n, 1000 * n + seed, self._study.probability)
        series = tuple(verdict.rows_of(s, index) for s in self._study.series)
        here = zip(self._study.moved, self._study.divergences(index), strict=True)
        moved = [(verdict.rows_of(s, index), divergence) for (s, _), divergence in here]
        return Drawn(series, moved, self.exact.units(n), self._study.features[index])


def truth_of(exact: Any, etas: Sequence[float]) -> dict[tuple[str, str, int], float]:
    """By functional, quantity and place of η."""
    found: dict[tuple[str, str, int], float] = {}
    for functional in FUNCTIONALS:
        here, (first, second) = exact.truth(functional), exact.orders(functional)
        named = {"value": here, "δ₁": first, "δ₂": second, "η*": abs(first / second)}
        found |= {(functional, name, -1): x for name, x in named.items()}
        for k, eta in enumerate(etas):
            change = exact.truth(functional, eta) - here
            found[functional, "Δ", k] = change
            found[functional, "residual", k] = change - eta * first - eta * eta * second
    return found


SYMBOL = {"per_token": "h", "per_sequence": "ℋ"}


def sweeps(
    name: str, n: int, group: int, batches: int, targets: Sequence[float] = TARGETS
) -> dict[Cell, Tally]:
    """Values and orders at θ, and ΔH and its residual at each step, by every method."""
    of = OfChain(name, targets) if name in CHAINS else OfRows(name, targets)
    truth, cells = truth_of(of.exact, of.etas), {}
    size = f"{n // group} × {group}"
    for start in range(0, batches, AT_ONCE):
        drawn = [of.drawn(n, group, s) for s in range(start, min(start + AT_ONCE, batches))]
        there = [[scores for scores, _ in one.moved] for one in drawn]
        for functional, method in itertools.product(FUNCTIONALS, METHODS):
            samples = [one.sample(functional, method) for one in drawn]
            results = verdict.jackknifed(samples, of.etas, there)
            for one, sample, result in zip(drawn, samples, results, strict=True):
                sweep = change_of_sample(sample, of.etas, one.moved, result=result)
                for quantity, k, found in _of_sweep(sweep):
                    step = "θ" if k < 0 else f"{targets[k]:.2f}"
                    key = name, size, step, f"{quantity} {SYMBOL[functional]} {method}"
                    tally = cells.setdefault(key, Tally())
                    tally.add(found, truth[functional, quantity, k])
    return cells


def _of_sweep(sweep: EntropyChange) -> Iterator[tuple[str, int, Estimate]]:
    assert sweep.first_order
    assert sweep.second_order
    assert sweep.linear_range
    yield "value", -1, sweep.entropy
    yield "δ₁", -1, sweep.first_order
    yield "δ₂", -1, sweep.second_order
    yield "η*", -1, sweep.linear_range
    for k, point in enumerate(sweep.points):
        assert point.residual
        yield "Δ", k, point.change
        yield "residual", k, point.residual


def fresh(
    name: str,
    n: int,
    group: int,
    batches: int,
    targets: Sequence[float] = (0.99, 0.95, 0.9, 0.8, 0.5),
) -> dict[Cell, Tally]:
    """ΔH from fresh responses, where the number of pairs that differ decides on the error."""
    of, cells = OfChain(name, targets), {}
    exact, truth = of.exact, truth_of(of.exact, of.etas)
    tables = [exact.log_p(eta) for eta in of.etas]
    units = torch.arange(n) // group
    for seed in range(batches):
        (states, tokens), prompts, heights = of.rows(n, group, seed)
        here = exact.scores(states, tokens)[0]
        for k, (target, table) in enumerate(zip(targets, tables, strict=True)):
            others = exact.draw(table, prompts, heights)
            there = exact.moved(of.etas[k], *others)[0]
            differ = (others[1] != tokens).any(1)
            for functional in FUNCTIONALS:
                options = EstimatorOptions(PER_OF[functional])
                found = coupled_change(here, there, units, differ, options)
                key = (
                    name,
                    f"{n // group} × {group}",
                    f"{target:.2f}",
                    f"Δ {SYMBOL[functional]} resampled",
                )
                cells.setdefault(key, Tally()).add(found, truth[functional, "Δ", k])
    return cells


FEW = (3, 6, 8, 10, 12, 15, 20, 40)
"""Responses of a batch whose reward is expected to differ, where so many can."""


@dataclass(frozen=True)
class FewRewards:
    """A reward of 1 for a share of the responses that begin with token 1, and 0 for all others.

    Attributes:
        exact: A chain.
        eta: Of its step.
        rate: The share.
    """

    exact: Chain
    eta: float
    rate: float

    @staticmethod
    def beginning(exact: Chain, eta: float) -> float:
        """The probability of token 1 at the start, over the prompts."""
        return float(exact.log_p(eta)[exact.start, 1].exp().mean())

    @classmethod
    def expecting(cls, share: float, exact: Chain, eta: float) -> FewRewards | None:
        """With this expected reward; None where not so many responses begin with token 1."""
        rate = share / cls.beginning(exact, 0.0)
        return None if rate > 1 else cls(exact, eta, rate)

    def rewards(self, tokens: Tensor, heights: Tensor) -> Tensor:
        """(n,) rewards of responses; a fraction of their uniforms decides who is in the share."""
        return ((tokens[:, 0] == 1) & (heights.sum(1).frac() < self.rate)).double()

    @property
    def truth(self) -> dict[str, float]:
        """J, its derivative and its change."""
        start, end = (self.beginning(self.exact, e) for e in (0.0, self.eta))
        slope = derivatives(lambda e: self.beginning(self.exact, e), 4e-3)[0]
        named = {"J": start, "δJ₁": slope, "ΔJ": end - start}
        return {name: self.rate * x for name, x in named.items()}


def few_rewards(name: str, n: int, batches: int) -> dict[Cell, Tally]:
    """J and its changes where about ten responses have another reward than the rest."""
    of, cells = OfChain(name, (0.95,)), {}
    exact, (eta,) = of.exact, of.etas
    for few in FEW:
        rewarded = FewRewards.expecting(few / n, exact, eta)
        if rewarded is None:
            continue
        truth = rewarded.truth
        for seed in range(batches):
            (states, tokens), _, heights = of.rows(n, 1, seed)
            series, moved = exact.scores(states, tokens), exact.moved(eta, states, tokens)
            rewards = rewarded.rewards(tokens, heights)
            f = Functionals("per_token", "prefix", series[0].mask.double())
            sample = ScoredBatch(f, series[0].logprobs, series[:2], torch.arange(n))
            found = reward_change(change_of_sample(sample, [eta], [moved]), rewards)
            assert found.first_order
            named = {"J": found.reward, "δJ₁": found.first_order, "ΔJ": found.points[0].change}
            for quantity, estimate in named.items():
                key = name, f"{n} × 1", f"{few} differ", quantity
                cells.setdefault(key, Tally()).add(estimate, truth[quantity])
    return cells


FROM_ZERO = (1.0, 2.0, 3.0, 4.0, 6.0)
"""The exact δH₁ of the step, in standard errors of a batch."""


@dataclass(frozen=True)
class Prices:
    """What steps spend and earn at classes of positions, whose δH₁ is few errors from zero.

    Attributes:
        exact: A chain.
        functional: ℋ or h.
    """

    exact: Chain
    functional: str

    @cached_property
    def reward(self) -> Tensor:
        """(S, A) that a token earns in a state; a response earns the sum."""
        generator = torch.Generator().manual_seed(7)
        size = self.exact.logits.shape
        shared = torch.randn(1, size[1], generator=generator, dtype=torch.float64)
        return shared + 0.5 * torch.randn(*size, generator=generator, dtype=torch.float64)

    @cached_property
    def classes(self) -> dict[str, Tensor]:
        """(S,) bool; the threshold of a high entropy is the quantile of the policy's tokens."""
        log_p = self.exact.log_p()
        visits, entropy = self.exact.visits(log_p), self.exact.series[0][1]
        order = entropy.argsort()
        below = visits[order].cumsum(0) / visits.sum()
        threshold = entropy[order][int((below < HIGH).sum())]
        first = torch.zeros(len(entropy), dtype=torch.bool)
        first[self.exact.start] = True
        every = torch.ones_like(first)
        return {"whole": every, "first token": first, "high entropy": entropy >= threshold}

    def spent(self, chain: Chain, members: Tensor, eta: float) -> float:
        """F_c at θ + ηv."""
        log_p = chain.log_p(eta)
        visits, entropy = chain.visits(log_p), -(log_p.exp() * log_p).sum(1)
        total = float(visits[members] @ entropy[members])
        return total / float(visits.sum()) if self.functional == "per_token" else total

    def earned(self, chain: Chain, members: Tensor, eta: float) -> float:
        """J where the policy moves at the class alone."""
        log_p = torch.where(members[:, None], chain.log_p(eta), chain.log_p())
        return float(chain.visits(log_p) @ (log_p.exp() * self.reward).sum(1))

    def truth(self, chain: Chain, members: Tensor, eta: float) -> dict[str, float]:
        """Of every number of `Spent` but the share."""
        slope = derivatives(lambda e: self.spent(chain, members, e), 4e-3)[0]
        gain = derivatives(lambda e: self.earned(chain, members, e), 4e-3)[0]
        here = self.spent(chain, members, 0.0)
        return {
            "F": here,
            "spent": eta * slope,
            "ΔF": self.spent(chain, members, eta) - here,
            "earned": eta * gain,
            "for a nat": -gain / slope if slope else float("nan"),
        }

    def sample(self, chain: Chain, batch: Batch, group: int) -> ScoredBatch:
        """With the first derivative."""
        series = chain.scores(*batch)[:2]
        f = Functionals(self.functional, "prefix", series[0].mask.double())  # pyright: ignore
        units = torch.arange(len(batch[0])) // group
        return ScoredBatch(f, series[0].logprobs, series, units)

    def steps(self, n: int, group: int) -> list[Chain]:
        """Chains whose step has each distance of δH₁ from zero, by adding one that sharpens."""
        sharpen = replace(self.exact, v=self.exact.logits)
        generator = torch.Generator().manual_seed(99)
        many = 8000
        prompts = torch.randint(len(self.exact.start), (many // group,), generator=generator)
        size = many, self.exact.longest
        heights = torch.rand(size, generator=generator, dtype=torch.float64)
        place = prompts.repeat_interleave(group)
        batch = self.exact.draw(self.exact.log_p(), place, heights)
        slopes, influences = [], []
        for chain in (self.exact, sharpen):
            sample = self.sample(chain, batch, group)
            one = infinitesimal_jackknife(statistics_of_sample(sample, [], []), sample.prompt_index)
            influences.append(one.influences[1] * (many / n) ** 0.5)
            slopes.append(chain.orders(self.functional)[0])

        def distance(part: float) -> float:
            error = float((influences[0] + part * influences[1]).square().sum().sqrt())
            return (slopes[0] + part * slopes[1]) / error

        zero = -slopes[0] / slopes[1]
        sign = 1 if distance(zero + 1e-3) > 0 else -1
        found = []
        for wanted in FROM_ZERO:
            low, high = 0.0, 1.0
            while distance(zero + sign * high) < wanted and high < 100:
                low, high = high, 2 * high
            for _ in range(40):
                middle = (low + high) / 2
                under = distance(zero + sign * middle) < wanted
                low, high = (middle, high) if under else (low, middle)
            part = zero + sign * low
            found.append(replace(self.exact, v=self.exact.v + part * self.exact.logits))
        return found


def prices(name: str, functional: str, n: int, group: int, batches: int) -> dict[Cell, Tally]:
    """Shares, prices and classes of positions, on steps whose δH₁ is near zero and far from it."""
    of, cells = Prices(CHAINS[name](), functional), {}
    rows = OfChain(name, ())
    for far, chain in zip(FROM_ZERO, of.steps(n, group), strict=True):
        eta = chain.eta_of(0.97)
        truth = {c: of.truth(chain, members, eta) for c, members in of.classes.items()}
        whole = truth["whole"]["spent"]
        for c, values in truth.items():
            values["share"] = values["spent"] / whole if c != "whole" else float("nan")
        for seed in range(batches):
            (states, tokens), _, _ = rows.rows(n, group, seed)
            sample = of.sample(chain, (states, tokens), group)
            moved, divergence = chain.moved(eta, states, tokens)
            after = moved, sample.trust_of_change(moved, divergence)[0]
            kept = of.reward[states.clamp_min(0), tokens.clamp_min(0)]
            rewards = (kept * sample.series[0].mask).sum(1)
            found = priced(sample, eta, rewards, after)
            for c, spent in found.items():
                for quantity, estimate in _of_class(c, spent):
                    key = (
                        name,
                        f"{n // group} × {group}",
                        f"{far:g} se",
                        f"{c}: {quantity} {SYMBOL[functional]}",
                    )
                    cells.setdefault(key, Tally()).add(estimate, truth[c][quantity])
    return cells


def priced(
    sample: ScoredBatch, eta: float, rewards: Tensor, after: tuple[Scores, Any]
) -> dict[str, Spent]:
    """The library's price of the classes that do not depend on rewards."""
    mask = sample.series[0].mask
    lengths, n = mask.sum(1).tolist(), len(mask)
    none = [torch.zeros(1, dtype=torch.long)] * n
    E = Rollouts(none, [torch.zeros(t, dtype=torch.long) for t in lengths], sample.prompt_index)
    t = max(lengths)
    classes = position_classes(E, sample.entropies[:, :t])
    wide = {c: torch.nn.functional.pad(x, (0, mask.shape[1] - t)) for c, x in classes.items()}
    found = price_of_step(sample, eta, wide, rewards, after=after)
    return {"whole": found.whole, **found.at}


def _of_class(name: str, spent: Spent) -> Iterator[tuple[str, Estimate]]:
    assert spent.change
    assert spent.reward
    assert spent.reward_for_a_nat
    yield "F", spent.entropy
    yield "spent", spent.first_order
    yield "ΔF", spent.change
    yield "earned", spent.reward
    yield "for a nat", spent.reward_for_a_nat
    if name != "whole":
        yield "share", spent.share


def studies(batches: int) -> dict[str, list[Callable[[], dict[Cell, Tally]]]]:
    """The rows of each table."""
    size = batches
    weighted = [
        lambda name=name, n=n, g=g: sweeps(name, n, g, size)
        for name, n, g in [
            *((name, 256, 1) for name in (*CHAINS, *ROWS)),
            *(("modes", n, g) for n, g in ((256, 8), (64, 1))),
            ("prompts", 256, 4),
            ("rare", 256, 8),
        ]
    ]
    coupled = [lambda name=name: fresh(name, 256, 1, size // 2) for name in CHAINS]
    rewarded = [lambda n=n: few_rewards("modes", n, size // 2) for n in (64, 256)]
    of_price = [
        lambda name=name, f=f, n=n, g=g: prices(name, f, n, g, size // 2)
        for name, f, n, g in [
            ("modes", "per_sequence", 256, 1),
            ("modes", "per_token", 256, 8),
            ("modes", "per_sequence", 64, 1),
            ("modes", "per_token", 32, 1),
            ("prompts", "per_token", 256, 1),
            ("flash", "per_sequence", 128, 1),
        ]
    ]
    return {
        "ΔH by weights": weighted,
        "ΔH from fresh responses": coupled,
        "Few different rewards": rewarded,
        "Shares, prices and classes of positions": of_price,
    }


def _rows(cells: dict[Cell, Tally]) -> list[str]:
    """One row per policy, batch and quantity; one column per step."""
    steps = list(dict.fromkeys(key[2] for key in cells))
    lines = [
        f"| policy | batch | quantity | {' | '.join(steps)} |",
        f"|{'---|' * (3 + len(steps))}",
    ]
    for row in dict.fromkeys((key[0], key[1], key[3]) for key in cells):
        found = [cells.get((row[0], row[1], step, row[2])) for step in steps]
        lines.append(f"| {' | '.join((*row, *map(_text, found)))} |")
    return lines


def _text(tally: Tally | None) -> str:
    if tally is None:
        return ""
    if tally.printed < 20:
        return f"– ({tally.share:.2f})"
    mark = "**" if tally.fails else ""
    text = f"{mark}{tally.coverage:.3f}{mark} ({tally.share:.2f})"
    return text if tally.judged else f"*{text}*"


def page(tables: dict[str, dict[Cell, Tally]], command: str) -> str:
    """The tables, with what went against us first."""
    every = [(title, key, x) for title, cells in tables.items() for key, x in cells.items()]
    bad = sorted(((x.coverage, key) for _, key, x in every if x.fails))
    judged = [x for _, _, x in every if x.judged]
    said = [f"- {key[0]}, {key[1]}, {key[2]}, {key[3]}: {c:.3f}" for c, key in bad]
    lines = [
        "# Do intervals cover where something decides whether they are shown?",
        "",
        f"`{command}`",
        "",
        "Coverage of the nominal 95 % intervals that are printed, and in brackets the share of",
        "batches in which one is; – where fewer than 20 are. **Bold**: below .92 by more than two",
        "Monte-Carlo errors, which fails. *Italic*: printed in fewer than one batch in twenty, and",
        "not judged: such a batch missed a mode and looks like one of a policy without it.",
        "",
        f"{len(bad)} of {len(judged)} cells that are judged fail{':' if bad else '.'}",
        *([""] if bad else []),
        *said,
    ]
    for title, cells in tables.items():
        lines += ["", f"## {title}", "", *_rows(cells)]
    return "\n".join(lines) + "\n"


def run(batches: int) -> dict[str, dict[Cell, Tally]]:
    """Every table."""
    importance.pareto_khat = lambda _: float("nan")  # decides nothing, and takes half the time
    tables: dict[str, dict[Cell, Tally]] = {}
    for title, parts in studies(batches).items():
        tables[title] = {}
        for part in parts:
            tables[title] |= part()
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("docs/results/switches.md"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    tables = run(args.batches)
    text = page(tables, f"python -m validation.switches --batches {args.batches}")
    write_results(args.out, text)
    print(text)
    sys.exit(any(x.fails for cells in tables.values() for x in cells.values()))


if __name__ == "__main__":
    main()
