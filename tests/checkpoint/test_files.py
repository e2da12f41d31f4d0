"""The files of a checkpoint are opened in one module, and each once."""

import ast
import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from isentrope.checkpoint import files as checkpoint_files
from isentrope.checkpoint.files import CheckpointFolder
from isentrope.commands.measure import measure
from isentrope.config.io import load_config
from isentrope.system import manifest
from isentrope.system.errors import FileError
from tests.sources import texts, trees
from tests.tiny_checkpoint import copied, settings

OWNER = "checkpoint/files.py"
READS_HEADERS_OF_ITS_OWN = {"attribution/fisher/kernel.py", "system/file_contents.py"}
READERS = {"read_json", "read_text", "load", "loads", "open", "read_bytes"}


FILES = ("contract.json", "CONTRACT", "adapter_config", "ADAPTER_C")


def reads(tree):
    """The calls of readers in a module, as text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in READERS:
                yield ast.unparse(node)


def test_a_file_of_a_checkpoint_is_opened_in_one_module():
    opened = {
        path
        for path, tree in trees().items()
        if any(name in text for text in reads(tree) for name in FILES)
    }
    assert opened <= {OWNER}


def test_headers_of_weights_are_read_in_one_module():
    reading = {
        path
        for path, text in texts().items()
        if "read_tensor_headers" in text or "safe_open" in text
    }
    assert reading == {OWNER} | READS_HEADERS_OF_ITS_OWN


def test_a_measurement_reads_and_digests_each_file_once(tiny, tmp_path, monkeypatch):
    read, digested = Counter(), Counter()
    monkeypatch.setattr(manifest, "_known", {})

    def counting(plain):
        def counted(file, *args, **options):
            read[Path(file).name, Path(file).parent.name] += 1
            return plain(file, *args, **options)

        return counted

    for name in ("read_json", "read_tensor_headers"):
        monkeypatch.setattr(checkpoint_files, name, counting(getattr(checkpoint_files, name)))
    plain = hashlib.file_digest

    def digest(file, kind):
        digested[str(Path(file.name).resolve())] += 1
        return plain(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", digest)
    made = copied(tiny, tmp_path / "made")
    (made / "step_4" / "contract.json").write_text("{}")
    measure(load_config(settings(made), [f"output.directory={tmp_path / 'out'}"]))
    assert {"contract.json", "adapter_config.json"} <= {name for name, _ in read}
    assert set(read.values()) == {1}
    assert set(digested.values()) == {1}


def test_a_file_that_was_changed_is_read_again(tmp_path):
    folder, file = CheckpointFolder(tmp_path), tmp_path / "contract.json"
    assert folder.contract is None
    file.write_text(json.dumps({"step": 3}))
    folder.contract["step"] = 5  # of a copy
    assert folder.step == 3
    file.write_text(json.dumps({"step": 40}))
    assert folder.step == 40
    file.write_text("[]")
    with pytest.raises(FileError, match="should hold an object"):
        _ = folder.contract
