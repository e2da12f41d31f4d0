"""Every number of a study in one tidy table, and its mean over fresh update batches.

A row is one quantity of one checkpoint and repeat: checkpoint, step, repeat, quantity, value, se,
ci_low, ci_high, n, unit. With N ≥ 2 repeats there is a row "mean" more (`study_means`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import groupby

import pandas as pd
import torch
from torch import Tensor

from isentrope.nouns.estimate import COLUMNS, Estimate
from isentrope.results.attributions import EntropyRecord
from isentrope.results.result import Result, Tables
from isentrope.results.sweep import AtRate
from isentrope.results.verbs import Verb
from isentrope.run.study import Item, Study
from isentrope.run.study_means import Row, means_over_repeats
from isentrope.system.file_contents import csv, parquet
from isentrope.system.files import write_bytes

_NOT_NUMBERS = {"checks", *(field.name for field in fields(Result))}


def study_table(verb: Verb, study: Study) -> pd.DataFrame:
    """The tidy table of a study.

    Args:
        verb: What was done.
        study: Items that are all done.

    Returns:
        The rows above; of a mean also se_update = s/√N and se_evaluation.
    """
    rows: list[Row] = []
    means: list[Row] = []
    confidence = study.items[0].config.estimator.confidence
    for _, group in groupby(study.items, key=lambda item: item.subject.name):
        items, mine = list(group), []
        for item in items:
            result = item.result()
            at_most = max(result.batches.E.prompt_draws - 1, 1)
            for quantity, numbers in numbers_in(vars(result)):
                own = numbers["degrees_of_freedom"]
                freedom = at_most if own is None else max(own, 1)
                mine.append({**_place(item), "quantity": quantity, **numbers, "freedom": freedom})
        rows += mine
        shared = _influences(items) if verb.errors_over_E else None
        means += means_over_repeats(mine, shared, confidence)
    return pd.DataFrame(rows + means).drop(columns=["freedom", "degrees_of_freedom"])


def write_study(verb: Verb, study: Study) -> None:
    """Write the tables of a study of several items; a single one has its own already."""
    if len(study.items) == 1:
        return
    folder = study.folder / "measurements"
    name = verb.joined or f"{verb.name}_all"
    parts = [Tables(item.target)[verb.table].assign(**_place(item)) for item in study.items]
    write_bytes(folder / f"{name}.parquet", parquet(pd.concat(parts, ignore_index=True)))
    write_bytes(folder / f"{verb.name}_study.csv", csv(study_table(verb, study)))


def numbers_in(content: Mapping[str, object], path: str = "") -> Iterator[tuple[str, Row]]:
    """Every number that has an error, by its dotted path.

    Args:
        content: The fields of a result, or of a part of it.
        path: Where the part is.

    Yields:
        Path and value, se, ci_low, ci_high, n, unit: of an Estimate, or of k with k_se beside it;
        degrees_of_freedom.
    """
    for key, value in content.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, Estimate):
            yield here, value.columns() | {name: getattr(value, name) for name in _ABOUT}
        elif here in _NOT_NUMBERS:
            continue
        elif isinstance(value, tuple):
            for row in value:
                if isinstance(row, AtRate | EntropyRecord):
                    yield from numbers_in(vars(row), f"{here}{row.place}")
        elif isinstance(value, Mapping) or is_dataclass(value):
            yield from numbers_in(value if isinstance(value, Mapping) else vars(value), here)
        elif f"{key}_se" in content:
            numbers = {column: content.get(key + end) for column, end in COLUMNS.items()}
            yield here, numbers | dict.fromkeys(_ABOUT)


_ABOUT = ("n", "unit", "degrees_of_freedom")


def _place(item: Item) -> Row:
    return {"checkpoint": item.subject.name, "step": item.subject.step, "repeat": item.repeat}


def _influences(items: list[Item]) -> dict[str, Tensor]:
    """(N, P) influences of E's prompts on what all items have, by quantity."""
    tables = [Tables(item.target) for item in items]
    if not all("influences" in of for of in tables):
        return {}
    every = pd.concat([of["influences"].assign(repeat=r) for r, of in enumerate(tables)])
    wide = every.pivot(index=["quantity", "repeat"], columns="prompt", values="influence")
    found = {str(q): torch.tensor(rows.to_numpy()) for q, rows in wide.groupby("quantity")}
    return {q: phi for q, phi in found.items() if len(phi) == len(items)}
