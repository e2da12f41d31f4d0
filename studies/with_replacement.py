"""What drawing prompts with replacement costs, in a test set of 1,319.

    python -m studies.with_replacement --run runs/demo

E's prompts are drawn with replacement, so that prompts are independent and every interval is of the
mean over the whole test set. Without replacement the mean of m of its N prompts is known better:

    Var_with    = σ_b²/m + σ_w²/(mG)
    Var_without = σ_b²/m · (N − m)/(N − 1) + σ_w²/(mG)
    Var_with / Var_without = 1 / (1 − ρ_G (m − 1)/(N − 1)),    ρ_G = σ_b² / (σ_b² + σ_w²/G)

with σ_b² the variance of prompts' means and σ_w² that of responses to one prompt. So the cost is
that of ρ_G, which the table has for the toy, and at most that of ρ_G = 1.

Fixed before it ran. Subjects: steps 20 and 40 of the demo's toy, 512 held-out prompts × 4
responses. Quantities: H(y) of a response and its reward. ρ is an analysis of variance over prompts,
with the interval of its jackknife over prompts, cut to [0, 1]. Reading: the cost in responses (the
ratio of variances less 1) at m = 64, 256 and 1,319, for G = 1 and 4; it matters where it is above
.1 at the 256 that recipes use. Stopping: once. Writes docs/results/with_replacement.md. One minute.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import isentrope as ise
from isentrope.nouns.freedom import t_quantile
from isentrope.verbs.batches import at_precision
from studies.command import demo_folder
from studies.theory_policies import write_page
from studies.toy_attribution import configured, prepared

STEPS = (20, 40)
POPULATION = 1319
"""Prompts of the test set, as many as GSM8K's."""
SIZES = (64, 256, POPULATION)
PROMPTS = 512
RESPONSES = 4


def cost(rho: float, m: int, population: int = POPULATION) -> float:
    """By how much of itself the variance is larger than without replacement.

    Args:
        rho: ρ_G, the share of prompts in the variance of a prompt draw.
        m: Prompt draws, at most the population.
        population: N.

    Returns:
        Var_with / Var_without − 1; infinite where every prompt is drawn once and is known exactly.
    """
    left = 1 - rho * (m - 1) / (population - 1)
    return 1 / left - 1 if left > 0 else float("inf")


def distinct(m: int, population: int = POPULATION) -> float:
    """Expected number of different prompts among m draws with replacement."""
    return population * (1 - (1 - 1 / population) ** m)


def share_of_prompts(values: Tensor) -> float:
    """σ_b² / (σ_b² + σ_w²), unbiased parts.

    Args:
        values: (p, g), of responses to the same prompt by row.

    Returns:
        The share; below 0 where means differ less than chance lets them.
    """
    g = values.shape[1]
    within = float(values.var(1).mean())
    between = float(values.mean(1).var()) - within / g
    return between / (between + within)


def with_interval(values: Tensor) -> tuple[float, float, float]:
    """`share_of_prompts` with the interval of its jackknife over prompts."""
    p = len(values)
    every = torch.arange(p)
    left_out = torch.tensor([share_of_prompts(values[every != i]) for i in range(p)])
    error = float(((p - 1) ** 2 / p * left_out.var(correction=1)) ** 0.5)
    value = share_of_prompts(values)
    half = t_quantile(p - 1) * error
    return value, max(0.0, value - half), min(1.0, value + half)


def of_group(rho: float, g: int) -> float:
    """ρ_G of the mean of g responses."""
    return rho / (rho + (1 - rho) / g) if rho > 0 else 0.0


def values_at(path: Path) -> dict[str, Tensor]:
    """(p, g) entropies of responses and their rewards."""
    config = configured(path, PROMPTS, 1)
    batches = config.batch_config.model_copy(update={"G_E": RESPONSES})
    ready = prepared(config.model_copy(update={"batch_config": batches}))
    with at_precision(ready.policy, config.precision.measuring):
        scores = ise.score(ready.policy, ready.E)
    entropies = scores.entropies.double().sum(1)
    rewards = ready.sampler.rewarded(ready.E).rewards
    assert rewards is not None
    order = ready.E.prompt_index.argsort(stable=True)
    shaped = {"H of a response": entropies, "reward": rewards.double()}
    return {name: x[order].reshape(-1, RESPONSES) for name, x in shaped.items()}


def row(step: int | str, name: str, rho: tuple[float, float, float]) -> str:
    """ρ of one quantity, and its costs."""
    cells = []
    for g in (1, RESPONSES):
        for m in SIZES:
            low, value, high = sorted(cost(of_group(x, g), m) for x in rho)
            alone = rho[1] == rho[2]
            cells.append(f"{value:.3f}" + ("" if alone else f" [{low:.3f}, {high:.3f}]"))
    share = f"{rho[0]:.2f}" + ("" if rho[1] == rho[2] else f" [{rho[1]:.2f}, {rho[2]:.2f}]")
    return f"| {step} | {name} | {share} | {' | '.join(cells)} |"


HEAD = (
    "| step | quantity | ρ | "
    + " | ".join(f"G = {g}, m = {m:,}" for g in (1, RESPONSES) for m in SIZES)
    + " |\n"
    + "|---" * (3 + 2 * len(SIZES))
    + "|"
)


def main() -> None:
    """Write the table."""
    folder = demo_folder(__doc__)
    rows = [HEAD]
    for step in STEPS:
        for name, values in values_at(folder / "training_state" / f"step_{step}").items():
            rows.append(row(step, name, with_interval(values)))
    rows.append(row("any", "prompts alone, ρ = 1: the most that it can cost", (1.0, 1.0, 1.0)))
    counts = ", ".join(f"{distinct(m):,.0f} of {m:,}" for m in SIZES)
    rows.append(f"\nDifferent prompts among draws with replacement, expected: {counts}.")
    write_page("with_replacement", "\n".join(rows))
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
