"""What files hold: texts that are no formulas, equal bytes for equal content, names in errors."""

import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from isentrope.system.file_contents import csv, csv_cell, sort_metadata
from isentrope.system.files import write_bytes


@pytest.mark.parametrize("text", ["=1+2", "+1", "-1", "@x", "\tx", "\rx"])
def test_a_text_in_a_table_is_no_formula(text):
    assert csv_cell(text) == "'" + text
    table = csv(pd.DataFrame({"token": [text, "a"], "x": [-1.5, 2]})).decode()
    assert f"'{text}" in table
    assert "-1.5" in table
    assert "'-1.5" not in table


def test_the_metadata_of_tensors_is_sorted(tmp_path):
    notes = {name: str(i) for i, name in enumerate("zyxwvutsrq")}
    contents = set()
    for i in range(5):
        path = tmp_path / f"{i}.safetensors"
        save_file({"matrix": torch.arange(3.0)}, path, notes)
        sort_metadata(path)
        contents.add(path.read_bytes())
        with safe_open(path, "pt") as file:
            assert file.metadata() == notes
        assert load_file(path)["matrix"].tolist() == [0, 1, 2]
    assert len(contents) == 1


def test_a_full_disk_is_named_with_the_file(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("isentrope.system.files._sync", fail)
    with pytest.raises(OSError, match=r"No space left on device.*results\.json"):
        write_bytes(tmp_path / "results.json", b"x")
