"""Results as tables on the screen."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from isentrope.cli.console import say
from isentrope.cli.layout import Column, print_table
from isentrope.estimators.identities import in_words, p_value
from isentrope.formatting import TERMINAL

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


def print_measurement(console: Console, results: list[dict[str, Any]]) -> None:
    """Print sweeps, one table for all checkpoints, and what goes with each of them.

    Args:
        console: Where to.
        results: Contents of results.json files.
    """
    unit = results[0]["estimator"]["unit"]
    print_table(console, f"Change of entropy ΔH(η) in {unit}", sweep_columns(results))
    for result in results:
        for line in summary_lines(result):
            say(line, console)


def sweep_columns(results: list[dict[str, Any]]) -> list[Column]:
    """ΔH(η) row by row; a column of checkpoints where there are several.

    Args:
        results: Contents of results.json files of one unit.

    Returns:
        The columns.
    """
    names, rows = [], []
    for result in results:
        for row in result["sweep"]:
            names.append(result["policy"]["name"])
            rows.append(_cells(row, result["batches"]["B_E"]))
            if fresh := row["resampled"]:
                measured = _measured(fresh["value"], fresh["se"])
                interval = bounds(fresh["ci_low"], fresh["ci_high"])
                names.append("")
                rows.append(["", measured, interval, "", "", "", "", "resampled"])
    cells = list(zip(*rows, strict=True))
    columns = [Column(title, cells[k], rank) for k, (title, rank) in enumerate(COLUMNS.items())]
    return [Column("checkpoint", names, left=True), *columns] if len(results) > 1 else columns


def _cells(row: dict[str, Any], n: int) -> list[str]:
    first, second = row["deltaH_approx"], row["deltaH_second"]
    ess = row["ess"] if row.get("ess_integrated") is None else row["ess_integrated"]
    return [
        f"{row['eta']:.3g}",
        _measured(row["deltaH_true"], row["deltaH_true_se"]),
        bounds(row["deltaH_true_ci_low"], row["deltaH_true_ci_high"]),
        _number(first),
        _number(None if first is None or second is None else first + second),
        "–" if ess is None else f"{ess:.0f}/{n}",
        "–" if row["khat"] is None else f"{row['khat']:.2f}",
        row["verdict"],
    ]


def summary_lines(result: dict[str, Any]) -> list[str]:
    """What goes with a table: entropy, linear range, checks, warnings.

    Args:
        result: The content of a results.json.

    Returns:
        Lines of text.
    """
    entropy, checks = result["entropy"], result["checks"]
    lines = [f"{result['policy']['name']}:"]
    for group in result["step"].get("param_groups", ()):
        lines.append(f"  param group  {_group(group)}")
    for kind in ("per_token", "per_sequence"):
        said = entropy[kind]
        lines.append(f"  entropy      {_measured(said['value'], said['se'])} {said['unit']}")
    reach = result["linear_range"]
    if reach is not None and reach["value"] is not None:
        ratio = reach["rate_over_range"]
        rate = result["step"]["rate_of_interest"]
        used = "" if ratio is None else f"; the training rate {rate:.3g} is {ratio:.2g} of it"
        ends = bounds(reach["ci_low"], reach["ci_high"])
        interval = "no interval" if ends == "–" else ends
        lines.append(f"  linear range η* = {_number(reach['value'])} {interval}{used}")
    first, pathwise, budget = result["first_order"], result["pathwise"], result["budget"]
    if first is not None and pathwise is not None:
        lines.append(
            f"  first order  {_measured(first['value'], first['se'])} {first['unit']}; at fixed "
            f"samples (what an entropy bonus sees) "
            f"{_measured(pathwise['value'], pathwise['se'])}"
        )
        known = ("momentum", "decay", "gradient", "control", "rounding")
        names = [name for name in known if name in budget]
        parts = [f"{name} {_measured(budget[name], budget[f'{name}_se'])}" for name in names]
        lines.append(f"  of which     {', '.join(parts)}")
    lines += settings_line(result)
    floor = checks["rounding_floor"]
    lines.append(
        f"  checks       {'; '.join(identity_words(checks))}; "
        f"rounding {_number(floor['log_weight'])} nats a sequence"
    )
    return lines + [f"  note         {sentence}" for sentence in result["warnings"]]


def _group(group: dict[str, Any]) -> str:
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


def identity_words(checks: dict[str, Any]) -> list[str]:
    """Both identities with their verdict.

    Args:
        checks: As in results.json.

    Returns:
        A clause per identity that was tested.
    """
    names = ("score_identity", "martingale")
    tested = {name: z for name in names if (z := checks[f"{name}_z"]) is not None}
    return [
        f"{name.replace('_', ' ')} z = {_number(z)} ({in_words(p_value(z), len(tested))})"
        for name, z in tested.items()
    ]


def settings_line(result: dict[str, Any]) -> list[str]:
    """What was taken from the checkpoint's own files, in a line; no line where nothing was.

    Args:
        result: The content of a results.json.

    Returns:
        At most one line.
    """
    keys = result.get("settings", {}).get("keys", {})
    taken = {key: k for key, k in keys.items() if k["from"] not in ("configuration", "default")}
    if not taken:
        return []
    values = ", ".join(f"{key.split('.')[1]} {k['value']}" for key, k in taken.items())
    files = ", ".join(dict.fromkeys(k["from"] for k in taken.values()))
    return [f"  as trained   {values} ({files})"]
