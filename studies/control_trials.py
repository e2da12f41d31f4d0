"""What does each control gain in one step? Every token control and the entropy budget, one table.

    python -m studies.control_trials

For three seeds it fine-tunes the toy policy (configs/sft_toy.yaml), trains it for 40 steps
(configs/train_toy.yaml, a checkpoint every 8), and runs `isentrope try` with all controls and
random masks on the five checkpoints: the same update batch for all controls, and the same E of 256
responses, disjoint from the controls' own. E and U are drawn anew at each checkpoint. The table has
the gain over vanilla as a share of vanilla's |ΔH| (and of vanilla's |ΔJ|): the sum of gains over
the 15 checkpoints over the sum of vanilla's. Intervals of gains are t over the three seeds, with
vanilla's sum taken as known. `price` is the reward lost per entropy gained, both as such shares,
with Fieller's interval over the 15 steps, vanilla's error included; a step that is shrunk has price
1 to first order. `over random` is the gain over a random mask of
as many tokens: that of random masks of five sizes, linear between sizes and 0 at none.

Writes docs/results/control_trials.md and control_trials.png. With --prices it tries five controls
alone, each at one strength that acts, and writes docs/results/control_prices.md.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from isentrope.commands.trial import TryCommand
from isentrope.config.io import load_config
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.control.controls import STEP_CONTROLS, TOKEN_CONTROLS
from isentrope.control.names import EXAMPLES
from isentrope.estimators.jackknife import Jackknifed
from isentrope.estimators.ratio import ratio_of
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import t_quantile
from isentrope.system.formatting import PAGE
from isentrope.verbs.loop import run_verb
from isentrope.verbs.sft import sft
from isentrope.verbs.train import train
from isentrope.verbs.trial import on_frontier
from validation.origin import write_results
from validation.toy_training import QUIET

SEEDS = (0, 1, 2)
STEPS = (8, 16, 24, 32, 40)
PARTS = {"step": "Whole step", "gradient": "Gradient part alone"}
GAINS = ("gained_delta_h", "gained_delta_j")
PRICED_STEPS = {0: (8, 24), 1: (24, 40), 2: (40, 8)}
"""Checkpoints of --prices, by seed."""
FILES = {name: f"examples/controls/{place}" for name, place in EXAMPLES.items()}
RANDOM = FILES["random_mask"]
PRICED = {1.0: [FILES["influence"], "budget"], 16.0: ["repo_r", "bonus"], 100.0: ["clip_cov"]}
"""Controls that gain entropy in one step, by a multiple of the default strength that acts."""
ALL = [*TOKEN_CONTROLS, *STEP_CONTROLS, *FILES.values()]


def trained(folder: Path, seed: int) -> Path:
    """The run of a seed, made where it is not there yet."""
    base, run = folder / f"sft_{seed}", folder / f"train_{seed}"
    if not (base / "model").exists():
        settings = [f"fine_tuning.seed={seed}", f"output.directory={base}", *QUIET]
        sft(load_config("configs/sft_toy.yaml", settings, SftConfig))
    if not (run / "training_state" / f"step_{STEPS[-1]}").exists():
        settings = [
            f"model.path={base / 'model'}",
            f"training.seed={seed}",
            f"training.save_every={STEPS[0]}",
            f"output.directory={run}",
            "entropy_probe.enabled=false",
            *QUIET,
        ]
        train(load_config("configs/train_toy.yaml", settings, TrainConfig))
    return run


def tried(run: Path, seed: int, size: int) -> list[dict[str, Any]]:
    """results.json of `try all` at each checkpoint."""
    return [tried_at(run, step, 1000 + 100 * seed + step, size) for step in STEPS]


def priced(run: Path, step: int, seed: int, size: int) -> dict[str, Any]:
    """The same of the controls of PRICED, each at its strength."""
    found = [tried_at(run, step, seed, size, *of) for of in PRICED.items()]
    return found[0] | {"tried": {k: v for one in found for k, v in one["tried"].items()}}


def tried_at(
    run: Path,
    step: int,
    seed: int,
    size: int,
    multiple: float | None = None,
    controls: Sequence[str] = tuple(ALL),
) -> dict[str, Any]:
    """results.json of `try` at one checkpoint, on batches of its own."""
    strengths = None if multiple is None else [multiple]
    name = f"tried_{step}" if multiple is None else f"priced_{step}_{multiple:g}"
    config = load_config(
        {
            "checkpoint": {"checkpoint_path": str(run / "training_state" / f"step_{step}")},
            "batch_config": {
                "dataset_name": "addition",
                "B_E": size,
                "B_U": 16,
                "G": 8,
                "seed": seed,
            },
            "sampling": {"max_new_tokens": 23},
            "precision": {"runtime_dtype": "float32"},
            "trial": {
                "controls": list(controls),
                "strengths": strengths,
                "random_masks": False,
            },
            "output": {"directory": str(run / name), "log_level": "WARNING"},
        },
        root=MeasureConfig,
    )
    (result,) = run_verb(TryCommand, config).results
    return result.to_dict()


def gains(found: dict[int, list[dict[str, Any]]], part: str) -> pd.DataFrame:
    """One row per control and strength: gains as shares of vanilla's change, mean and half width.

    Args:
        found: Results by seed.
        part: "step" or "gradient".

    Returns:
        Columns control, strength, touched, and each of GAINS with _half; seeds as units.
    """
    rows = []
    scale = {gain: vanilla(found, part, gain) for gain in GAINS}
    masks = {seed: mask_curve(results, part, scale) for seed, results in found.items()}
    for name in found[SEEDS[0]][0]["tried"]:
        entries = {seed: [r["tried"].get(name) for r in found[seed]] for seed in found}
        if not all(all(e is not None for e in x) for x in entries.values()):
            continue
        first = entries[SEEDS[0]][0]
        row: dict[str, Any] = {k: first[k] for k in ("control", "strength")}
        touched = {seed: share_touched(some) for seed, some in entries.items()}
        row["touched"] = sum(touched.values()) / len(touched)
        row["price"] = price_of(found, name, part)
        for gain in GAINS:
            by_seed = {s: gained(found[s], name, part, gain) / scale[gain] for s in found}
            row[gain], row[f"{gain}_half"] = mean_and_half(list(by_seed.values()))
            over = [x - np.interp(touched[s], *masks[s][gain]) for s, x in by_seed.items()]
            alone = row["control"] == RANDOM or not row["touched"] > 0
            beyond = (math.nan, math.nan) if alone else mean_and_half(over)
            row[f"over_random{gain[6:]}"], row[f"over_random{gain[6:]}_half"] = beyond
        rows.append(row)
    return pd.DataFrame(rows)


def vanilla(found: dict[int, list[dict[str, Any]]], part: str, gain: str) -> float:
    """Size of vanilla's change at all checkpoints of a seed, the mean over the seeds."""
    changes = [
        r["vanilla"][part][gain.removeprefix("gained_")]["value"] for x in found.values() for r in x
    ]
    return abs(sum(changes)) / len(found)


def gained(results: list[dict[str, Any]], name: str, part: str, gain: str) -> float:
    """What a control gains at all checkpoints of a seed."""
    return sum(r["tried"][name][part][gain]["value"] for r in results)


def share_touched(entries: list[dict[str, Any]]) -> float:
    """Mean share of tokens whose weight a control changes; NaN for a control of the step."""
    return sum(e["did"].get("touched", math.nan) for e in entries) / len(entries)


def mask_curve(
    results: list[dict[str, Any]], part: str, scale: dict[str, float]
) -> dict[str, tuple[Any, Any]]:
    """Gains of random masks by their share of the tokens, from (0, 0) on."""
    names = [n for n, entry in results[0]["tried"].items() if entry["control"] == RANDOM]
    sizes = [share_touched([r["tried"][n] for r in results]) for n in names]
    curves = {}
    for gain in GAINS:
        values = [gained(results, n, part, gain) / scale[gain] for n in names]
        points = sorted([(0.0, 0.0), *zip(sizes, values, strict=True)])
        curves[gain] = tuple(zip(*points, strict=True))
    return curves


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of its 95 % t-interval; NaN for fewer than two values."""
    n = len(values)
    if n < 2:
        return math.nan, math.nan
    mean = sum(values) / n
    spread = math.sqrt(sum((x - mean) ** 2 for x in values) / (n - 1) / n)
    return mean, t_quantile(n - 1) * spread


def markdown(table: pd.DataFrame) -> list[str]:
    """The table of one part, sorted by control and strength."""
    lines = [
        "| control | strength | touched | ΔH gained | ΔJ gained | price | ΔH over random "
        "| frontier |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for _, row in table.iterrows():
        cells = [
            f"`{row['control']}`",
            f"{row['strength']:.3g}",
            "–" if math.isnan(row["touched"]) else f"{100 * row['touched']:.3g} %",
            *(_with_half(row, gain) for gain in GAINS),
            _price(row),
            _with_half(row, "over_random_delta_h"),
            "yes" if row["frontier"] else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _with_half(row: pd.Series, gain: str) -> str:
    value, half = row[gain], row[f"{gain}_half"]
    return "–" if math.isnan(value) else f"{value:+.3f} ± {half:.3f}"


def price_of(found: dict[int, list[dict[str, Any]]], name: str, part: str) -> Estimate | None:
    """The price over all steps; None where a part of its denominator may be zero."""
    steps = [r for results in found.values() for r in results]
    rows = [
        [*(r["tried"][name][part][gain]["value"] for gain in GAINS)]
        + [r["vanilla"][part][gain.removeprefix("gained_")]["value"] for gain in GAINS]
        for r in steps
    ]
    x, n = torch.tensor(rows, dtype=torch.float64), len(rows)
    joint = Jackknifed(x.mean(0), (x - x.mean(0)).T / n, n)
    estimates = [
        Estimate.from_standard_error(float(v), float(se), n, unit="", method="mean of steps")
        for v, se in zip(joint.values, joint.standard_errors, strict=True)
    ]
    gained, _, plain, earned = estimates
    if not plain.ci_high < 0 < min(earned.ci_low, gained.ci_low):
        return None
    (gh, gj, h, j), (of_gh, of_gj, of_h, of_j) = joint.values.tolist(), joint.influences
    ends = joint.values.new_tensor((gj * h, gh * j))
    parts = torch.stack((gj * of_h + h * of_gj, gh * of_j + j * of_gh))
    price = ratio_of(
        Jackknifed(ends, parts, n),
        0,
        1,
        name="the price's denominator",
        sign="any",
        unit="of the plain step's",
        method="mean of steps",
        confidence=0.95,
    )
    return price if math.isfinite(price.ci_low) else None


def _price(row: pd.Series) -> str:
    price = row["price"]
    return "–" if price is None else f"{price.value:.2f} [{price.ci_low:.2f}, {price.ci_high:.2f}]"


def verdicts(table: pd.DataFrame) -> str:
    """Sentences on which controls are worse than a lower rate, by the intervals of their prices."""
    words = {
        "worse than a lower rate (price above 1)": lambda p: p is not None and p.ci_low > 1,
        "better than a lower rate (price below 1)": lambda p: p is not None and p.ci_high < 1,
        "not distinguishable from a lower rate": lambda p: p is not None and p.covers(1.0),
        "without a price, as their gain of entropy or a change of vanilla's may be 0": lambda p: (
            p is None
        ),
    }
    sentences = []
    for what, holds in words.items():
        pairs = zip(table["control"], table["price"], strict=True)
        rows = table[[control != "shrunk_step" and holds(p) for control, p in pairs]]
        named = [
            f"`{control}` {', '.join(f'{x:.3g}' for x in some['strength'])}"
            for control, some in rows.groupby("control", sort=False)
        ]
        sentences.append(f"{what[0].upper()}{what[1:]}: {'; '.join(named) or 'none'}.")
    return "\n".join(f"- {sentence}" for sentence in sentences)


def figure(tables: dict[str, pd.DataFrame], path: Path) -> None:
    """Entropy gained against reward gained, one curve per control."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn, places = plt.subplots(1, 2, figsize=(10, 5.2), layout="constrained")
    for axes, (part, table) in zip(places, tables.items(), strict=True):
        axes.axhline(0, color="0.8", lw=0.8)
        axes.axvline(0, color="0.8", lw=0.8)
        colors = plt.get_cmap("tab20").colors
        for k, (control, rows) in enumerate(table.groupby("control", sort=False)):
            axes.errorbar(
                rows["gained_delta_j"],
                rows["gained_delta_h"],
                xerr=rows["gained_delta_j_half"],
                yerr=rows["gained_delta_h_half"],
                marker="osD^v<>PX*hd8p"[k % 14],
                color=colors[k % 20],
                ms=4,
                lw=1,
                elinewidth=0.4,
                label=control,
            )
        axes.set(title=PARTS[part], xlabel="ΔJ gained / |ΔJ of vanilla|")
        axes.set_xlim(-2.2, 0.8)
        axes.set_ylim(-0.6, 1.9)
    places[0].set_ylabel("ΔH gained / |ΔH of vanilla|")
    handles, labels = places[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    drawn.savefig(path, dpi=150)


def page(found: dict[int, list[dict[str, Any]]], tables: dict[str, pd.DataFrame]) -> str:
    """docs/results/control_trials.md."""
    whole = [r["vanilla"]["step"]["delta_h"]["value"] for x in found.values() for r in x]
    part = [r["vanilla"]["gradient"]["delta_h"]["value"] for x in found.values() for r in x]
    reward = [r["vanilla"]["step"]["delta_j"]["value"] for x in found.values() for r in x]
    n = len(whole)
    intro = [
        "# What each control gains in one step",
        "",
        "```",
        "python -m studies.control_trials",
        "```",
        "",
        f"Written on {date.today()}. Toy policy, addition, seeds {', '.join(map(str, SEEDS))}, "
        f"checkpoints {', '.join(map(str, STEPS))} of 40: {n} steps, each tried on the same update "
        "batch (16 × 8) and measured on the same E. Vanilla's step changes h by "
        f"{sum(whole) / n:+.2e} nats per token on average, its gradient part alone by "
        f"{sum(part) / n:+.2e}, and the reward by {sum(reward) / n:+.2e}. Gains are shares of "
        "vanilla's change, summed over the checkpoints; ± is half of a 95 % t-interval over the "
        "three seeds, with vanilla's sum taken as known. A gain of +1 in ΔH is a step that leaves "
        "entropy as it is. `price` is the reward lost per entropy gained, both as such shares, "
        "with Fieller's 95 % interval over the 15 steps, vanilla's error included; omitted where "
        "the entropy gained, or a change of vanilla's, is not distinguishable from 0. "
        "`shrunk_step` is half of vanilla's step, `no_momentum` the optimizer's step with β₁ = 0. "
        "`over random` is the gain over a random mask of as many "
        "tokens, read off the masks' own rows, linear between sizes. `frontier`: no other row "
        "gains more of both.",
        "",
        "![Entropy gained against reward gained](control_trials.png)",
    ]
    for name, title in PARTS.items():
        intro += ["", f"## {title}", "", verdicts(tables[name]), "", *markdown(tables[name])]
    return "\n".join([*intro, ""])


def prices(found: dict[int, list[dict[str, Any]]], part: str) -> pd.DataFrame:
    """One row per control: gains in units of each step's sum over the steps, and the price."""
    steps = [r for results in found.values() for r in results]
    rows = []
    for name, first in steps[0]["tried"].items():
        row: dict[str, Any] = {k: first[k] for k in ("control", "strength")}
        for gain in GAINS:
            scale = abs(sum(r["vanilla"][part][gain[7:]]["value"] for r in steps)) / len(steps)
            values = [r["tried"][name][part][gain]["value"] / scale for r in steps]
            row[gain], row[f"{gain}_half"] = mean_and_half(values)
        row["price"] = price_of(found, name, part)
        rows.append(row)
    return pd.DataFrame(rows)


def prices_page(found: dict[int, list[dict[str, Any]]], size: int) -> str:
    """docs/results/control_prices.md."""
    steps = [r for results in found.values() for r in results]
    lines = [
        "# What entropy costs in one step",
        "",
        f"`python -m studies.control_trials --prices --size {size}`, {date.today()}.",
        "",
        f"Toy policy, addition, seeds {', '.join(map(str, found))}, {len(steps)} steps of 40-step "
        f"runs. Each step has an update batch (16 × 8) and an E of {size} responses of its own. "
        "Each control acts at one strength. Gains are shares of vanilla's change, ± half of a 95 % "
        "t-interval over the steps with vanilla's sum as known. `price` is the reward lost over "
        "the entropy gained, both as such shares, with Fieller's 95 % interval over the steps, "
        "vanilla's error included. `shrunk_step` is half of vanilla's step: a lower rate, whose "
        "price is 1 to first order. `no_momentum` is the optimizer's step with β₁ = 0.",
    ]
    for part, title in PARTS.items():
        table = prices(found, part)
        means = [
            symbol
            + " "
            + PAGE.with_error(*mean_and_half([r["vanilla"][part][key]["value"] for r in steps]))
            for symbol, key in (("ΔH", "delta_h"), ("ΔJ", "delta_j"))
        ]
        lines += ["", f"## {title}", "", f"Vanilla, per step: {', '.join(means)}.", ""]
        lines += [verdicts(table), "", "| control | strength | ΔH gained | ΔJ gained | price |"]
        lines += ["|---|---|---|---|---|"]
        for _, row in table.iterrows():
            cells = [f"`{row['control']}`", f"{row['strength']:.3g}"]
            cells += [*(_with_half(row, gain) for gain in GAINS), _price(row)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Run everything that is not there yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="runs/control_trials", help="(%(default)s)")
    parser.add_argument("--size", type=int, default=256, help="of E (%(default)s)")
    parser.add_argument("--prices", action="store_true", help="of five controls alone")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    results = Path("docs/results")
    runs = {seed: trained(Path(asked.run), seed) for seed in SEEDS}
    if asked.prices:
        found = {
            seed: [priced(run, s, 1000 + 100 * seed + s, asked.size) for s in PRICED_STEPS[seed]]
            for seed, run in runs.items()
        }
        write_results(results / "control_prices.md", prices_page(found, asked.size))
        return
    found = {seed: tried(run, seed, asked.size) for seed, run in runs.items()}
    tables = {part: gains(found, part) for part in PARTS}
    for table in tables.values():
        table["frontier"] = on_frontier(table)
    figure(tables, results / "control_trials.png")
    write_results(results / "control_trials.md", page(found, tables))
    print(json.dumps({p: len(t) for p, t in tables.items()}))


if __name__ == "__main__":
    main()
