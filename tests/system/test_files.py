import ast
import hashlib
import json
import math
import os
import re
from pathlib import Path

import pytest

from isentrope.run.lock import one_writer
from isentrope.system import files
from isentrope.system.errors import FileError
from tests.sources import trees


def test_a_file_replaces_an_older_one_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "a" / "f"
    files.write_bytes(path, b"old")
    assert files.write_bytes(path, b"new") == path
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["f"]


def test_a_writer_that_fails_half_way_leaves_the_old_file(tmp_path):
    def write(path):
        path.write_bytes(b"half")
        raise RuntimeError("disk full")

    path = files.write_bytes(tmp_path / "f", b"old")
    with pytest.raises(RuntimeError, match="disk full"):
        files.write_file(path, write)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_a_rename_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    def locked(source, target):
        raise PermissionError(13, "in use")

    path = files.write_bytes(tmp_path / "f", b"old")
    monkeypatch.setattr(os, "replace", locked)
    with pytest.raises(PermissionError, match="in use"):
        files.write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_numbers_that_json_cannot_hold_are_null(tmp_path):
    content = {"x": math.nan, "y": [1.5, math.inf], "z": (1,)}
    path = files.write_json(tmp_path / "a" / "r.json", content)
    assert json.loads(path.read_text()) == {"x": None, "y": [1.5, None], "z": [1]}


def test_a_folder_appears_when_it_is_complete(tmp_path):
    with files.whole_folder(tmp_path / "run" / "m") as here:
        (here / "r").write_text("1")
        assert not (tmp_path / "run" / "m").exists()
    assert os.listdir(tmp_path / "run") == ["m"]
    assert (tmp_path / "run" / "m" / "r").read_text() == "1"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_folder_that_fails_half_way_leaves_nothing(tmp_path, error):
    (tmp_path / "kept").mkdir()

    def fail():
        with files.whole_folder(tmp_path / "run" / "deep" / "m") as here:
            (here / "r").write_text("1")
            raise error("stop")

    with pytest.raises(error, match="stop"):
        fail()
    assert os.listdir(tmp_path) == ["kept"]


def test_what_a_killed_process_left_of_a_folder_is_cleared(tmp_path):
    (tmp_path / ".m.partial").mkdir()
    (tmp_path / ".m.partial" / "old").write_text("")
    with files.whole_folder(tmp_path / "m") as here:
        assert os.listdir(here) == []


def test_a_folder_is_never_written_over(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "r").write_text("1")
    with (
        pytest.raises(FileExistsError, match="m exists already"),
        files.whole_folder(tmp_path / "m"),
    ):
        pytest.fail("the block ran")
    assert os.listdir(tmp_path) == ["m"]


def test_what_a_killed_process_left_of_a_file_is_cleared(tmp_path):
    (tmp_path / "f[1].0123456789abcdef.partial").write_text("half")
    files.write_bytes(tmp_path / "f[1]", b"1")
    assert os.listdir(tmp_path) == ["f[1]"]


# ------------------------------------------------------------------ links are not followed


@pytest.fixture
def outside(tmp_path):
    """A file and a folder of somebody else, beside run/."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "run").mkdir()
    yield tmp_path
    assert (tmp_path / "mine").read_text() == "mine"
    assert os.listdir(tmp_path / "folder") == []


@pytest.mark.parametrize("name", ["f", "f.partial", "f.0123456789abcdef.partial"])
def test_a_file_is_not_written_through_a_link(outside, name):
    (outside / "run" / name).symlink_to(outside / "mine")
    files.write_bytes(outside / "run" / "f", b"1")
    assert not (outside / "run" / "f").is_symlink()


def test_a_file_is_not_written_through_a_link_whose_name_is_guessed(outside, monkeypatch):
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "0" * 15)
    plain, guessed = os.open, outside / "run" / f"f.{'0' * 15}.partial"

    def raced(path, *arguments):
        guessed.is_symlink() or guessed.symlink_to(outside / "mine")
        return plain(path, *arguments)

    monkeypatch.setattr(os, "open", raced)
    with pytest.raises(FileExistsError):
        files.write_bytes(outside / "run" / "f", b"1")


def test_a_line_is_not_appended_through_a_link(outside):
    (outside / "run" / "m.jsonl").symlink_to(outside / "mine")
    with pytest.raises(OSError, match=r"m\.jsonl"):
        files.append_line(outside / "run" / "m.jsonl", "x")


def test_a_folder_is_not_built_through_a_link(outside):
    (outside / "run" / ".m.partial").symlink_to(outside / "folder")
    with files.whole_folder(outside / "run" / "m") as here:
        (here / "r").write_text("1")
    (outside / "run" / "dangling").symlink_to(outside / "nowhere")
    with pytest.raises(FileExistsError), files.whole_folder(outside / "run" / "dangling"):
        pytest.fail("the block ran")


def test_a_folder_of_a_run_that_leads_out_of_it_is_refused(outside):
    run = outside / "run"
    (run / "report").symlink_to(outside / "folder")
    with one_writer(run):
        for write in (files.write_bytes, files.append_line):
            with pytest.raises(FileError, match=r"run/report leads to .*folder, out of .*run"):
                write(run / "report" / "f", b"1" if write is files.write_bytes else "1")
        with pytest.raises(FileError, match="leads to"), files.whole_folder(run / "report" / "m"):
            pytest.fail("the block ran")


def test_a_run_folder_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    with one_writer(tmp_path / "run"):
        files.write_bytes(tmp_path / "run" / "a" / "f", b"1")
    assert (tmp_path / "disk" / "a" / "f").read_bytes() == b"1"


@pytest.fixture
def calls(monkeypatch):
    """What is flushed and renamed, in order."""
    seen = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(handle):
        name = Path(os.readlink(f"/proc/self/fd/{handle}")).name
        seen.append(("flush", re.sub(r"\.[0-9a-f]{16}\.partial", ".*.partial", name)))
        fsync(handle)

    def noted_replace(source, target):
        seen.append(("rename", Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    return seen


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of open files")


@needs_proc
def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, calls):
    files.write_bytes(tmp_path / "run" / "f", b"1")
    assert calls == [("flush", "f.*.partial"), ("rename", "f"), ("flush", "run")]


@needs_proc
def test_a_folder_is_on_the_disk_before_it_has_its_name(tmp_path, calls):
    with files.whole_folder(tmp_path / "run" / "m") as here:
        (here / "inner").mkdir()
        (here / "inner" / "a").write_text("1")
        (here / "b").write_text("2")
    assert calls == [
        ("flush", "a"),
        ("flush", "inner"),
        ("flush", "b"),
        ("flush", "isentrope.json.*.partial"),
        ("rename", "isentrope.json"),
        ("flush", ".m.partial"),
        ("flush", "manifest.json.*.partial"),
        ("rename", "manifest.json"),
        ("flush", ".m.partial"),
        ("rename", "m"),
        ("flush", "run"),
    ]


@needs_proc
def test_a_line_is_on_the_disk_when_it_is_written(tmp_path, calls):
    files.append_line(tmp_path / "logs" / "m.jsonl", "ä")
    files.append_line(tmp_path / "logs" / "m.jsonl", "b")
    assert (tmp_path / "logs" / "m.jsonl").read_bytes() == "ä\nb\n".encode()
    assert calls == [("flush", "m.jsonl")] * 2


def test_a_folder_loses_its_name_before_its_files(tmp_path, monkeypatch):
    folder = tmp_path / "step_4"
    folder.mkdir()
    (folder / "f").write_text("1")
    plain = files.shutil.rmtree

    def removed(path):
        assert os.listdir(tmp_path) == [".removed_4"]
        plain(path)

    monkeypatch.setattr(files.shutil, "rmtree", removed)
    files.remove_folder(folder, ".removed_4")
    assert os.listdir(tmp_path) == []


def test_digests_depend_on_content_alone():
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180, "abc"
    assert files.sha256([b"a", b"", b"bc"]) == known
    assert files.short_digest("x", 4) == hashlib.blake2b(b"x", digest_size=4).digest()


# ------------------------------------------------------------------ nobody else does any of this


def own_ways(tree):
    """Where a module renames files or makes digests itself."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            named = [alias.name for alias in node.names]
            named.append(node.module or "") if isinstance(node, ast.ImportFrom) else None
            if "hashlib" in named:
                yield node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method, owner = node.func.attr, node.func.value
            of = owner.id if isinstance(owner, ast.Name) else ""
            # a path is renamed by one argument, a text needs two and a table names its own
            one = len(node.args) == 1 and not node.keywords
            if method in ("replace", "rename") and (one or of == "os"):
                yield node.lineno
            if (of, method) == ("shutil", "move"):
                yield node.lineno


@pytest.mark.parametrize(
    "line",
    [
        "import hashlib",
        "from hashlib import sha256",
        "os.replace(a, b)",
        "os.rename(a, b)",
        "a.replace(b)",
        "a.rename(b)",
        "shutil.move(a, b)",
    ],
)
def test_the_guard_knows_the_ways_of_writing_in_two_steps(line):
    assert list(own_ways(ast.parse(line))) == [1]
    assert not list(own_ways(ast.parse('t.replace("a", "b"); f.rename(columns=g)')))


def test_only_one_module_renames_files_and_makes_digests():
    found = {
        f"{path}:{line}"
        for path, tree in trees().items()
        for line in own_ways(tree)
        if path != "system/files.py"
    }
    assert found == set()
