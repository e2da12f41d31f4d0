"""What `isentrope try` found, on the screen and as a figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from isentrope.cli.attribution_tables import bounds, measured, print_lines
from isentrope.cli.layout import Column, print_table
from isentrope.nouns.estimate import Estimate
from isentrope.reports.figures import trial_figure
from isentrope.results.results import TrialResult
from isentrope.system.progress import Progress
from isentrope.verbs import trial
from isentrope.verbs.prepare import Prepared
from isentrope.verbs.trial_steps import SHRUNK

TITLES = {
    "step": "the whole step, momentum included",
    "gradient": "the gradient part alone: what the step becomes once momentum has followed",
}

PRICES = (
    "above that of a lower rate, so worse",
    "below that of a lower rate, so better",
    "not distinguishable from that of a lower rate",
    "none, because ΔH gained, or vanilla's ΔH or ΔJ, is not clearly of its sign",
)
"""What the interval of a price says."""
WORDS = {"delta_h": "ΔH", "delta_j": "ΔJ"}


def find_trial(ready: Prepared, progress: Progress) -> TrialResult:
    """What controls would do to the next step, with the figure trial.png among its files."""
    result = trial.find_trial(ready, progress)

    def draw(folder: Path) -> None:
        trial_figure(result).savefig(folder / "trial.png", dpi=160)

    return replace(result, save_more=draw)


def print_trial(console: Console, result: TrialResult, folder: Path) -> None:
    """Print what each control gains over vanilla."""
    name, lines = result.policy.name, []
    for part, words in TITLES.items():
        plain = result.vanilla[part]
        unit = plain["delta_h"].unit
        title = f"{name}: gained over vanilla in one step, {words}"
        print_table(console, title, _gains(result, part))
        changes = ", ".join(f"{WORDS[k]} {measured(v)}" for k, v in plain.items())
        lines.append(f"  vanilla      {changes} (ΔH in {unit}), {part}")
        if "delta_j" in plain:
            lines += [
                f"  price        {sentence} ({part})" for sentence in price_sentences(result, part)
            ]
    lines.append(f"  at           η = {result.eta:.3g}; figure in {folder / 'trial.png'}")
    for entry in result.tried.values():
        if entry.predicted is not None:
            lines.append(
                f"  strength     {entry.control} {entry.strength:.4g}: ΔH of the step "
                f"{measured(entry.step['delta_h'])}, predicted {entry.predicted:.3g}"
            )
    print_lines(console, lines, result.warnings)


def price_sentences(result: TrialResult, part: str) -> list[str]:
    """Which controls are worse than a lower rate, which better, and which are neither clearly."""
    found: dict[str, dict[str, str]] = {words: {} for words in PRICES}
    lower_rate = [e.part(part).get("price") for e in result.tried.values() if e.control == SHRUNK]
    ones = [1.0, *(price.value for price in lower_rate if price is not None)]  # beyond first order
    for entry in result.tried.values():
        if entry.control != SHRUNK:
            same = found[_verdict(entry.part(part).get("price"), min(ones), max(ones))]
            before = f"{same[entry.control]}, " if entry.control in same else f"{entry.control} "
            same[entry.control] = f"{before}{entry.strength:.3g}"
    return [f"{words}: {'; '.join(of.values())}" for words, of in found.items() if of]


def _verdict(price: Estimate | None, low: float, high: float) -> str:
    if price is None:
        return PRICES[3]
    return PRICES[0 if price.ci_low > high else 1 if price.ci_high < low else 2]


def _gains(result: TrialResult, part: str) -> list[Column]:
    tried = list(result.tried.values())
    shares = [entry.did.get("touched") for entry in tried]
    gained = [entry.part(part)["gained_delta_h"] for entry in tried]
    columns = [
        Column("control", [entry.control for entry in tried], left=True),
        Column("strength", [f"{entry.strength:.3g}" for entry in tried]),
        Column("touched", ["–" if x is None else f"{100 * x:.3g} %" for x in shares], rank=3),
        Column("ΔH gained", [measured(x) for x in gained]),
        Column("95 % interval", [bounds(x.ci_low, x.ci_high) for x in gained], rank=2),
    ]
    if "delta_j" in result.vanilla[part]:
        rewards = [measured(entry.part(part)["gained_delta_j"]) for entry in tried]
        columns.append(Column("ΔJ gained", rewards))
        prices = [entry.part(part).get("price") for entry in tried]
        columns.append(Column("price", [_price(x) for x in prices]))
    over = [measured(entry.part(part).get("over_random_delta_h")) for entry in tried]
    return [*columns, Column("over random", over, rank=1)]


def _price(price: Estimate | None) -> str:
    return "–" if price is None else f"{price.value:.3g} {bounds(price.ci_low, price.ci_high)}"
