"""Does the optimizer's preconditioner change the structure of the Fisher kernel?

    python -m studies.theory_conditioning --run runs/theory

At checkpoints of one toy run (configs/train_toy.yaml), the kernel of 48 prompts × 8 responses
under P of AdamW and under the identity, and their difference, paired over prompts. Writes
docs/results/theory_conditioning.md. About three minutes on one thread; the run is trained first
where it is missing.
"""

from __future__ import annotations

from pathlib import Path

from isentrope.verbs.batches import at_precision
from studies.conditioning import conditioning
from studies.theory_policies import run_folder, write_page
from studies.toy_attribution import checkpoints, configured, prepared

STEPS = (8, 24, 40)


def rows(path: Path, step: int) -> list[str]:
    """One row per quantity at a checkpoint."""
    config = configured(path, 8, 48)
    ready = prepared(config)
    with at_precision(ready.policy, config.precision.measuring):
        found = conditioning(ready.policy, ready.U, ready.step.preconditioner)
    out = []
    for name, pair in found.quantities.items():
        cells = [
            f"{e.value:.3f} [{e.ci_low:.3f}, {e.ci_high:.3f}]"
            for e in (pair.preconditioned, pair.plain, pair.difference)
        ]
        unpaired = (pair.preconditioned.se**2 + pair.plain.se**2) ** 0.5
        gain = unpaired / pair.difference.se if pair.difference.se else float("inf")
        out.append(f"| {step} | {name} | " + " | ".join(cells) + f" | {gain:.1f} |")
    out.append(f"| {step} | overlap of the two clusterings | | | {found.cluster_overlap:.3f} | |")
    return out


def main() -> None:
    """Write the page."""
    folder = run_folder(__doc__)
    states = checkpoints(folder, 0)
    lines = [row for step in STEPS for row in rows(states / f"step_{step}", step)]
    write_page("theory_conditioning", "\n".join([HEAD, "|---|---|---|---|---|---|", *lines]))


HEAD = "| step | quantity | P of AdamW | P = 1 | difference, paired | unpaired se ÷ paired |"


if __name__ == "__main__":
    main()
