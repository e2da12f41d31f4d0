"""What `isentrope try` found, on the screen and as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from isentrope.cli.attribution_tables import bounds, measured, print_lines, table_of

TITLES = {
    "step": "the whole step, momentum included",
    "gradient": "the gradient part alone: what the step becomes once momentum has followed",
}


def print_trial(console: Console, result: dict[str, Any], folder: Path) -> None:
    """Print what each control gains over vanilla, and write trial.png beside the results.

    Args:
        console: Where to.
        result: The content of results.json.
        folder: Where its tables are.
    """
    from isentrope.reports.trial_figure import trial_figure

    name, lines = result["policy"]["name"], []
    for part, words in TITLES.items():
        plain = result["vanilla"][part]
        unit = plain["deltaH"]["unit"]
        console.print(_gains(f"{name}: gained over vanilla in one step, {words}", result, part))
        said = ", ".join(f"{k.replace('delta', 'Δ')} {measured(v)}" for k, v in plain.items())
        lines.append(f"  vanilla      {said} (ΔH in {unit}), {part}")
    trial_figure(result).savefig(folder / "trial.png", dpi=160)
    lines.append(f"  at           η = {result['eta']:.3g}; figure in {folder / 'trial.png'}")
    for entry in result["tried"].values():
        if entry["predicted"] is not None:
            lines.append(
                f"  strength     {entry['control']} {entry['strength']:.4g}: ΔH of the step "
                f"{measured(entry['step']['deltaH'])}, predicted {entry['predicted']:.3g}"
            )
    print_lines(console, lines, result["warnings"])


def _gains(title: str, result: dict[str, Any], part: str) -> Any:
    rewarded = "deltaJ" in result["vanilla"][part]
    columns = ["control", "strength", "touched", "ΔH gained", "95 % interval"]
    columns += ["ΔJ gained"] if rewarded else []
    table = table_of(title, [*columns, "over random"])
    for entry in result["tried"].values():
        said, share = entry[part], entry["did"].get("touched")
        gained, over = said["gained_deltaH"], said.get("over_random_deltaH")
        cells = [
            entry["control"],
            f"{entry['strength']:.3g}",
            "–" if share is None else f"{100 * share:.3g} %",
            measured(gained),
            bounds(gained["ci_low"], gained["ci_high"]),
        ]
        cells += [measured(said["gained_deltaJ"])] if rewarded else []
        table.add_row(*cells, measured(over))
    return table
