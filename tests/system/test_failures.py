"""Failures of every library are known by what the operating system said."""

import errno
import json

import pytest

from isentrope.checkpoint.infer.settings import first_row
from isentrope.cli.commands import MEASURING
from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.models.checkpoint import load_tokenizer, meta_model
from isentrope.system import files
from isentrope.system.errors import FileError
from isentrope.system.failures import ENDINGS, advice, naming, os_error_number
from isentrope.system.file_contents import yaml_value
from tests.adapters import save_base_model
from tests.tiny_checkpoint import as_made_elsewhere
from tests.training.conftest import small_policy


def chained(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.EMFILE, "x"), errno.EMFILE),
        (Exception("No space left on device (os error 28)"), errno.ENOSPC),
        (chained(ValueError("x"), OSError(errno.EACCES, "y")), errno.EACCES),
        (RuntimeError("basic_ios::clear: iostream error"), errno.EIO),
        (RuntimeError("[enforce fail] . unexpected pos 64 vs 0"), errno.EIO),
        (ValueError("28"), None),
        (OSError("a sentence"), None),
    ],
    ids=str,
)
def test_the_number_is_found_wherever_it_stands(error, number):
    assert os_error_number(error) == number


def test_disk_space_is_advised_for_a_full_disk_alone():
    full = {n for n in errno.errorcode if advice(n) == "free disk space"}
    assert full == {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_end_is_no_failure(ending, tmp_path):
    with pytest.raises(ending), naming(tmp_path):
        raise ending


@pytest.mark.parametrize("called", ["fsync", "replace"])
def test_every_error_of_publishing_names_the_folder(called, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(files.os, called, fail)
    with (
        pytest.raises(OSError, match="disk space") as caught,
        files.whole_folder(tmp_path / "x") as partial,
    ):
        partial.joinpath("a").write_text("a")
    assert str(tmp_path) in caught.value.filename
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_removing_names_the_whole_path(tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a.json").write_text("")

    def fail(name, **_):
        raise OSError(errno.EINTR, "Interrupted system call", str(name))

    monkeypatch.setattr(files.os, "unlink", fail)
    with pytest.raises(OSError, match="Interrupted") as caught:
        files.remove_folder(tmp_path / "old", ".removed_2")
    assert caught.value.filename == str(tmp_path / ".removed_2" / "a.json")


def test_what_is_in_the_way_of_removing_is_removed(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / ".removed_2").write_text("a file")
    files.remove_folder(tmp_path / "old", ".removed_2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["dice 🎲", "𝒳", "𠀀", 'a"b\\c', "é\x85\u2028", "x: #y", "\x7f"])
def test_any_name_of_a_folder_may_be_given(name):
    overrides = MEASURING["measure"](config="", folder=name).overrides
    config = load_config({"model": {"path": "toy"}}, overrides, root=TrainConfig)
    assert config.output.directory == name
    assert json.loads(json.dumps(name)) == name
    assert yaml_value(name).isascii()


PRECOMPILED = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}


@pytest.mark.parametrize(
    ("file", "change", "read", "named"),
    [
        ("config.json", {"hidden_act": "__import__"}, meta_model, "m/config.json"),
        ("tokenizer.json", {"normalizer": PRECOMPILED}, load_tokenizer, "m"),
    ],
)
def test_what_its_library_cannot_build_is_named(tmp_path, file, change, read, named):
    save_base_model(small_policy(), tmp_path / "m")
    place = as_made_elsewhere(tmp_path / "m") / file
    place.write_text(json.dumps(json.loads(place.read_text()) | change))
    with pytest.raises(FileError) as caught:
        read(tmp_path / "m")
    assert f"{tmp_path / named} cannot be read" in str(caught.value)


def test_a_first_line_that_is_nested_deeply_is_left_to_the_reader(tmp_path):
    (tmp_path / "U.jsonl").write_text("[" * 50_000 + "\n")
    assert first_row(tmp_path / "U.jsonl") == {}
