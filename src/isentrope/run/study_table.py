"""Every number of a study in one tidy table, and its mean over fresh update batches.

A row is one quantity of one checkpoint and repeat: checkpoint, step, repeat, quantity, value, se,
ci_low, ci_high, n, unit. With N ≥ 2 repeats there is a row "mean" more (`study_means`).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from isentrope.nouns.estimate import ESTIMATE_COLUMNS, Estimate
from isentrope.results.numbers import numbers_in
from isentrope.results.result import Result
from isentrope.results.verbs import Verb
from isentrope.run.runner import Item
from isentrope.run.study_means import Row, means_over_repeats
from isentrope.system.file_contents import csv, parquet
from isentrope.system.files import write_bytes


def study_table(verb: Verb, items: Sequence[Item[Any]], results: Sequence[Result]) -> pd.DataFrame:
    """The tidy table of a study.

    Args:
        verb: What was done.
        items: All of them.
        results: One per item.

    Returns:
        The rows above; of a mean also se_update = s/√N and se_evaluation.
    """
    rows: list[Row] = []
    means: list[Row] = []
    confidence = results[0].estimator.confidence
    pairs = zip(items, results, strict=True)
    for _, group in groupby(pairs, key=lambda pair: pair[0].checkpoint.name):
        repeats = list(group)
        rows_of_checkpoint: list[Row] = []
        for item, result in repeats:
            largest = max(result.batches.E.prompt_draws - 1, 1)
            for quantity, estimate, saved in numbers_in(vars(result)):
                numbers = _columns(estimate, saved)
                stated = numbers.pop("degrees_of_freedom")
                freedom = largest if stated is None else max(stated, 1)
                row = {**_place(item), "quantity": quantity, **numbers, "freedom": freedom}
                rows_of_checkpoint.append(row)
        rows += rows_of_checkpoint
        shared = None
        if verb.errors_over_E:
            shared = _influences([result.tables for _, result in repeats])
        means += means_over_repeats(rows_of_checkpoint, shared, confidence)
    return pd.DataFrame(rows + means).drop(columns=["freedom"])


def write_study(
    verb: Verb, folder: Path, items: Sequence[Item[Any]], results: Sequence[Result]
) -> None:
    """Write the tables of a study of several items."""
    measurements = folder / "measurements"
    name = verb.joined or f"{verb.name}_all"
    parts = [
        result.tables[verb.table].assign(**_place(item))
        for item, result in zip(items, results, strict=True)
    ]
    write_bytes(measurements / f"{name}.parquet", parquet(pd.concat(parts, ignore_index=True)))
    write_bytes(measurements / f"{verb.name}_study.csv", csv(study_table(verb, items, results)))


def _columns(estimate: Estimate, saved: Collection[str]) -> Row:
    """The columns of a number; None for what its file does not say."""
    columns: Row = dict.fromkeys((*ESTIMATE_COLUMNS, "n", "unit", "degrees_of_freedom"))
    for name in columns.keys() & set(saved):
        value = getattr(estimate, name)
        # files have no infinity, and a table is the same of results that were read
        columns[name] = math.nan if isinstance(value, float) and math.isinf(value) else value
    return columns


def _place(item: Item[Any]) -> Row:
    checkpoint = item.checkpoint
    return {
        "checkpoint": checkpoint.name,
        "step": checkpoint.step_number,
        "repeat": item.repeat,
    }


def _influences(tables: Sequence[Mapping[str, pd.DataFrame]]) -> dict[str, Tensor]:
    """(N, P) influences of E's prompts on what all repeats have, by quantity."""
    if not all("influences" in repeat for repeat in tables):
        return {}
    parts = [repeat["influences"].assign(repeat=r) for r, repeat in enumerate(tables)]
    wide = pd.concat(parts).pivot(
        index=["quantity", "repeat"], columns="prompt", values="influence"
    )
    influences = {str(q): torch.tensor(rows.to_numpy()) for q, rows in wide.groupby("quantity")}
    return {q: phi for q, phi in influences.items() if len(phi) == len(tables)}
