"""A folder that was written as a whole is read as it was written, or refused by the file's name."""

import json
import os

import pytest

from isentrope.system import files, manifest
from isentrope.system.errors import FileError, IsentropeError
from tests.tiny_checkpoint import as_made_elsewhere


@pytest.fixture
def folder(tmp_path):
    """A published folder with an inner one, and a part that was added as a whole later."""
    with files.whole_folder(tmp_path / "step_4") as here:
        (here / "weights").write_bytes(bytes(range(256)))
        (here / "empty").write_bytes(b"")
        (here / "UU").mkdir()
        (here / "UU" / "kernel").write_text("1")
    with files.whole_folder(tmp_path / "step_4" / "next_update") as here:
        (here / "update.json").write_text("{}")
    return tmp_path / "step_4"


def test_every_file_is_listed_once(folder):
    assert manifest.verify(folder) == files.sha256([(folder / "manifest.json").read_bytes()])
    listed = json.loads((folder / "manifest.json").read_text())["files"]
    assert list(listed) == ["UU/kernel", "empty", "isentrope.json", "weights"]
    assert listed["weights"]["size"] == 256


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_any_byte_of_any_file_is_refused(folder, bit):
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        good = path.read_bytes()
        for place in range(0, len(good), max(1, len(good) // 40)):
            bad = bytearray(good)
            bad[place] ^= 1 << bit
            path.write_bytes(bad)
            with pytest.raises(FileError, match=str(path.parent)):
                manifest.verify(folder)
        path.write_bytes(good)
    manifest.verify(folder)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("weights", "remove", r"weights is missing"),
        ("UU/kernel", "remove", r"kernel is missing"),
        ("next_update/update.json", "remove", r"update\.json is missing"),
        ("weights", "append", r"weights was changed"),
        ("empty", "append", r"empty was changed"),
        ("more", "append", r"more was added after"),
        ("next_update/more", "append", r"more was added after"),
        ("manifest.json", "append", r"manifest\.json is damaged"),
        (
            "manifest.json",
            "remove",
            r"manifest\.json is missing, which was written \(isentrope\.json",
        ),
        ("next_update/manifest.json", "remove", r"next_update/manifest\.json is missing"),
        ("isentrope.json", "remove", r"isentrope\.json is missing, which manifest\.json lists"),
    ],
)
def test_what_was_done_to_a_file_is_said(folder, name, change, words):
    path = folder / name
    if change == "remove":
        path.unlink()
    else:
        with path.open("ab") as file:
            file.write(b" ")
    with pytest.raises(FileError, match=words) as caught:
        manifest.verify(folder)
    assert "--no-verify" in str(caught.value)
    assert isinstance(caught.value, IsentropeError)
    assert str(path) in str(caught.value)


def test_two_files_that_were_swapped_are_refused(folder):
    (folder / "weights").rename(folder / "x")
    (folder / "empty").rename(folder / "weights")
    (folder / "x").rename(folder / "empty")
    with pytest.raises(FileError, match="empty was changed"):
        manifest.verify(folder)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": 1, "files": {}}', "[" * 10000, '{"files": {"/etc/passwd": {}}}'],
)
def test_a_manifest_of_another_form_is_refused(folder, text):
    (folder / "manifest.json").write_text(text)
    for read in (lambda: manifest.verify(folder), lambda: manifest.verify_file(folder / "weights")):
        with pytest.raises(FileError, match=r"manifest\.json is damaged, or is not a manifest"):
            read()


def test_a_manifest_cannot_name_files_elsewhere(folder):
    entry = {"sha256": files.sha256([b""]), "size": 0}
    (folder.parent / "other").write_bytes(b"")
    (folder / "manifest.json").write_text(files.manifest_text({"../other": entry}))
    with pytest.raises(FileError, match="is damaged"):
        manifest.verify(folder)


@pytest.mark.parametrize(
    ("name", "noted"), [("config.json", 0), ("contract.json", 1), ("results.json", 1)]
)
def test_a_folder_without_a_manifest_is_noted_once_if_ours(tmp_path, caplog, name, noted):
    for place in (tmp_path / "one", tmp_path / "other"):  # of many such folders one is named
        place.mkdir()
        (place / name).write_text("{}")
        assert manifest.verify(place) is None
        assert manifest.verify(place / "." / "") is None
    assert [record.levelname for record in caplog.records] == ["WARNING"] * noted
    assert caplog.text.count("has no manifest.json, so its files are not verified") == noted


def test_a_manifest_of_another_tool_is_none(tmp_path):
    (tmp_path / "onnx").mkdir()
    for place in (tmp_path, tmp_path / "onnx"):
        (place / "manifest.json").write_text('{"layers": []}')
    assert manifest.verify(tmp_path) is None
    manifest.verify_file(tmp_path / "manifest.json")


def test_a_folder_of_ours_is_not_taken_for_one_made_elsewhere(folder, tmp_path, caplog):
    hidden = files.write_json(folder / ".chunks" / "made_from.json", {})
    (folder / "manifest.json").unlink()
    for name in ("weights", "UU/kernel", "isentrope.json"):
        with pytest.raises(FileError, match=r"step_4/manifest\.json is missing, .*--no-verify"):
            manifest.verify_file(folder / name)
    manifest.verify_file(hidden)
    (folder / "isentrope.json").write_bytes(b"damaged")
    with pytest.raises(FileError, match=r"manifest\.json is missing"):
        manifest.verify(folder)
    with manifest.verification(False):
        assert manifest.verify(folder) is None
        manifest.verify_file(folder / "weights")
    assert manifest.verify(as_made_elsewhere(folder)) is None  # an earlier version wrote neither
    manifest.verify_file(folder / "weights")


def test_without_verification_everything_is_read(folder):
    (folder / "weights").write_text("other")
    with manifest.verification(False), manifest.verification(True):
        assert manifest.verify(folder) is None
        manifest.verify_file(folder / "weights")
    assert manifest.verifying()


def test_hidden_files_are_no_part_of_a_folder(folder):
    (folder / ".DS_Store").write_text("x")
    (folder / ".next.partial").mkdir()
    (folder / ".next.partial" / "half").write_text("x")
    assert manifest.verify(folder)


def test_one_file_is_verified_by_the_manifest_of_its_folder_or_of_the_one_above(folder, tmp_path):
    for name in ("weights", "UU/kernel", "next_update/update.json"):
        manifest.verify_file(folder / name)
        with (folder / name).open("ab") as file:
            file.write(b" ")
        with pytest.raises(FileError, match="was changed"):
            manifest.verify_file(folder / name)
    (tmp_path / "manifest.json").write_text('{"name": "of a web page"}')
    (tmp_path / "prompts.jsonl").write_text("1")
    manifest.verify_file(tmp_path / "prompts.jsonl")


def test_a_file_is_hashed_once_unless_it_was_written_again(folder, monkeypatch):
    hashed, plain = [], manifest.sha256_of_file

    def noted(path):
        hashed.append(path.name)
        return plain(path)

    monkeypatch.setattr(manifest, "sha256_of_file", noted)
    manifest.verify(folder)
    manifest.verify(folder)
    assert sorted(hashed) == [
        *("empty", "isentrope.json", "isentrope.json", "kernel", "update.json", "weights")
    ]
    times = (folder / "weights").stat()
    (folder / "weights").write_bytes(bytes(256))
    os.utime(folder / "weights", ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(FileError, match="weights was changed"):
        manifest.verify(folder)


LINKS = {"self": ".", "up": "..", "absolute": "/", "other": "../other"}


@pytest.mark.parametrize("name", LINKS)
def test_a_link_to_a_directory_is_refused(folder, name):
    (folder.parent / "other").mkdir()
    (folder / name).symlink_to(LINKS[name])
    with pytest.raises(FileError, match=rf"step_4/{name} is a link to a directory"):
        manifest.verify(folder)
    as_made_elsewhere(folder)
    manifest.verify(folder)  # nothing there is read through the link


def test_links_that_lead_nowhere_are_refused(folder):
    for name, target in {"dangling": "nowhere", "circle": "circle"}.items():
        (folder / name).symlink_to(target)
        with pytest.raises(FileError, match=f"{name} was added"):
            manifest.verify(folder)
        (folder / name).unlink()
    (folder.parent / "circle").symlink_to("circle")
    manifest.verify_file(folder.parent / "circle")


@pytest.mark.parametrize("name", ["manifest.json", "next_update/update.json"])
def test_other_line_ends_are_said_to_be_the_only_change(folder, name):
    inner = folder / "next_update"
    (inner / "manifest.json").unlink()
    (inner / "update.json").write_text('{"step":\n1}\n')
    files.write_manifest(inner)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content.replace(b"\n", b"\r\n"))
    with pytest.raises(FileError, match=r"its line ends alone.*core\.autocrlf"):
        manifest.verify(folder)
    (folder / name).write_bytes(content.replace(b"\n", b"\r\n") + b" ")
    with pytest.raises(FileError, match=r"damaged|changed"):
        manifest.verify(folder)
