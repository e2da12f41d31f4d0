"""How fast and how near do published feedbacks of entropy follow a target? Runs, then a page.

    python -m studies.feedback_runs          # run it again to continue
    python -m studies.feedback_runs --page   # docs/results/feedback.md, from what is there

The laws are in `studies/feedback.py`, the design in the page's template below, which was written
before the first run. A cell is a law and a seed; cells and bases are kept in --out. Seeds are
neither those of the study on `compose` nor of its calibration.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from studies.compose_base import Dials
from studies.compose_run import Settings, train
from studies.compose_study import BASES, OUT, base_of
from studies.control_study_rows import t_interval
from studies.feedback import LAWS, LENGTH, PHASES
from validation.origin import write_results

FIRST_SEED = 3000
SEEDS = 6
SETTLED, WINDOW, BAND = 40, 10, 0.1
"""Last steps of a phase that count as settled; steps of a mean; the band around a target."""


@dataclass(frozen=True)
class Response:
    """What a run did in one phase.

    Attributes:
        away: Mean of |h/h* − 1| over the settled steps.
        bias: Mean of h/h* − 1 over the settled steps.
        settling: Steps until the mean of `WINDOW` stays in the band; None if it does not.
        overshoot: How far that mean goes beyond the target, as a share of the target's step; None
            where it does not reach it, and of the first phase, which has no target before.
    """

    away: float
    bias: float
    settling: int | None
    overshoot: float | None


def response(entropies: Sequence[float], target: float, before: float | None) -> Response:
    """Read one phase.

    Args:
        entropies: Entropy of each step's responses, nats per token.
        target: h*.
        before: The target of the phase before; None for none.

    Returns:
        The numbers.
    """
    h = np.array(entropies)
    settled = h[-SETTLED:] / target - 1
    means = np.convolve(h, np.full(WINDOW, 1 / WINDOW), "valid")
    outside = np.flatnonzero(np.abs(means / target - 1) > BAND)
    settling = 0 if len(outside) == 0 else int(outside[-1]) + 1
    overshoot = None
    if before is not None:
        beyond = (means - target) / (target - before)
        reached = np.flatnonzero(beyond >= 0)
        overshoot = float(beyond[reached[0] :].max()) if len(reached) else None
    return Response(
        away=float(np.abs(settled).mean()),
        bias=float(settled.mean()),
        settling=settling if settling < len(means) else None,
        overshoot=overshoot,
    )


def responses(cell: dict[str, Any]) -> list[Response]:
    """All phases of a run."""
    steps, found, before = cell["steps"], [], None
    for k in range(len(PHASES)):
        part = slice(k * LENGTH, (k + 1) * LENGTH)
        target = steps["target"][part][-1]
        found.append(response(steps["entropy_token"][part], target, before))
        before = target
    return found


def perform(out: Path) -> None:
    """Run the cells that have no file, seed by seed."""
    folder = out / "feedback"
    folder.mkdir(parents=True, exist_ok=True)
    settings = Settings(steps=LENGTH * len(PHASES), every=LENGTH)
    for k in range(SEEDS):
        seed, base = FIRST_SEED + k, base_of(BASES[k % len(BASES)], out, Dials())
        for law, make in LAWS.items():
            file = folder / f"{law}_{seed}.json"
            if not file.exists():
                found = train(make(), base, seed, settings)
                file.write_text(json.dumps({"law": law, "seed": seed} | found))
                print(file.stem, f"{found['seconds']:.0f} s", flush=True)


def mean(values: Sequence[float], digits: int = 2) -> str:
    """Mean and half of its 95 % t interval."""
    if len(values) < 3:
        return "–"
    found = t_interval(values)
    return f"{found.value:.{digits}f} ± {found.high - found.value:.{digits}f}"


def settling(found: Sequence[Response]) -> str:
    """How many runs settle, and the median of their steps."""
    known = [x.settling for x in found if x.settling is not None]
    steps = f", {np.median(known):.0f} steps" if known else ""
    return f"{len(known)} of {len(found)}{steps}"


def tables(cells: Sequence[dict[str, Any]]) -> dict[str, str]:
    """A table for each phase, and that of the ends of runs."""
    runs = {law: [c for c in cells if c["law"] == law] for law in LAWS}
    found = {law: [responses(c) for c in own] for law, own in runs.items()}
    parts = {}
    head = "| law | runs | mean of \\|h/h* − 1\\| | mean of h/h* − 1 | settles | overshoot |"
    for k in range(len(PHASES)):
        lines = [head, "|---" * 6 + "|"]
        for law, every in found.items():
            own = [run[k] for run in every]
            over = [x.overshoot for x in own if x.overshoot is not None]
            line = [law, str(len(own)), mean([x.away for x in own]), mean([x.bias for x in own])]
            line += [settling(own), mean(over) if over else "–"]
            lines.append(f"| {' | '.join(line)} |")
        parts[f"phase_{k + 1}"] = "\n".join(lines)
    metrics = ("single_greedy", "single", "greedy", "composed_cold")
    lines = ["| law | one map, greedy | one map, T = 1 | two maps, greedy | two maps, T = .4 |"]
    lines.append("|---" * 5 + "|")
    for law, own in runs.items():
        values = [mean([c["readings"][-1][m] for c in own]) for m in metrics]
        lines.append(f"| {law} | {' | '.join(values)} |")
    parts["ends"] = "\n".join(lines)
    return parts


def main() -> None:
    """Run cells, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="(%(default)s)")
    parser.add_argument("--page", action="store_true", help="write the page, run nothing")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if not asked.page:
        perform(asked.out)
        return
    files = sorted((asked.out / "feedback").glob("*.json"))
    cells = [json.loads(file.read_text()) for file in files]
    text = TEMPLATE.format(today=date.today(), runs=len(cells), **tables(cells))
    write_results(Path("docs/results/feedback.md"), text)


TEMPLATE = """# Feedbacks of entropy after a step of the target

`python -m studies.feedback_runs`, then `--page`; {today}, {runs} runs.

**What went against us.** No law settles in more than three of six runs, ours in one, one and two:
the mean of ten steps does not stay within 10 % of the target. And our row is not on equal terms.
A former version of the budget, run with the others, was .72 ± .12, .65 ± .26 and .64 ± .27 away. It
was changed after that was seen, by the entropy of three runs of `compose` with other seeds; the
other laws have the constants of their sources. What is left, read after the runs:

- Single batches are noisy where entropy is low: the standard deviation of h/h* of one batch, from
  differences of neighbours, is .08 to .52 by seed and phase. Much of the distance below is that.
- In one run of the second phase (3004) the effect of a correction came within two standard errors
  of zero at step 111 (`no_gain`). The budget does nothing then, and entropy fell to a tenth of the
  target; it corrected again from the third phase on.
- In another (3005) corrections are bounded by the length of the step (`too_large`; they have .88 of
  it in the mean), and entropy stays .3 below its target.

**What is nearest.** The budget in the first phase, by .12 [.09, .15] before TRL's adaptive
coefficient, which is second, and in the mean in the third. There it is +.08 ± .11 and +.05 ± .10
from its target with its sign. In the second phase the two are not distinguishable (+.05 [−.16,
+.27]). TRL's coefficient swings through the target instead of settling, overshoots the step upwards
by the size of the step, and cannot lower entropy: it is .87 ± .65 away in the third phase.
Skywork's coefficient is the same law with a largest bonus of .005; in the third phase it is not
distinguishable from the budget (−.31 [−.69, +.06]). EntroPIC and REPO-R, with their published
constants, are not distinguishable from vanilla in any phase: both act through advantages, which are
zero in most groups of this task.

Settling after 64 steps and more is passing the band at the end of a phase of 80. How near the
budget is on addition and countdown is on [a page of its own](budget.md).

## Design, written before the first run

The policy and the task are those of [compose](compose.md): .15 million parameters, Dr. GRPO, 16
prompts × 8 responses. The target is in nats per token, since the published laws are: .3 of the
first batch's entropy for 80 steps, .6 for 80, and .3 for 80. Without control the policy loses nine
tenths of its entropy in the first 20 steps, so the first phase asks to stop a fall, the second to
raise entropy against it, and the third to let it fall.

The laws (`studies/feedback.py`) have the constants of their sources, which were set for models of
billions of parameters and steps of 1e-6; none was tuned here (ours was changed later, as said
above). What is compared is a law with its constants, not the best that it could do. Six seeds, one
per base, 3000 to 3005; all laws of a seed begin with the same batch, so they have the same targets.
No result is looked at to decide whether to go on: a law is complete with six runs.

Read from the entropy of each step's 128 responses, which has an error of a few percent itself:

- the mean of \\|h/h* − 1\\|, and of its sign, over the last 40 steps of a phase;
- settling: steps after the change until the mean over 10 steps stays within 10 % of the target;
- overshoot: how far that mean goes beyond the target after it has reached it, as a share of the
  change of the target.

Intervals are 95 % t intervals over seeds.

## .3 of the start, from the start

{phase_1}

## Up to .6, at step 80

{phase_2}

## Down to .3, at step 160

{phase_3}

## What it costs

At the last step, on held-out prompts, by teacher forcing:

{ends}
"""


if __name__ == "__main__":
    main()
