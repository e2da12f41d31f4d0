"""Influence against a difference that is not first order: H(θ + η(b + v_i)) − H(θ + ηb).

    python -m studies.mixed_evaluation --run runs/demo

Fixed before it ran. Subjects: steps 20 and 40 of the demo's toy; E of 256 held-out responses, U of
16 prompts × 8, float64, the default estimator. Of the 128 sequences of U the 16 with the largest
|δH_i| and 16 drawn from the others (seed 0). Arms, per sequence: b = v_base, the step without this
batch (momentum and decay), and b = v − v_i, the step without this sequence; at η of training and
at ten times it. All evaluations are on one E, so errors are of differences within its prompts.

Reading: the gap is mixed_i − ηδH_i. Influence stands where the share of the variance of mixed_i
that ηδH_i leaves, Σ gap² / Σ mixed², is below .01, and where the slope of mixed_i on ηδH_i is
within .05 of 1; else the page says where it fails. The gap that second order predicts is
η²(bᵀ∇²H v_i + v_iᵀ∇²H v_i / 2), linear in η beside the influence, so the relative gap should grow
tenfold with η. Stopping: once. Writes docs/results/mixed_evaluation.md. Ten minutes on one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import isentrope as ise
from isentrope.nouns.vectors import Vector, axpy, multiply
from isentrope.policy.gradient import weighted_gradient
from isentrope.verbs.batches import at_precision
from studies.command import demo_folder
from studies.theory_policies import write_page
from studies.toy_attribution import configured, prepared

STEPS = (20, 40)
B_E = 256
B_U = 16
LARGEST = 16
OTHERS = 16
FACTORS = (1.0, 10.0)
"""Rates, as multiples of that of training."""


@dataclass(frozen=True)
class Comparison:
    """Sequences of one checkpoint, base and rate.

    Attributes:
        predicted: (n,) ηδH_i.
        mixed: (n,) H(θ + η(b + v_i)) − H(θ + ηb).
        errors: (n,) standard error of the gap over the prompts of E.
    """

    predicted: Tensor
    mixed: Tensor
    errors: Tensor

    @property
    def slope(self) -> float:
        """Of mixed on predicted, through 0."""
        return float(self.mixed @ self.predicted / self.predicted.square().sum())

    @property
    def left(self) -> float:
        """Σ gap² / Σ mixed²."""
        return float((self.mixed - self.predicted).square().sum() / self.mixed.square().sum())

    @property
    def beyond(self) -> int:
        """How many gaps are larger than three of their errors."""
        return int(((self.mixed - self.predicted).abs() > 3 * self.errors).sum())

    @property
    def ranks(self) -> float:
        """Rank correlation."""
        a, b = (x.argsort().argsort().double() for x in (self.predicted, self.mixed))
        return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


def part_of(ready, sequence: int) -> Vector:
    """v_i, the part of one sequence in the step."""
    step = ready.step
    weights = step.token_weights[sequence : sequence + 1]
    gradient = weighted_gradient(ready.policy, ready.U.select([sequence]), weights)
    return multiply(step.preconditioner, gradient)


def compare(policy, E, bases: list[Vector], parts: list[Vector], rate: float) -> Comparison:
    """Mixed evaluations along parts of a step, each from its base, beside their first order."""
    firsts = [first_order(policy, E, part) for part in parts]
    return compare_with(policy, E, bases, parts, firsts, rate)


def first_order(policy, E, part: Vector):
    """The derivative along a part, which is the same from every base and at every rate."""
    return ise.entropy_change(policy, E, part, [], order=1)


def compare_with(policy, E, bases: list[Vector], parts, firsts, rate: float) -> Comparison:
    """Mixed evaluations beside first orders that are there; a base that stays is evaluated once."""
    name = f"sweep[{rate:g}].delta_h"
    rows = []
    last: Vector | None = None
    for base, part, first in zip(bases, parts, firsts, strict=True):
        if base is not last:
            without = ise.entropy_change(policy, E, base, [rate], order=0)
            last = base
        with_part = ise.entropy_change(policy, E, axpy(1, part, base), [rate], order=0)
        gap = with_part.influences[name] - without.influences[name]
        gap = gap - rate * first.influences["first_order"]
        mixed = with_part.points[0].change.value - without.points[0].change.value
        assert first.first_order is not None
        rows.append((rate * first.first_order.value, mixed, float(gap.square().sum().sqrt())))
    predicted, mixed, errors = torch.tensor(rows, dtype=torch.float64).T
    return Comparison(predicted, mixed, errors)


def chosen(influences: Tensor) -> Tensor:
    """The sequences with the largest |δH_i|, and some of the others."""
    order = influences.abs().argsort(descending=True)
    rest = order[LARGEST:]
    picked = torch.randperm(len(rest), generator=torch.Generator().manual_seed(0))[:OTHERS]
    return torch.cat([order[:LARGEST], rest[picked]])


def lines(path: Path, number: int) -> Iterator[str]:
    """A row of the table per base and rate."""
    config = configured(path, B_E, B_U)
    config = config.model_copy(
        update={"precision": config.precision.model_copy(update={"runtime_dtype": "float64"})}
    )
    ready = prepared(config)
    with at_precision(ready.policy, config.precision.measuring):
        step = ready.step
        found = ise.influence(ready.policy, ready.E, ready.U, step, tokens=False)
        rows = chosen(found.per_sequence)
        parts = [part_of(ready, int(i)) for i in rows]
        firsts = [first_order(ready.policy, ready.E, part) for part in parts]
        arms = {
            "v_base": [step.baseline] * len(parts),
            "v − v_i": [axpy(-1, part, step.direction) for part in parts],
        }
        for name, bases in arms.items():
            for factor in FACTORS:
                rate = factor * step.learning_rate
                result = compare_with(ready.policy, ready.E, bases, parts, firsts, rate)
                own = rate * found.per_sequence[rows].double()
                apart = float((result.predicted - own).abs().max() / own.abs().max())
                total = float((result.mixed - result.predicted).sum() / result.predicted.sum())
                yield (
                    f"| {number} | {name} | {rate:g} | {result.slope:.3f} | {result.left:.1e} | "
                    f"{result.ranks:.3f} | {result.beyond} of {len(rows)} | {total:+.3f} | "
                    f"{apart:.0e} |"
                )


HEAD = (
    "| step | b | η | slope | Σ gap² / Σ mixed² | rank correlation | gaps beyond 3 errors | "
    "Σ gap / Σ ηδH_i | influence against the derivative along v_i |\n" + "|---" * 9 + "|"
)


def main() -> None:
    """Write the table."""
    folder = demo_folder(__doc__)
    rows = [HEAD]
    for number in STEPS:
        for row in lines(folder / "training_state" / f"step_{number}", number):
            rows.append(row)
            print(row, flush=True)
    write_page("mixed_evaluation", "\n".join(rows))


if __name__ == "__main__":
    main()
