"""Results as tables on the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from isentrope.cli.attribution_tables import measured
from isentrope.cli.console import say
from isentrope.cli.layout import Column, print_table
from isentrope.config.as_trained import ASSUMED, OURS
from isentrope.estimators.identities import in_words, p_value
from isentrope.results.results import MeasureResult
from isentrope.results.sweep import Checks, SweepRow
from isentrope.system.formatting import TERMINAL, known

COLUMNS = {
    "η": 0,
    "ΔH ± se": 0,
    "interval": 1,
    "first order": 2,
    "first + second": 4,
    "ESS": 3,
    "k̂": 5,
    "verdict": 0,
}
"""Headings of a sweep, and their ranks: the largest is left out first."""

bounds, _measured, _number = TERMINAL.interval, TERMINAL.with_error, TERMINAL.number


def print_measurement(console: Console, results: Sequence[MeasureResult]) -> None:
    """Print sweeps, one table for all checkpoints, and what goes with each of them."""
    title = f"Change of entropy ΔH(η) in {results[0].unit}"
    if any(s.source == ASSUMED for result in results for s in result.settings.keys.values()):
        title += ", of a step with assumed settings (note)"
    print_table(console, title, sweep_columns(results))
    for result in results:
        for line in summary_lines(result):
            say(line, console)


def sweep_columns(results: Sequence[MeasureResult]) -> list[Column]:
    """ΔH(η) row by row, of results in one unit; a column of checkpoints where there are several."""
    names, rows = [], []
    for result in results:
        for row in result.sweep:
            names.append(result.policy.name)
            rows.append(_cells(row, result.batches.B_E))
            if fresh := row.resampled:
                interval = bounds(fresh.ci_low, fresh.ci_high)
                names.append("")
                rows.append(["", measured(fresh), interval, "", "", "", "", "resampled"])
    cells = list(zip(*rows, strict=True))
    columns = [Column(title, cells[k], rank) for k, (title, rank) in enumerate(COLUMNS.items())]
    return [Column("checkpoint", names, left=True), *columns] if len(results) > 1 else columns


def _cells(row: SweepRow, n: int) -> list[str]:
    ess, khat = known(row.effective_size), known(row.khat)
    return [
        f"{row.eta:.3g}",
        _measured(row.delta_h, row.delta_h_se),
        bounds(row.delta_h_ci_low, row.delta_h_ci_high),
        _number(row.first_order),
        _number(row.first_order + row.second_order),
        "–" if ess is None else f"{ess:.0f}/{n}",
        "–" if khat is None else f"{khat:.2f}",
        row.verdict,
    ]


def summary_lines(result: MeasureResult) -> list[str]:
    """What goes with a table: entropy, linear range, checks, warnings."""
    lines = [f"{result.policy.name}:"]
    for group in result.step.param_groups:
        lines.append(f"  param group  {_group(group)}")
    for kind in ("per_token", "per_sequence"):
        entropy = result.entropy[kind]
        lines.append(f"  entropy      {measured(entropy)} {entropy.unit}")
    lines += [*_range_line(result), *_order_lines(result), *reward_lines(result)]
    lines += settings_line(result)
    floor = _number(result.checks.rounding_floor.log_weight)
    identities = "; ".join(identity_words(result.checks))
    lines.append(f"  checks       {identities}; rounding {floor} nats per sequence")
    return lines + [f"  note         {sentence}" for sentence in result.warnings]


def _range_line(result: MeasureResult) -> list[str]:
    reach = result.linear_range
    if reach is None or known(reach.value) is None:
        return []
    ratio, used = reach.rate_over_range, ""
    if ratio is not None:
        used = f"; the training rate {result.rate:.3g} is {ratio:.2g} of it"
    ends = bounds(reach.ci_low, reach.ci_high)
    interval = "no interval" if ends == "–" else ends
    return [f"  linear range η* = {_number(reach.value)} {interval}{used}"]


def _order_lines(result: MeasureResult) -> list[str]:
    first, pathwise = result.first_order, result.pathwise
    if first is None or pathwise is None:
        return []
    names = ("momentum", "decay", "gradient", "control", "rounding")
    parts = [f"{name} {measured(part)}" for name in names if (part := result.part(name))]
    return [
        f"  first order  {measured(first)} {first.unit}; at fixed samples (what an entropy bonus "
        f"sees) {measured(pathwise)}",
        f"  of which     {', '.join(parts)}",
    ]


def reward_lines(result: MeasureResult) -> list[str]:
    """Expected reward, its change at the training rate, and where its parabola is highest."""
    reward = result.reward
    if reward is None:
        return []
    line = f"  reward       J {measured(reward.at_theta)}"
    if (row := reward.at(result.rate)) is not None:
        ends = bounds(row.delta_j_ci_low, row.delta_j_ci_high)
        line += f"; at η = {row.eta:.3g} ΔJ {_measured(row.delta_j, row.delta_j_se)} {ends}"
    if reward.top is not None:
        ends = bounds(reward.top.ci_low, reward.top.ci_high)
        line += f"; highest at η = {_number(reward.top.value)} {ends}"
    return [line]


def _group(group: Mapping[str, Any]) -> str:
    """The settings of a param group that matter to its step."""
    words = {"lr": "η", "weight_decay": "weight decay", "betas": "betas", "momentum": "momentum"}
    parts = []
    for key, name in words.items():
        value = group.get(key)
        if value is not None:
            several = isinstance(value, (list, tuple))
            parts.append(
                f"{name} {', '.join(f'{x:g}' for x in value) if several else f'{value:g}'}"
            )
    return f"{'; '.join(parts)} ({group['tensors']} tensors)"


def identity_words(checks: Checks) -> list[str]:
    """Each identity that was tested, with its verdict."""
    identities = {"score identity": checks.score_identity_z, "martingale": checks.martingale_z}
    tested = {name: z for name, z in identities.items() if z is not None}
    return [
        f"{name} z = {_number(z)} ({in_words(p_value(z), len(tested))})"
        for name, z in tested.items()
    ]


def settings_line(result: MeasureResult) -> list[str]:
    """What was taken from the checkpoint's own files, in a line; no line where nothing was."""
    settings = result.settings.keys
    taken = {key: setting for key, setting in settings.items() if setting.source not in OURS}
    if not taken:
        return []
    values = ", ".join(f"{key.split('.')[1]} {setting.value}" for key, setting in taken.items())
    files = ", ".join(dict.fromkeys(setting.source for setting in taken.values()))
    return [f"  as trained   {values} ({files})"]
