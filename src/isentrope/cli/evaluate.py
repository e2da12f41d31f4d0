"""`isentrope evaluate CONFIG`: one checkpoint or a folder of them on a task, into one table."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from isentrope.cli.app import ConfigFile, OutFolder, Overrides, err, one_sentence, out, overrides
from isentrope.formatting import TERMINAL

COLUMNS = {
    "reward": "reward",
    "format": "format",
    "response_length": "length",
    "truncated": "cut",
    "entropy_per_sequence": "ℋ",
    "entropy_per_token": "h",
    "forking_entropy": "forking h",
}
"""Metrics on the screen besides pass@k; the rest is in the file."""


@one_sentence
def evaluate(config: ConfigFile, settings: Overrides = None, folder: OutFolder = None) -> None:
    """Evaluate checkpoints on a task: pass@k, lengths, format, entropy; a restart goes on."""
    from isentrope.config.evaluate import EvaluateConfig
    from isentrope.config.io import load_config
    from isentrope.pipelines.evaluate import evaluate_checkpoints
    from isentrope.processes import rank
    from isentrope.progress import Progress

    asked = load_config(config, overrides(settings, folder), EvaluateConfig)
    made = evaluate_checkpoints(asked, progress=Progress(err))
    if rank() == 0:
        out.print(evaluation_table(made.results))
        for sentence in notes(made.results):
            out.print(f"  note  {sentence}", markup=False, highlight=False, soft_wrap=True)
        out.print(f"Wrote {made.table}", markup=False, highlight=False, soft_wrap=True)


def evaluation_table(results: list[dict[str, Any]]) -> Table:
    """A row a checkpoint and decoding, with the metrics that have a value somewhere.

    Args:
        results: Contents of metrics.json files.

    Returns:
        The table.
    """
    rows = [(result["checkpoint"], row) for result in results for row in result["rows"]]
    known = [name for name, found in rows[0][1]["metrics"].items() if found]
    passes = [name for name in known if name.startswith("pass_at_")]
    shown = {name: name.replace("_at_", "@") for name in passes[:1] + passes[1:][-1:]}
    shown |= {name: title for name, title in COLUMNS.items() if name in known}
    if all(_value(row, "reward") == _value(row, "pass_at_1") for _, row in rows):
        shown.pop("reward", None)  # right or wrong, and nothing else
    first = results[0]
    table = Table(
        title=f"{first['dataset']}, {first['split']}: {rows[0][1]['n_prompts']} prompts, "
        "± standard error; ℋ and h in nats per sequence and per token",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in ("checkpoint", "decoding"):
        table.add_column(name, no_wrap=True)
    for title in shown.values():
        table.add_column(title, justify="right", no_wrap=True)
    for checkpoint, row in rows:
        cells = [_measured(row["metrics"][name]) for name in shown]
        table.add_row(checkpoint, row["decoding"], *cells)
    return table


def notes(results: list[dict[str, Any]]) -> list[str]:
    """What limits the numbers of a table, each sentence once.

    Args:
        results: Contents of metrics.json files.

    Returns:
        The warnings of all estimates.
    """
    said = [
        sentence
        for result in results
        for row in result["rows"]
        for estimate in row["metrics"].values()
        if estimate
        for sentence in estimate.get("warnings", [])
    ]
    return list(dict.fromkeys(said))


def _value(row: dict[str, Any], name: str) -> float | None:
    return (row["metrics"].get(name) or {}).get("value")


def _measured(estimate: dict[str, Any] | None) -> str:
    value, se = (None, None) if estimate is None else (estimate["value"], estimate["se"])
    return TERMINAL.with_error(value, se).replace(" ", "")
