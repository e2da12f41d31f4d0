"""Attributions as tables on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isentrope.attribution.influence.reliability import LISTED, printed_reliability
from isentrope.attribution.noise.tail import LIGHT_TAILS
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
    console.print(_most(table, kind, result["policy"]["name"], share))
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


def _most(table: pd.DataFrame, kind: str, name: str, share: float | None) -> Table:
    """The tokens (or sequences) that lower entropy most, and those that raise it most.

    Args:
        table: A row a token.
        kind: "tokens" or "sequences".
        name: Of the checkpoint.
        share: λ of the listed sizes (`kernel.reliability`), None where it is not known; the
            normal posterior of a size x with error se is λ x ± √λ se.

    Returns:
        The table.
    """
    order = table.sort_values("deltaH")
    some = pd.concat([order.head(LISTED[0]), order.iloc[max(LISTED[0], len(order) - LISTED[1]) :]])
    if share is not None:
        some["deltaH"], some["deltaH_se"] = share * some["deltaH"], share**0.5 * some["deltaH_se"]
    columns = {
        "tokens": ["sequence", "position", "text", "s", "H", "advantage"],
        "sequences": ["sequence", "key", "length", "reward", "advantage"],
    }[kind]
    values = [c for c in ("deltaH", "deltaJ") if c in table]
    shown = Table(
        title=f"{name}: {kind} that move entropy most, per unit η",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for column in [*columns, *(f"{c} ± se" for c in values)]:
        shown.add_column(column, justify="right", no_wrap=True)
    for k, (_, row) in enumerate(some.iterrows()):
        cells = [_cell(row[c]) for c in columns]
        cells += [f"{_number(row[c])} ± {_number(row[f'{c}_se'], 1)}" for c in values]
        shown.add_row(*cells, end_section=k == LISTED[0] - 1)
    return shown


def print_kernel(console: Console, result: dict[str, Any], _: Path) -> None:
    """Print the structure of each block, its spectrum and the truncations.

    Args:
        console: Where to.
        result: The content of results.json.
    """
    name = result["policy"]["name"]
    for block, said in result["blocks"].items():
        if "structure" in said:
            console.print(_structure(f"{name}, {block}", said["structure"]))
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
        console.print(_truncations(name, result["truncations"]))
    print_lines(console, [], result["warnings"])


def print_noise(console: Console, result: dict[str, Any], _: Path) -> None:
    """Print every noise scale with its interval.

    Args:
        console: Where to.
        result: The content of results.json.
    """
    table = table_of(
        f"{result['policy']['name']}: noise", ["of", "quantity", "value", "interval", ""]
    )
    for of in ("gradient", "preconditioned", "entropy", "supervised"):
        for name, estimate in result.get(of, {}).items():
            interval = bounds(estimate["ci_low"], estimate["ci_high"])
            words = (of, name.replace("_", " "), measured(estimate), interval, estimate["unit"])
            table.add_row(*words)
    console.print(table)
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
        table = table_of(title, ["proxy", *(n.replace("_", " ") for n in shown)])
        for proxy, row in proxies.items():
            table.add_row(proxy, *(measured(row.get(name)) for name in shown))
        console.print(table)
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


def _structure(title: str, structure: dict[str, Any]) -> Table:
    columns = ("mean", "spread", "mean_cosine", "rms_cosine")
    table = table_of(
        f"{title}: pairs", ["relation", "entries", *(c.replace("_", " ") for c in columns)]
    )
    for relation, row in structure.items():
        table.add_row(relation, str(row["entries"]), *(measured(row[c]) for c in columns))
    return table


def _truncations(name: str, rows: dict[str, Any]) -> Table:
    columns = ("ratio", "pearson", "spearman")
    table = table_of(
        f"{name}: how much of δH₁ on U a truncated kernel predicts",
        ["truncation", "share of δH₁", "Pearson by response", "Spearman by response"],
    )
    for truncation, row in rows.items():
        table.add_row(truncation, *(measured(row[c]) for c in columns))
    return table


def table_of(title: str, columns: list[str]) -> Table:
    """An empty table.

    Args:
        title: Above it.
        columns: Names; all but the first hold numbers.

    Returns:
        The table.
    """
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for k, column in enumerate(columns):
        table.add_column(column, justify="left" if k == 0 else "right", no_wrap=True)
    return table


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
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return escape(repr(value)[1:-1])
    return str(value) if isinstance(value, (int, np.integer)) else _number(value)
