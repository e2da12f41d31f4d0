"""Does the price meter say what a step spends and earns? Bias and coverage against enumeration.

    python -m validation.price --batches 1000 --out docs/results/price.md

Draws many E-batches of n = 256 of policies whose responses can all be enumerated, prices one step
on each (`isentrope.estimators.price`), and compares with the exact answer. What happens at the
first token is known from the same policy with responses cut after it: that is another enumeration,
which knows no classes of positions. The reward of a response is how often token 2 occurs in it,
less its first token.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from isentrope.estimators.price import price_of_step
from isentrope.nouns.estimate import Estimate
from isentrope.oracle import ExactPolicy, enumerate_policy
from isentrope.oracle.plain import derivatives
from isentrope.policy.chi_square import Divergence, score_moved
from isentrope.policy.token_statistics import Scores
from validation.coverage import ETAS, Enumerated, rows_of
from validation.origin import write_results

STEP = 0.3
"""Learning rate at which the differences of the oracle begin."""


def rewards_of(exact: ExactPolicy) -> torch.Tensor:
    """(n,) the reward of every response."""
    responses = exact.rollouts.response_ids
    return torch.tensor([float((r == 2).sum() - r[0]) for r in responses]).double()


def cut(exact: ExactPolicy) -> tuple[ExactPolicy, torch.Tensor]:
    """The policy with responses of one token, and (n,) the row there that each response begins."""
    index = exact.rollouts.prompt_index
    starts = [exact.rollouts.prompt_ids[int((index == p).nonzero()[0])] for p in index.unique()]
    short = enumerate_policy(exact.policy, starts, 1)
    pairs = zip(short.rollouts.prompt_index.tolist(), short.rollouts.response_ids, strict=True)
    rows = {(p, int(r[0])): k for k, (p, r) in enumerate(pairs)}
    firsts = zip(index.tolist(), exact.rollouts.response_ids, strict=True)
    return short, torch.tensor([rows[p, int(r[0])] for p, r in firsts])


def truth(exact: ExactPolicy, v: dict[str, torch.Tensor], eta: float) -> dict[str, float]:
    """What a step of ℋ spends and earns, all of it and at the first token."""
    short, row = cut(exact)
    rewards, theta = rewards_of(exact), exact.policy.theta
    start, first = exact.probabilities(), short.probabilities()

    def moved(rate: float) -> dict[str, torch.Tensor]:
        return {n: p + rate * v[n] for n, p in theta.items()}

    def whole(rate: float) -> float:
        return float(exact.probabilities(moved(rate)) @ rewards) / exact.n_prompts

    def at_first(rate: float) -> float:
        ratio = (short.probabilities(moved(rate)) / first)[row]
        return float(start * ratio @ rewards) / exact.n_prompts

    spent, spent_first = (eta * x.derivatives(v, "sequence")[0] for x in (exact, short))
    earned, earned_first = (eta * derivatives(f, STEP)[0] for f in (whole, at_first))
    return {
        "spent": spent,
        "spent at the first token": spent_first,
        "its share": spent_first / spent,
        "measured at the first token": short.entropy_change(v, eta, "sequence"),
        "earned": earned,
        "earned at the first token": earned_first,
        "reward for a nat": -earned / spent,
    }


Moved = tuple[Scores, Divergence]


def estimates(
    enumerated: Enumerated, moved: Moved, eta: float, n: int, seed: int
) -> dict[str, Estimate]:
    """The same on one batch."""
    index = enumerated.draw(n, seed)
    sample = enumerated.sample("per_sequence", "prefix", index)
    after = rows_of(moved[0], index)
    first = torch.zeros_like(after.mask)
    first[:, 0] = True
    divergence = Divergence(moved[1].jumps[index])
    trust, _ = sample.trust_of_change(after, divergence)
    rewards = rewards_of(enumerated.exact)[index]
    found = price_of_step(sample, eta, {"first": first}, rewards, after=(after, trust))
    part = found.at["first"]
    assert part.change
    assert part.reward
    assert found.whole.reward
    assert found.whole.reward_for_a_nat
    return {
        "spent": found.whole.first_order,
        "spent at the first token": part.first_order,
        "its share": part.share,
        "measured at the first token": part.change,
        "earned": found.whole.reward,
        "earned at the first token": part.reward,
        "reward for a nat": found.whole.reward_for_a_nat,
    }


@dataclass(frozen=True)
class Row:
    """What one number did over all batches."""

    policy: str
    quantity: str
    truth: float
    bias_z: float
    coverage: float
    printed: float


def study(policy: str, batches: int, n: int = 256) -> Iterator[Row]:
    """Price the same step on many batches of one policy."""
    enumerated, eta = Enumerated(policy), ETAS[policy][1]
    exact, all_of = truth(enumerated.exact, enumerated.v, eta), enumerated.exact
    (moved,) = score_moved(all_of.policy, all_of.rollouts, enumerated.v, [eta])
    assert moved is not None
    runs = [estimates(enumerated, moved, eta, n, seed) for seed in range(batches)]
    for name, value in exact.items():
        found = [run[name] for run in runs]
        errors = torch.tensor([estimate.value - value for estimate in found]).double()
        inside = [x.covers(value) for x in found if x.ci_low == x.ci_low]
        z = float(errors.mean() / (errors.std() / batches**0.5))
        covered = sum(inside) / max(1, len(inside))
        yield Row(policy, name, value, z, covered, len(inside) / batches)


def page(rows: list[Row], command: str) -> str:
    """The table, with what went against us first."""
    low = [
        f"{r.quantity} on `{r.policy}` ({r.coverage:.3f})"
        for r in rows
        if r.printed and r.coverage < 0.92
    ]
    said = f"Below .92: {'; '.join(low)}." if low else "No interval covers less than .92."
    said += " – : weights are too uneven there, and no interval is printed."
    lines = [
        "# What a step spends and earns, against enumeration",
        "",
        f"`{command}`: n = 256 responses per batch, entropy per sequence, one step each.",
        "",
        said,
        "",
        "| policy | quantity | truth | bias z | coverage | intervals printed |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.policy} | {r.quantity} | {r.truth:.4g} | {r.bias_z:+.1f} | "
        f"{f'{r.coverage:.3f}' if r.printed else '–'} | {r.printed:.2f} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--policies", nargs="+", default=list(ETAS), choices=list(ETAS))
    parser.add_argument("--out", type=Path, default=Path("docs/results/price.md"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for name in args.policies for row in study(name, args.batches)]
    text = page(rows, f"python -m validation.price --batches {args.batches}")
    write_results(args.out, text)
    print(text)


if __name__ == "__main__":
    main()
