"""Is the prediction of a budget unbiased, though E and U are the same responses?

    python -m validation.leave_one_out --draws 200 --out docs/results/leave_one_out.md

Draws many batches of 8 groups of 8 responses of policies that can be enumerated, makes the step
v = P g_U of each, and predicts <g_H, v> from the same responses, with each group of prompts left
out of the step that it is compared with, and plainly. The truth is the enumerated slope of
entropy along that very v. The ratio of the sums over draws is 1 without bias; its error is a
jackknife over draws.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from isentrope.nouns.choices import PER_OF, Functional
from tests import cases
from tests.control.left_out import GROUPS, SIZE, predictions, ratio
from validation import hard_policies
from validation.origin import write_results

FUNCTIONALS: tuple[Functional, ...] = ("per_sequence", "per_token")
POLICIES = ("table", "qwen2", "rare")


def page(draws: int) -> str:
    """The table."""
    lines = [
        "# A prediction from the step's own responses, against enumeration",
        "",
        f"`python -m validation.leave_one_out --draws {draws}`: mean prediction over mean",
        f"truth of <g_H, v>, {GROUPS} prompts of {SIZE} responses, ± its error over the draws.",
        "1 is unbiased.",
        "",
        "| policy | entropy | each prompt left out | plain reuse |",
        "|---|---|---|---|",
    ]
    for name in POLICIES:
        hard = name in hard_policies.HARD
        exact = hard_policies.exact(name) if hard else cases.small_exact(name)
        for functional in FUNCTIONALS:
            found = list(predictions(exact, PER_OF[functional], draws))
            truth, left_out, plain = (
                torch.tensor([getattr(x, key) for x in found]).double()
                for key in ("truth", "left_out", "plain")
            )
            cells = ["{:.3f} ± {:.3f}".format(*ratio(x, truth)) for x in (left_out, plain)]
            lines.append(f"| {name} | {functional} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("docs/results/leave_one_out.md"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    text = page(args.draws)
    write_results(args.out, text)
    print(text)


if __name__ == "__main__":
    main()
