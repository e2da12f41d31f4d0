"""A table with a column that is missing, unknown or of another type is refused by its name."""

import math

import pandas as pd
import pyarrow as pa
import pytest

from isentrope.system import file_contents, files
from isentrope.system.errors import FileError
from isentrope.system.file_contents import TableSchema, parquet

SCHEMA = TableSchema(
    {
        **{"step": "int64", "count": "int64?", "value": "double", "name": "string"},
        **{"text": "string?", "right": "bool", "ids": "list<int64>"},
    },
    frozenset({"right"}),
)
GOOD = {
    **{"step": [1, 2], "count": [3, 4], "value": [0.5, math.nan], "name": ["a", "b"]},
    **{"text": ["x", None], "right": [True, False], "ids": [[1], []]},
}


def read(tmp_path, columns, **options):
    path = files.write_bytes(tmp_path / "t.parquet", parquet(pd.DataFrame(columns)))
    return file_contents.read_table(path, schema=SCHEMA, **options)


def test_a_table_of_the_declared_form_is_read_as_it_was_written(tmp_path):
    pd.testing.assert_frame_equal(read(tmp_path, GOOD), pd.DataFrame(GOOD), check_dtype=False)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("count", [None, None]),
        ("value", [1, 2]),
        ("value", [None, None]),
        ("text", [None, None]),
    ],
)
def test_values_that_may_be_missing_are_read_however_pandas_writes_them(tmp_path, name, values):
    found = read(tmp_path, GOOD | {name: values})[name]
    assert [None if pd.isna(x) else x for x in found] == values


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("step", ["1", "2"], "holds .*string, not int64"),
        ("step", [1.0, 2.0], "holds double, not int64"),
        ("step", pd.array([1, None], "Int64"), "has empty entries"),
        ("step", [None, None], "holds null, not int64"),
        ("value", ["0.5", "1"], "holds .*string, not double"),
        ("value", [True, False], "holds bool, not double"),
        ("name", [1, 2], "holds int64, not string"),
        ("name", ["a", None], "has empty entries"),
        ("text", [1.0, 2.0], "holds double, not string"),
        ("right", [1, 0], "holds int64, not bool"),
        ("ids", [[0.5], [1.5]], "holds list<.*double>, not list<int64>"),
    ],
)
def test_a_column_of_another_type_is_named(tmp_path, name, values, words):
    with pytest.raises(FileError, match=rf"t\.parquet .*its column '{name}' {words}"):
        read(tmp_path, GOOD | {name: values})


@pytest.mark.parametrize("name", [name for name in GOOD if name != "right"])
def test_a_column_that_was_dropped_or_renamed_is_named(tmp_path, name):
    others = {key: x for key, x in GOOD.items() if key != name}
    for columns in (others, others | {f"{name}_": GOOD[name]}):
        with pytest.raises(FileError, match=rf"t\.parquet .*it has no column '{name}'"):
            read(tmp_path, columns)


def test_an_optional_column_may_be_absent_and_not_have_another_name(tmp_path):
    others = {key: x for key, x in GOOD.items() if key != "right"}
    assert "right" not in read(tmp_path, others)
    with pytest.raises(FileError, match="a column 'right_', which is none of such a table"):
        read(tmp_path, others | {"right_": GOOD["right"]})


def test_a_former_name_is_read_as_that_of_today(tmp_path):
    old = {"old" if name == "step" else name: x for name, x in GOOD.items()}
    found = read(tmp_path, old, today=lambda name: "step" if name == "old" else name)
    assert list(found) == list(GOOD)
    both = GOOD | {"old": [1, 2]}
    with pytest.raises(FileError, match="it has two columns 'step'"):
        read(tmp_path, both, today=lambda name: "step" if name == "old" else name)


def test_row_numbers_beside_joined_tables_are_no_column_of_them():
    table = pa.table({"step": [1], "__index_level_0__": [0]})
    assert TableSchema({"step": "int64"}).fault(table) is None
