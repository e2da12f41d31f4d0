"""Columns are declared once, on the rows, and numbers are the same in memory and in the file."""

import json
import math
from dataclasses import dataclass, replace
from typing import Annotated

import pandas as pd
import pytest
from matplotlib.figure import Figure
from pyarrow import Table

from isentrope import Estimate, MeasureResult
from isentrope.commands.measure import measure
from isentrope.config.io import load_config
from isentrope.estimators.sweep import SweepRow
from isentrope.nouns import columns, tables
from isentrope.results import decode as reading
from isentrope.results import encode as writing
from isentrope.results import numbers
from isentrope.results import tables as result_tables
from isentrope.results.answers import blocks as answers
from tests.tiny_checkpoint import settings

USED = (*columns.ESTIMATE_COLUMNS, "n", "unit", "degrees_of_freedom")
"""What is said of a number elsewhere."""


def estimate(value, se=0.1, unit="nats per token"):
    return Estimate.from_standard_error(value, se, 12, unit=unit, method="prefix")


def row(**more):
    orders = {"first_order": estimate(0.2), "second_order": None}
    content = {"eta": 1e-3, "change": estimate(-0.5), "verdict": "trust", "method": "prefix"}
    return content | orders | more


def test_a_column_is_one_line(tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Row(SweepRow):
        skew: Annotated[Estimate, columns.Column("skew ± se", rank=7, interval=8)]

    @dataclass(frozen=True)
    class Found:
        sweep: tuple[Row, ...]

    made = Found((Row(**row(skew=estimate(1.5))),))
    content = writing.encode(made)
    assert content["sweep"][0]["skew"] == 1.5
    assert content["sweep"][0]["skew_ci_low"] == pytest.approx(1.5 - 2.2 * 0.1, rel=1e-2)
    read = reading.decode(Found, content, tmp_path / "results.json").sweep[0].skew
    assert read.columns() == made.sweep[0].skew.columns()
    assert tables.table_schema(Row).columns["skew_se"] == "double"
    table = tables.frame(made.sweep)
    assert table["skew"].tolist() == [1.5]
    assert tables.table_schema(Row).fault(Table.from_pandas(table)) is None
    printed = {
        column.title: column.cell(None, made.sweep[0]) for column in columns.printed_columns(Row)
    }
    assert printed["skew ± se"] == "1.50 ± 0.10"


def test_a_table_lacks_the_columns_that_no_row_has():
    named = {"control": "budget", "strength": 1.0, "part": "step", "eta": 1.0, "frontier": True}
    changes = {"verdict": "trust", "delta_h": estimate(0.1), "gained_delta_h": estimate(0.2)}
    rows = [result_tables.TrialRow(**named, **changes, did=did) for did in ({}, {"touched": 0.5})]
    table = tables.frame(rows)
    assert "delta_j" not in table
    assert table["touched"].isna().tolist() == [True, False]
    assert tables.table_schema(result_tables.TrialRow).fault(Table.from_pandas(table)) is None
    renamed = table.rename(columns={"touched": "a number of a control"})
    assert tables.table_schema(result_tables.TrialRow).fault(Table.from_pandas(renamed)) is None
    words = renamed.assign(other="a text")
    assert "'other'" in tables.table_schema(result_tables.TrialRow).fault(Table.from_pandas(words))


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ({"quantity": ["x"]}, "prompt"),
        ({"quantity": "x", "prompt": [1], "key": "k", "influence": [0.5], "other": [1]}, "other"),
    ],
)
def test_columns_that_are_not_those_of_the_rows_are_refused(content, name):
    with pytest.raises(ValueError) as refused:  # noqa: PT011  the column is named below
        tables.frame_of_columns(result_tables.InfluenceRow, content)
    assert repr(name) in str(refused.value)


def test_a_dictionary_of_estimates_is_one_of_numbers_in_the_file():
    parts = {"total": estimate(2.0), "decay": Estimate.exact(0.0, 12, unit="", method="")}
    withheld = replace(estimate(1.0), ci_low=math.nan, ci_high=math.nan)

    @dataclass(frozen=True)
    class Found:
        parts: Annotated[dict[str, Estimate], columns.ByName("per η")]

    content = writing.encode(Found(parts | {"momentum": withheld}))["parts"]
    assert (content["total"], content["total_se"]) == (2.0, 0.1)
    assert content["momentum_degrees_of_freedom"] is None
    read = reading.nest_dictionary(
        columns.ByName("per η"), content, reading.Shared(12, "nats per token")
    )
    assert Estimate(**read["total"]).columns() == pytest.approx(parts["total"].columns())
    assert read["total"]["unit"] == "nats per token per η"
    assert (read["decay"]["ci_low"], read["decay"]["ci_high"]) == (0.0, 0.0)
    assert math.isnan(read["momentum"]["ci_low"])


@pytest.fixture(scope="module")
def fresh_and_loaded(tiny, tmp_path_factory):
    """A result as it was made, and as it is read from its folder."""
    changes = [
        "batch_config.allow_overlap=true",
        "estimator.eta_list=[1e-3, 0.3]",
        "estimator.resample_collapsed=true",
        f"output.directory={tmp_path_factory.mktemp('run')}",
    ]
    made = []
    run = measure(
        load_config(settings(tiny), changes), draw=lambda result: made.append(result) or Figure()
    )
    (folder,) = run.measurements.values()
    return made[0], MeasureResult.load(folder)


def test_a_result_says_the_same_before_it_is_saved_and_after(fresh_and_loaded):
    texts = [
        [x.rows if isinstance(x, answers.Table) else x for x in result.printed([result])]
        for result in fresh_and_loaded
    ]
    assert texts[0] == texts[1]
    frames = [
        pd.DataFrame(
            {"path": path} | {name: getattr(x, name) for name in USED if name in saved}
            for path, x, saved in numbers.numbers_in(vars(result))
        )
        for result in fresh_and_loaded
    ]
    pd.testing.assert_frame_equal(*frames)
    contents = [json.dumps(result.to_dict()) for result in fresh_and_loaded]
    assert contents[0] == contents[1]
