"""Are the estimators right? Bias, spread and interval coverage against the exact oracle.

For three small policies (a softmax table, a tiny Qwen2, a tiny Llama) whose responses can all be
enumerated, draws many E-batches of n = 256 and compares every estimator with the exact answer:

    python -m validation.coverage --batches 2000 --out docs/results/coverage.md

and for two on which few responses carry the change (`hard_policies`), with `--policies rare
unequal`, from eight responses per prompt draw with `--group 8`.

Columns: `bias z` is (mean of the estimates − truth) over the standard error of that mean;
`coverage` the share of nominal 95 % intervals that contain the truth; `MSE ÷ sequence` the mean
squared error relative to one self-normalised weight a sequence, on the same batches.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch

from isentrope.estimators.baseline import cross_fitted_baseline
from isentrope.estimators.entropy_change import change_of_sample
from isentrope.estimators.functional import Functionals
from isentrope.estimators.options import EstimatorOptions
from isentrope.estimators.resampled import coupled_change
from isentrope.estimators.sample import ScoredBatch
from isentrope.nouns.choices import FUNCTIONAL_OF, PER_OF, Functional
from isentrope.policy.chi_square import Divergence, score_moved
from isentrope.policy.scoring import score, score_along
from isentrope.policy.token_statistics import Scores
from tests import cases
from validation import hard_policies
from validation.origin import write_results

METHODS = ("sequence", "prefix", "doubly-robust", "resampled")
ETAS = {
    "table": (1e-3, 0.3, 0.6),
    "qwen2": (1e-3, 0.15, 0.3),
    "llama": (1e-3, 0.15, 0.3),
    "rare": (1e-3, 0.28, 0.47),
    "unequal": (1e-3, 0.1, 0.2),
}
QUANTITIES = ("entropy", "first order", "second order", "small η", "middle η", "large η")


@dataclass
class Enumerated:
    """All responses of one policy, scored at θ (with derivatives) and at each θ + ηv."""

    name: str
    group: int = 1

    def __post_init__(self) -> None:
        hard = self.name in hard_policies.HARD
        self.exact = hard_policies.exact(self.name) if hard else cases.exact(self.name)
        self.v = cases.direction(self.exact.policy)
        policy, rollouts = self.exact.policy, self.exact.rollouts
        self.etas = ETAS[self.name]
        self.series = score_along(policy, rollouts, self.v, 2)
        self.moved = [x for x in score_moved(policy, rollouts, self.v, self.etas) if x is not None]
        self.features = score(policy, rollouts, features=8).features

    def truth(self, functional: Functional) -> list[float]:
        per = PER_OF[functional]
        first, second = self.exact.derivatives(self.v, per)
        changes = [self.exact.entropy_change(self.v, eta, per) for eta in self.etas]
        return [self.exact.entropy(per), first, second, *changes]

    def estimates(self, functional: Functional, method: str, n: int, seed: int) -> list:
        """Estimates of QUANTITIES on one batch of n, and its ESS/n by step size."""
        index = self.draw(n, seed, _probabilities(self.series[0]))
        units = torch.arange(n) // self.group
        if method == "resampled":
            here = rows_of(self.series[0], index)
            out = [None] * 3
            for moved, _ in self.moved:
                other = self.draw(n, seed, _probabilities(moved))
                there = rows_of(moved, other)
                out.append(
                    coupled_change(
                        here, there, units, other != index, EstimatorOptions(PER_OF[functional])
                    )
                )
            return out
        sample = self.sample(functional, method, index)
        moved = [(rows_of(s, index), Divergence(d.jumps[index])) for s, d in self.moved]
        sweep = change_of_sample(sample, self.etas, moved)
        changes = [p.change for p in sweep.points]
        self.ess = [p.trust.ess_whole / n for p in sweep.points]
        return [sweep.entropy, sweep.first_order, sweep.second_order, *changes]

    def draw(self, n: int, seed: int, probabilities: torch.Tensor | None = None) -> torch.Tensor:
        """Rows of n responses, the same for the same seed as far as the probabilities allow."""
        if probabilities is None:
            probabilities = _probabilities(self.series[0])
        if self.group == 1:
            return self.exact.draw(n, seed, probabilities)
        generator = torch.Generator().manual_seed(seed)
        prompts, responses = self.exact.n_prompts, len(probabilities) // self.exact.n_prompts
        prompt = torch.randint(prompts, (n // self.group,), generator=generator)
        prompt = prompt.repeat_interleave(self.group)
        heights = torch.rand(n, 1, generator=generator, dtype=torch.float64)
        steps = probabilities.view(prompts, responses).cumsum(1)[prompt]
        return prompt * responses + torch.searchsorted(steps, heights * steps[:, -1:])[:, 0]

    def sample(self, functional: Functional, method: str, index: torch.Tensor) -> ScoredBatch:
        series = tuple(rows_of(s, index) for s in self.series)
        tokens, baseline = series[0].mask.double(), None
        units = torch.arange(len(index)) // self.group
        if method == "doubly-robust":
            baseline = cross_fitted_baseline(
                series[0].entropies, tokens, units, functional, features=self.features[index]
            )
        f = Functionals(functional, method, tokens, baseline)
        return ScoredBatch(f, series[0].logprobs, series, units)


def _probabilities(scores: Scores) -> torch.Tensor:
    return scores.logprobs.sum(1).exp()


def rows_of(scores: Scores, index: torch.Tensor) -> Scores:
    return Scores(scores.logprobs[index], scores.entropies[index], scores.mask[index])


@dataclass(frozen=True)
class Row:
    """What one estimator did over all batches."""

    policy: str
    functional: Functional
    method: str
    quantity: str
    truth: float
    bias_z: float
    coverage: float
    printed: float
    squared_errors: torch.Tensor
    ess_sequence: float = float("nan")


def study(
    policy: str, functional: Functional, batches: int, n: int = 256, group: int = 1
) -> list[Row]:
    """Run every estimator on the same batches of one policy."""
    enumerated = Enumerated(policy, group)
    truth = enumerated.truth(functional)
    rows, ess = [], {}
    for method in METHODS:
        runs = []
        sizes = []
        for seed in range(batches):
            runs.append(enumerated.estimates(functional, method, n, seed))
            sizes.append(enumerated.ess)
        if method == "sequence":
            ess = dict(zip(QUANTITIES[3:], torch.tensor(sizes).mean(0).tolist(), strict=True))
        for k, quantity in enumerate(QUANTITIES):
            if runs[0][k] is None:
                continue
            values = torch.tensor([run[k].value for run in runs], dtype=torch.float64)
            inside = [run[k].covers(truth[k]) for run in runs if run[k].ci_low == run[k].ci_low]
            error = values - truth[k]
            z = float(error.mean() / (values.std() / batches**0.5))
            rows.append(
                Row(
                    policy,
                    functional,
                    method,
                    quantity,
                    truth[k],
                    z,
                    sum(inside) / max(1, len(inside)),
                    len(inside) / batches,
                    error.square(),
                    ess.get(quantity, float("nan")),
                )
            )
    return rows


def mse_ratio(row: Row, reference: Row) -> tuple[float, float]:
    """Mean squared error of `row` over that of `reference`, and its standard error (paired)."""
    a, b = row.squared_errors, reference.squared_errors
    ratio = float(a.mean() / b.mean())
    return ratio, float((a - ratio * b).std() / len(a) ** 0.5 / b.mean())


def reference_of(row: Row, rows: list[Row]) -> Row | None:
    """The "sequence" row of the same quantity."""
    key = (row.policy, row.functional, row.quantity, "sequence")
    found = [r for r in rows if (r.policy, r.functional, r.quantity, r.method) == key]
    return found[0] if found else None


def exceptions(rows: list[Row]) -> list[Row]:
    """Weighted estimators that are measurably worse than "sequence" (two standard errors)."""
    found = []
    for row in rows:
        ratio, error = mse_ratio(row, reference_of(row, rows) or row)
        if row.method in ("prefix", "doubly-robust") and ratio > 1 + 2 * error + 1e-9:
            found.append(row)
    return found


def _said(rows: list[Row]) -> str:
    names = [f"{r.method} on {r.policy}, {r.functional}, {r.quantity}" for r in exceptions(rows)]
    return (
        f"Measurably worse than one weight a sequence, by two standard errors: {'; '.join(names)}."
        if names
        else "No estimator is measurably worse than one weight a sequence."
    )


def table(rows: list[Row]) -> str:
    lines = [
        "| policy | functional | quantity | ESS/n | method | truth | bias z | coverage | "
        "intervals printed | MSE ÷ sequence |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    order = {q: k for k, q in enumerate(QUANTITIES)}
    for row in sorted(rows, key=lambda r: (r.policy, r.functional, order[r.quantity])):
        ratio, error = mse_ratio(row, reference_of(row, rows) or row)
        covered = f"{row.coverage:.3f}" if row.printed else "–"
        ess = "" if row.ess_sequence != row.ess_sequence else f"{row.ess_sequence:.2f}"
        lines.append(
            f"| {row.policy} | {row.functional} | {row.quantity} | {ess} | {row.method} | "
            f"{row.truth:.4g} | {row.bias_z:+.1f} | {covered} | {row.printed:.2f} | "
            f"{ratio:.2f} ± {error:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--policies", nargs="+", default=list(cases.POLICIES), choices=list(ETAS))
    parser.add_argument("--group", type=int, default=1, help="responses per prompt draw")
    parser.add_argument("--out", type=Path, default=Path("docs/results/coverage.md"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        row
        for policy in args.policies
        for functional in FUNCTIONAL_OF.values()
        for row in study(policy, functional, args.batches, group=args.group)
    ]
    command = f"python -m validation.coverage --batches {args.batches}"
    if args.policies != list(cases.POLICIES):
        command += f" --policies {' '.join(args.policies)} --group {args.group}"
    text = (
        f"# Estimators against the oracle\n\n`{command}`, n = 256 a batch; ESS/n is that of "
        f"whole-sequence weights.\n\n{_said(rows)}\n\n{table(rows)}\n"
    )
    write_results(args.out, text)
    print(text)


if __name__ == "__main__":
    main()
