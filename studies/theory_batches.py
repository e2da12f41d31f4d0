"""δH₂ on average over update batches, predicted from small batches and sampled for larger ones.

    python -m studies.theory_batches --run runs/theory

At two checkpoints of one toy run: E is 96 held-out responses, P and the momentum are those of the
recorded step. The parts ½ v̄ᵀ∇²H v̄ and ½ tr(∇²H PΣP) come from 24 batches of 4 prompt groups. They
predict E[δH₂] of larger batches, and 12 fresh batches of 16 other groups give the δH₂ of real
steps. Writes docs/results/theory_batches.md. About six minutes on one thread; the run is trained
first where it is missing.
"""

from __future__ import annotations

from pathlib import Path

import torch

from isentrope.attribution.fisher.second_order import second_order_change
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.vectors import Vector, axpy, multiply, norm
from isentrope.policy.gradient import weighted_gradient
from isentrope.verbs.batches import at_precision
from studies.batch_curvature import batch_curvature
from studies.theory_policies import run_folder, write_page
from studies.toy_attribution import checkpoints, configured, prepared

STEPS = (8, 24)
E_SIZE = 96
SMALL, UNITS = 4, 24
"""Groups per small batch, and how many of them the parts come from."""
LARGE, FRESH = 16, 12
"""The same of the batches that are predicted."""
PREDICTED = (4, 16, 64)
"""Groups of the batches whose E[δH₂] is printed."""


def group_directions(ready) -> list[Vector]:
    """u_p of every group of the batch: momentum, decay, and the group's part times their number."""
    U, step = ready.U, ready.step
    weights = step.token_weights
    units = U.prompt_index.unique()
    out = []
    for unit in units:
        rows = (U.prompt_index == unit).nonzero()[:, 0]
        one = weighted_gradient(ready.policy, U.select(rows), len(units) * weights[rows])
        out.append(axpy(1, multiply(step.preconditioner, one), step.baseline))
    gap = norm(axpy(-1, step.direction, mean(out))) / norm(step.direction)
    if gap > 1e-4:
        raise ValueError(f"The groups do not add up to the step: they differ by {gap:.1e} of it.")
    return out


def mean(vectors: list[Vector]) -> Vector:
    """The mean of some directions."""
    total = vectors[0]
    for v in vectors[1:]:
        total = axpy(1, v, total)
    return {name: x / len(vectors) for name, x in total.items()}


def written(e: Estimate) -> str:
    """Value with its interval."""
    return f"{e.value:.3g} [{e.ci_low:.3g}, {e.ci_high:.3g}]"


def rows(path: Path, step: int) -> list[str]:
    """One row per batch size at a checkpoint."""
    config = configured(path, E_SIZE, SMALL * UNITS + LARGE * FRESH)
    ready = prepared(config)
    with at_precision(ready.policy, config.precision.measuring):
        groups = group_directions(ready)
        E = ready.E

        def q(v: Vector) -> float:
            return second_order_change(ready.policy, E, v).value

        first, rest = groups[: SMALL * UNITS], groups[SMALL * UNITS :]
        small = [mean(first[SMALL * k : SMALL * (k + 1)]) for k in range(UNITS)]
        found = batch_curvature(q, small)
        values = [q(mean(rest[LARGE * k : LARGE * (k + 1)])) for k in range(FRESH)]
    sample = torch.tensor(values, dtype=torch.float64)
    fresh = Estimate.from_standard_error(
        float(sample.mean()), float(sample.std()) / FRESH**0.5, FRESH, unit="", method=""
    )
    out = []
    for B in PREDICTED:
        predicted, cells = found.at(B // SMALL), ["", ""]
        if B == LARGE:
            z = (predicted.value - fresh.value) / (predicted.se**2 + fresh.se**2) ** 0.5
            cells = [written(fresh), f"{z:+.1f}"]
        noise = found.noise.value * SMALL / B
        row = [str(step), str(B), written(predicted), *cells, f"{noise / predicted.value:.2f}"]
        out.append("| " + " | ".join(row) + " |")
    parts = f"mean step {written(found.mean_step)}, noise of {SMALL} groups {written(found.noise)}"
    out.append(f"\nParts after {step} steps: {parts}.")
    print("\n".join(out), flush=True)
    return out


def main() -> None:
    """Write the page."""
    folder = run_folder(__doc__)
    states = checkpoints(folder, 0)
    lines = [row for step in STEPS for row in rows(states / f"step_{step}", step)]
    table = [line for line in lines if line.startswith("|")]
    notes = [line for line in lines if line not in table]
    write_page("theory_batches", "\n".join([HEAD, "|" + "---|" * 6, *table, *notes]))


HEAD = "| step | B | predicted E[δH₂] | mean of 12 fresh batches | z | share of noise |"


if __name__ == "__main__":
    main()
