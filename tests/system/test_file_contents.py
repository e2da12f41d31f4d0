"""Damaged tensors and tables are named, and so is what they lack."""

from functools import partial

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from isentrope.system import file_contents
from isentrope.system.errors import FileError
from isentrope.system.file_contents import TableSchema


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("damage", [cut, lambda path: path.write_bytes(b"")])
def test_damaged_tables_and_tensors_are_named(damage, tmp_path):
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "a.parquet")
    save_file({"a": torch.zeros(2)}, tmp_path / "a.safetensors")
    torch.save({"a": torch.zeros(2)}, tmp_path / "a.pt")
    table = partial(file_contents.read_table, schema=TableSchema({"a": "int64"}))
    readers = {
        "a.parquet": (table, file_contents.read_arrow, file_contents.read_schema),
        "a.safetensors": (file_contents.read_tensors, file_contents.read_tensor_headers),
        "a.pt": (file_contents.read_torch,),
    }
    for name, functions in readers.items():
        for read in functions:
            read(tmp_path / name)
        damage(tmp_path / name)
        for read in functions:
            with pytest.raises(FileError, match=f"{name} cannot be read"):
                read(tmp_path / name)


def test_missing_columns_and_other_shapes_are_named(tmp_path):
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(FileError, match=r"a\.parquet .*no column 'b'"):
        file_contents.read_table(
            tmp_path / "a.parquet", schema=TableSchema({"a": "int64", "b": "int64"})
        )
    save_file({"a": torch.zeros(2)}, tmp_path / "a.safetensors")
    with pytest.raises(FileError, match=r"'a' has shape \(2,\), not \(3,\)"):
        file_contents.read_tensors(tmp_path / "a.safetensors", shapes={"a": (3,)})
    with pytest.raises(FileError, match="'b' has shape None"):
        file_contents.read_tensors(tmp_path / "a.safetensors", shapes={"b": (2,)})


def test_a_table_that_is_missing_is_named_in_a_sentence(tmp_path):
    table = partial(file_contents.read_table, schema=TableSchema({}))
    for read in (file_contents.read_arrow, table, file_contents.read_schema):
        with pytest.raises(FileNotFoundError, match=r"There is no file .*t\.parquet\. Restore"):
            read(tmp_path / "t.parquet")


def test_a_table_with_text_that_is_not_utf8_is_refused(tmp_path):
    pd.DataFrame({"name": ["measured"]}).to_parquet(tmp_path / "t.parquet", compression=None)
    content = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(content.replace(b"measured", b"mea\xffured"))
    with pytest.raises(FileError, match=r"t\.parquet cannot be read"):
        file_contents.read_table(tmp_path / "t.parquet", schema=TableSchema({"name": "string"}))
