"""Which estimator of ΔH varies least? Many disjoint E-batches of a trained toy policy.

    isentrope demo
    python -m validation.variance --checkpoint runs/demo/training_state/step_20

Draws 64 disjoint batches of n = 256 from one policy, measures ΔH on each with every estimator at
the training rate and at three times that rate, and compares variances over the batches, as ratios
to one self-normalised weight a sequence ("sequence"), with bootstrap intervals over batches.
"""

from __future__ import annotations

import argparse
from datetime import date
from pathlib import Path

import torch

from isentrope.estimators.baseline import cross_fitted_baseline
from isentrope.estimators.functional import UNITS, Functionals
from isentrope.nouns.choices import METHODS
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.sampling.batches import Groups, update_batch
from isentrope.sampling.generate import sample
from isentrope.sampling.tasks.addition import Addition, longest_response
from isentrope.update.step import compute_step
from validation.origin import write_results


def estimates(pool, etas, n: int, functional: str, method: str) -> torch.Tensor:
    """ΔH at every rate on every disjoint batch of the pool, (batches, etas)."""
    base, moved = pool
    rows = []
    for start in range(0, len(base.mask) - n + 1, n):
        here = slice(start, start + n)
        h0, tokens = base.entropies[here], base.mask[here].double()
        baseline = None
        if method == "doubly-robust":
            baseline = cross_fitted_baseline(
                h0, tokens, torch.arange(n), functional, features=base.features[here]
            )
        kept = base.logprobs[here] if method == "surprisal" else None
        f = Functionals(functional, method, tokens, baseline, kept)
        omega = torch.ones(n, dtype=torch.float64)
        zero = f(omega, torch.zeros_like(h0), h0)
        rows.append(
            torch.stack(
                [
                    f(omega, s.logprobs[here] - base.logprobs[here], s.entropies[here]) - zero
                    for s in moved
                ]
            )
        )
    return torch.stack(rows)


def variance_ratio(a: torch.Tensor, b: torch.Tensor, draws: int = 4000) -> tuple[float, ...]:
    """Var(a)/Var(b) over batches, and its 95 % bootstrap interval (batches drawn together)."""
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(len(a), (draws, len(a)), generator=generator)
    ratios = a[index].var(1) / b[index].var(1)
    low, high = ratios.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(a.var() / b.var()), low, high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=64)
    parser.add_argument("--n", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("docs/results/variance.md"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    policy = Policy.from_checkpoint(args.checkpoint)
    longest = longest_response(2)
    sizes = {"max_new_tokens": longest, "batch_size": 512}
    train, test = Addition("train"), Addition("test")
    groups = Groups(16, 8, longest)
    U, _ = update_batch(policy, train.prompts, train, groups, seed=1, batch_size=512)
    step = compute_step(
        policy,
        U,
        args.checkpoint / "optimizer.pt",
        max_response_length=longest,
        max_grad_norm=1.0,
    )
    etas = [factor * step.learning_rate for factor in (0.01, 0.3, 1.0, 3.0)]
    E = sample(policy, test.prompts, args.batches * args.n, seed=2, **sizes)
    base = score(policy, E, features=32)
    moved = [score(policy, E, policy.parameters_along(step.direction, eta)) for eta in etas]
    ess = [_ess(base, s) for s in moved]
    lines = [
        "| functional | η ÷ training rate | ESS/n | method | mean ΔH | sd of one batch | "
        "variance ÷ sequence [95 %] |",
        "|---|---|---|---|---|---|---|",
    ]
    for functional in UNITS:
        tables = {m: estimates((base, moved), etas, args.n, functional, m) for m in METHODS}
        for k, eta in enumerate(etas):
            for method, table in tables.items():
                ratio, low, high = variance_ratio(table[:, k], tables["sequence"][:, k])
                lines.append(
                    f"| {functional} | {eta / step.learning_rate:g} | {ess[k]:.2f} | {method} | "
                    f"{table[:, k].mean():.4g} | {table[:, k].std():.2g} | "
                    f"{ratio:.2f} [{low:.2f}, {high:.2f}] |"
                )
    command = f"python -m validation.variance --checkpoint {args.checkpoint}"
    text = (
        f"# Variance of the estimators of ΔH on the toy\n\n`{command}`, {date.today()}: "
        f"{args.batches} disjoint batches of n = {args.n}.\n\n" + "\n".join(lines) + "\n"
    )
    before = args.out.read_text() if args.out.exists() else ""
    kept = before[before.index("\n## ") :] if "\n## " in before else ""  # other measurements
    write_results(args.out, text + kept)
    print(text)


def _ess(base, moved) -> float:
    """Effective share of whole-sequence weights over the whole pool."""
    weights = (moved.logprobs - base.logprobs).sum(1).exp()
    return float(weights.sum().square() / weights.square().sum() / len(weights))


if __name__ == "__main__":
    main()
