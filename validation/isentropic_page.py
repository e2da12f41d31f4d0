"""The page of `validation.isentropic`, from what its parts have left in their folder."""

from __future__ import annotations

import json
import math
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from isentrope.nouns.estimate import t_quantile

Rows = list[dict[str, Any]]


def read_lines(file: Path) -> Rows:
    """A jsonl file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def write_page(folder: Path, path: Path) -> None:
    """Write what is there."""
    made = {part.__name__: part(folder) for part in (unbiased, judged, held, cost, lags)}
    text = HEAD.format(today=date.today()) + "\n".join(x for x in made.values() if x)
    if missing := [NAMES[name] for name, section in made.items() if not section]:
        text += f"\n## Not measured yet\n\n{'; '.join(missing)}.\n"
    path.write_text(text)
    print(text)


def unbiased(folder: Path) -> str:
    """The share of δH₁ that is left."""
    rows = []
    for file in sorted(folder.glob("unbiased_*.json")):
        found = json.loads(file.read_text())
        where, pairs = file.stem.removeprefix("unbiased_"), found["pairs"]
        none = np.mean([x["across"] is None for x in pairs])
        cells = [left_by(pairs, rule, found["samples"]) for rule in ("across", "same")]
        rows.append(
            f"| {where} | {found['samples']} × {found['half']} | {len(pairs)} "
            f"| {found['inflation']:.1f} | {none:.0%} | {' | '.join(cells)} |"
        )
    return UNBIASED.format(rows="\n".join(rows)) if rows else ""


def left_by(pairs: Rows, rule: str, samples: int) -> str:
    """Mean over pairs, its error by the jackknife over halves, and the spread of single draws."""
    known = [x for x in pairs if x[rule] is not None]
    values = np.array([x[rule] for x in known])
    of = np.array([[x["a"], x["b"]] for x in known])
    without = np.array([values[(of != k).all(1)].mean() for k in range(samples)])
    error = math.sqrt((samples - 1) / samples * ((without - without.mean()) ** 2).sum())
    return f"{values.mean():+.3f} ± {error:.3f} | {values.std(ddof=1):.2f}"


def judged(folder: Path) -> str:
    """Measured change against the one that was asked."""
    rows = []
    for run in sorted(folder.glob("judged*_0")):
        lines = [x for x in read_lines(run / "logs/metrics.jsonl") if "probe/change_fresh" in x]
        size = 256
        t = t_quantile(size - 1, 0.95)
        inside = {"all": lines, "η < η*/5": [x for x in lines if in_range(x)]}
        for name, chosen in inside.items():
            if not chosen:
                continue
            gap = np.array([x["probe/change_fresh"] - x["control/asked"] for x in chosen])
            own = np.array([x["probe/change_fresh_se"] for x in chosen])
            both = np.hypot(own, [x["control/predicted_se"] for x in chosen])
            shares = [float((np.abs(gap) <= t * se).mean()) for se in (own, both)]
            before = np.array([x["control/predicted"] for x in chosen])
            rows.append(
                f"| {run.name} | {chosen[0]['learning_rate']:g} | {name} | {len(chosen)} "
                f"| {shares[0]:.0%} | {shares[1]:.0%} | {gap.mean():+.5f} ± "
                f"{gap.std(ddof=1) / math.sqrt(len(gap)):.5f} | {before.mean():+.5f} |"
            )
    return JUDGED.format(rows="\n".join(rows)) if rows else ""


def in_range(line: dict[str, Any]) -> bool:
    """Whether η < η*/5 by the probe's estimate of η/η*."""
    fraction = line.get("probe/linear_fraction")
    return fraction is not None and fraction < 0.2


def held(folder: Path) -> str:
    """Entropy and reward over the runs."""
    rows = []
    for file in sorted(folder.glob("*/evaluated.jsonl")):
        found = sorted(read_lines(file), key=lambda x: x["step"])
        start = found[0]["h"]
        strays = [x["h"] / start - 1 for x in found]
        last = found[-1]
        chosen = {x["step"]: x for x in found}
        path = " ".join(
            f"{chosen[s]['h']:.3f}" for s in (0, 20, 40, 60, 80, 100, 120) if s in chosen
        )
        reward = " ".join(
            f"{chosen[s]['pass1']:.3f}" for s in (0, 20, 40, 60, 80, 100, 120) if s in chosen
        )
        rows.append(
            f"| {file.parent.name} | {last['step']} | {path} | {min(strays):+.1%} … "
            f"{max(strays):+.1%} | {reward} | {last['pass8']:.3f} |"
        )
    if not rows:
        return ""
    error = np.mean(
        [x["h_se"] / x["h"] for f in folder.glob("*/evaluated.jsonl") for x in read_lines(f)]
    )
    return HELD.format(rows="\n".join(rows), error=error)


def cost(folder: Path) -> str:
    """Seconds of a step, and the control's part of it."""
    rows = []
    for file in sorted(folder.glob("*/evaluated.jsonl")):
        lines = read_lines(file.parent / "logs/timing.jsonl")[1:]
        seconds = np.array([x["seconds"] for x in lines])
        own = np.array([x.get("control/seconds", 0.0) for x in lines])
        ratio = seconds.sum() / (seconds - own).sum()
        logs = read_lines(file.parent / "logs/metrics.jsonl")
        none = np.mean([x.get("control/no_correction", 0.0) for x in logs])
        cut = np.mean([x.get("control/clamped", 0.0) for x in logs])
        share = np.median([x.get("control/step_share", 0.0) for x in logs])
        rows.append(
            f"| {file.parent.name} | {np.median(seconds):.2f} | {np.median(own):.2f} "
            f"| {ratio:.2f} | {none:.0%} | {cut:.0%} | {share:.2f} |"
        )
    return COST.format(rows="\n".join(rows)) if rows else ""


def lags(folder: Path) -> str:
    """How long an entropy gradient lasts."""
    rows = []
    for file in sorted(folder.glob("lags_*.json")):
        cells = " | ".join(f"{x['cosine']:.2f}" for x in json.loads(file.read_text()))
        rows.append(f"| {file.stem.removeprefix('lags_')} | {cells} |")
    return LAGS.format(rows="\n".join(rows)) if rows else ""


NAMES = {
    "unbiased": "whether λ is unbiased (`unbiased`)",
    "judged": "the measured change against the one that was asked (`judged`)",
    "held": "entropy and reward over 120 steps (`runs`)",
    "cost": "the control's part of a step's time (`runs`)",
    "lags": "how long an entropy gradient lasts, and so what `average` should be (`lags`)",
}
"""What each part would show."""

HEAD = """# The isentropic step

`python -m validation.isentropic` with `runs`, `unbiased`, `judged`, `lags` and `page`, {today}, one
CPU thread. The toy of `configs/sft_toy.yaml`, trained by `configs/train_toy.yaml` (16 prompts × 8
per step, LoRA of rank 16, learning rate 1e-3) on two-digit addition.
"""

UNBIASED = """
## Is λ unbiased?

At checkpoints of the vanilla run of seed 0, with the step that training took from there. The
correction is made from each pair of independent halves of E; the truth for a pair is the mean of
g_H over all other halves. The table has the share of δH₁ that is left: 1 is no control, 0 is held.
"Across" is λ with its denominator across the halves, where the gain is above two errors; "same" the
rule λ = −<g,v>/<g,Pg> with one g twice. Errors are of the jackknife over halves. "Inflation" is
<g,Pg> of one half over that across halves.

| checkpoint | halves | pairs | inflation | no_gain | across: mean | sd | same: mean | sd |
|---|---|---|---|---|---|---|---|---|
{rows}
"""

JUDGED = """
## Does the measured change hit the one that was asked?

Runs with `target: hold`, and a probe that measures ΔH of every step on 256 responses of its own,
which neither the control nor a prediction has seen. "Inside" is the share of steps in which ΔH − τ
is within t · se of 0: with the error of the measurement alone, and with that and the control's own
error of <g,v>. The last column is what the step would have done without the correction.

| run | η | steps | n | inside, se of ΔH | inside, both | mean ΔH − τ | mean η<g,v> |
|---|---|---|---|---|---|---|---|
{rows}
"""

HELD = """
## Entropy and reward over 120 steps

256 held-out prompts × 8 responses per evaluation, the same random numbers in each; one standard
error of h is {error:.1%} of it. Entropy h in nats per token, at steps 0, 20, …, 120; "range" is its
distance from the start over the evaluations of every tenth step. `vanilla`: no control; `slow`: 0.3
of the learning rate; `isentropic`: the default options; `costly`: `size: 256, every: 1, average:
1`.

| run (seed) | steps | h | range | pass@1 | pass@8 at the end |
|---|---|---|---|---|---|
{rows}
"""

COST = """
## What it costs

Medians per step; the ratio is of all seconds to those outside the control. "None" and "cut" are the
shares of steps without a correction and with a shortened one; the last column is the median of
‖λu‖/‖v‖.

| run (seed) | seconds | of the control | ratio | none | cut | ‖λu‖/‖v‖ |
|---|---|---|---|---|---|---|
{rows}
"""

LAGS = """
## How long an entropy gradient lasts

P-cosine of g_H at step 20 with g_H so many steps later; 2 × 8 samples of 128 responses each, whose
noise is taken out by products across the two.

| run | 0 | 1 | 2 | 4 | 8 | 16 |
|---|---|---|---|---|---|---|
{rows}
"""
