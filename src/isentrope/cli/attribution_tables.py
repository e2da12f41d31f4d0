"""Attributions as tables on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape

from isentrope.attribution.influence.reliability import LISTED, printed_reliability
from isentrope.attribution.noise.tail import LIGHT_TAILS
from isentrope.cli.console import say
from isentrope.cli.layout import Column, print_table
from isentrope.estimate import t_quantile
from isentrope.formatting import MISSING, TERMINAL

bounds, _number = TERMINAL.interval, TERMINAL.number


def print_influence(console: Console, result: dict[str, Any], folder: Path) -> None:
    """Print the budget, who moved the entropy most, and how reliable that is.

    Args:
        console: Where to.
        result: The content of results.json.
        folder: Where its tables are.
    """
    kinds = [kind for kind in ("tokens", "sequences") if (folder / f"{kind}.parquet").exists()]
    kind = kinds[0]
    table = pd.read_parquet(folder / f"{kind}.parquet")
    share = result.get("listed_share", {}).get(kind)
    _print_most(console, table, kind, result["policy"]["name"], share)
    entropy, reward = result["entropy"], result["reward"]
    lines = [
        f"{result['policy']['name']}: δH₁ {measured(entropy['total'])} {entropy['unit']}, on "
        f"{result.get('measured_on', 'E')}"
    ]
    parts = [f"{k} {measured(entropy[k])}" for k in ("momentum", "decay", "gradient")]
    lines.append(f"  of which     {', '.join(parts)}; closes to {entropy['closure']:.1e}")
    if reward is not None:
        parts = [f"{k} {measured(reward[k])}" for k in ("total", "momentum", "gradient")]
        lines.append(f"  reward       {', '.join(parts)} {reward['unit']}")
    if "shares" in result:
        lines.append(_shares(result["shares"]))
    lines.append(_reliability(result))
    if share is not None:
        lines.append(
            f"  listed       deltaH x {share:.2f}, the share of the largest {kind} that is not "
            f"noise; {kind}.parquet has what was measured"
        )
    lines.append(f"  by           {result['how']}; {_errors(result)}")
    print_lines(console, lines, result["warnings"])


def _shares(shares: dict[str, Any]) -> str:
    """Another population than the budget's: the sum is named first, and is not the gradient's."""
    parts = [
        f"{name.replace('_', ' ')} {measured(estimate)}"
        for name, estimate in shares.items()
        if name not in ("measured_on", "gradient")
    ]
    return (
        f"  shares       on other responses, {shares['measured_on']}: the gradient's part is "
        f"{measured(shares['gradient'])} there, of which {', '.join(parts)}"
    )


def _reliability(result: dict[str, Any]) -> str:
    found = result["reliability"]
    said = ", ".join(f"{of} {_number(printed_reliability(r))}" for of, r in found.items())
    return f"  reliability  rank correlation with an infinite E, about: {said}"


def _errors(result: dict[str, Any]) -> str:
    """What ± is, and what it is multiplied by."""
    df = result["groups"] - 1
    if df < 1:
        return "values alone, without errors"
    confidence = result["estimator"]["confidence"]
    return (
        f"± is one se from {result['groups']} groups of prompts, {df} degrees of freedom: multiply "
        f"by {t_quantile(df, confidence):.2f} for {confidence * 100:g} %"
    )


_LISTED_COLUMNS = {
    "tokens": {"sequence": 3, "position": 4, "text": 0, "s": 5, "H": 2, "advantage": 1},
    "sequences": {"sequence": 0, "key": 4, "length": 3, "reward": 2, "advantage": 1},
}
"""Columns beside the sizes, and their ranks (`layout`)."""


def _print_most(
    console: Console, table: pd.DataFrame, kind: str, name: str, share: float | None
) -> None:
    """Print the tokens (or sequences) that lower entropy most, and those that raise it most.

    Args:
        console: Where to.
        table: A row a token.
        kind: "tokens" or "sequences".
        name: Of the checkpoint.
        share: λ of the listed sizes (`kernel.reliability`), None where it is not known; the
            normal posterior of a size x with error se is λ x ± √λ se.
    """
    order = table.sort_values("deltaH")
    some = pd.concat([order.head(LISTED[0]), order.iloc[max(LISTED[0], len(order) - LISTED[1]) :]])
    if share is not None:
        some["deltaH"], some["deltaH_se"] = share * some["deltaH"], share**0.5 * some["deltaH_se"]
    columns = [
        Column(column, [_cell(x) for x in some[column]], rank)
        for column, rank in _LISTED_COLUMNS[kind].items()
    ]
    for rank, size in enumerate(c for c in ("deltaH", "deltaJ") if c in table):
        pairs = zip(some[size], some[f"{size}_se"], strict=True)
        cells = [f"{_number(x)} ± {_number(se, 1)}" for x, se in pairs]
        columns.append(Column(f"{size} ± se", cells, rank))
    title = f"{name}: {kind} that move entropy most, per unit η"
    print_table(console, title, columns, sections=[LISTED[0] - 1])


def print_kernel(console: Console, result: dict[str, Any], _: Path) -> None:
    """Print the structure of each block, its spectrum and the truncations.

    Args:
        console: Where to.
        result: The content of results.json.
    """
    name = result["policy"]["name"]
    for block, said in result["blocks"].items():
        if "structure" in said:
            _print_structure(console, f"{name}, {block}", said["structure"])
        lines = [f"{name}, {block}: {said['rows']} x {said['columns']}"]
        if difference := said.get("same_less_other_prompt"):
            lines.append(f"  difference   same less other prompts: {_difference(difference)}")
        if "spectrum" in said:
            spectrum = said["spectrum"]
            nulls = [f"{n['name']} {_number(n['effective_rank'])}" for n in spectrum["nulls"]]
            above = [n["above"] for n in spectrum["nulls"] if n["name"] == "observed norms"]
            lines.append(
                f"  spectrum     effective rank {measured(spectrum['effective_rank'])} "
                f"(null: {', '.join(nulls)})"
                + "".join(f"; {k} eigenvalues above those of observed norms" for k in above)
            )
            model = said["block_model"]
            parts = [f"{k.replace('_', ' ')} {measured(model[k])}" for k in _PARTS if model.get(k)]
            lines.append(f"  |K|² by      {', '.join(parts)}")
        if "clusters" in said:
            agreement = measured(said["clusters"]["prompt_agreement"])
            lines.append(f"  clusters     agree with prompts to {agreement} (adjusted Rand index)")
        if "sketch" in said:
            sketch = said["sketch"]
            lines.append(f"  sketch       {sketch['dimension']}: error {measured(sketch['error'])}")
        print_lines(console, lines, [])
    if "truncations" in result:
        _print_truncations(console, name, result["truncations"])
    print_lines(console, [], result["warnings"])


def print_noise(console: Console, result: dict[str, Any], _: Path) -> None:
    """Print every noise scale with its interval.

    Args:
        console: Where to.
        result: The content of results.json.
    """
    rows = [
        (of, name.replace("_", " "), measured(x), bounds(x["ci_low"], x["ci_high"]), x["unit"])
        for of in ("gradient", "preconditioned", "entropy", "supervised")
        for name, x in result.get(of, {}).items()
    ]
    cells = list(zip(*rows, strict=True)) or [()] * 5
    columns = [
        Column("of", cells[0], left=True),
        Column("quantity", cells[1], left=True),
        Column("value", cells[2]),
        Column("interval", cells[3], rank=1),
        Column("unit", cells[4], rank=2, left=True),
    ]
    print_table(console, f"{result['policy']['name']}: noise", columns)
    print_lines(console, [f"  intervals    {LIGHT_TAILS}"], result["warnings"])


def print_audit(console: Console, result: dict[str, Any], _: Path) -> None:
    """Print correlations, sign agreement and overlaps of every proxy.

    Args:
        console: Where to.
        result: The content of results.json.
    """
    for of in ("tokens", "sequences"):
        proxies = result[of]["proxies"]
        names = list(dict.fromkeys(name for row in proxies.values() for name in row))
        shown = [n for n in names if n.split("@")[0] in _AUDITED]
        title = f"{result['policy']['name']}: {result[of]['items']} {of}, proxies against influence"
        columns = [Column("proxy", list(proxies), left=True)]
        for rank, name in enumerate(shown):
            cells = [measured(row.get(name)) for row in proxies.values()]
            columns.append(Column(name.replace("_", " "), cells, rank))
        print_table(console, title, columns)
    print_lines(console, [_reliability(result).strip()], result["warnings"])


def _difference(found: dict[str, Any]) -> str:
    """One number each, with its own interval."""
    parts = [
        f"{name.replace('_', ' ')} {_number(x['value'])} {bounds(x['ci_low'], x['ci_high'])}"
        for name, x in found.items()
        if name != "mean"
    ]
    return ", ".join(parts)


_AUDITED = ("pearson", "spearman", "sign_agreement", "overlap")
_PARTS = ("diagonal", "same_prompt", "constant", "low_rank", "rest")


def _print_structure(console: Console, title: str, structure: dict[str, Any]) -> None:
    columns = [
        Column("relation", list(structure), left=True),
        Column("entries", [str(row["entries"]) for row in structure.values()], rank=3),
    ]
    for name, rank in {"mean": 0, "spread": 2, "mean_cosine": 0, "rms_cosine": 1}.items():
        cells = [measured(row[name]) for row in structure.values()]
        columns.append(Column(name.replace("_", " "), cells, rank))
    print_table(console, f"{title}: pairs", columns)


def _print_truncations(console: Console, name: str, rows: dict[str, Any]) -> None:
    columns = [Column("truncation", list(rows), left=True)]
    headings = {"ratio": "share of δH₁", "pearson": "Pearson", "spearman": "Spearman"}
    for rank, (column, heading) in enumerate(headings.items()):
        columns.append(Column(heading, [measured(row[column]) for row in rows.values()], rank))
    title = f"{name}: how much of δH₁ on U a truncated kernel predicts, by response"
    print_table(console, title, columns)


def measured(estimate: dict[str, Any] | None) -> str:
    """A number with its standard error, as short as it can be.

    Args:
        estimate: An Estimate as written in results.json, or None.

    Returns:
        For example "-2.24 ± 0.1".
    """
    return MISSING if estimate is None else TERMINAL.with_error(estimate["value"], estimate["se"])


def print_lines(console: Console, lines: list[str], warnings: list[str]) -> None:
    """Print lines of text, then what limits the use of the numbers.

    Args:
        console: Where to.
        lines: Text.
        warnings: Sentences.
    """
    for line in [*lines, *(f"  note         {sentence}" for sentence in warnings)]:
        say(line, console)


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return escape(repr(value)[1:-1])
    return str(value) if isinstance(value, (int, np.integer)) else _number(value)
