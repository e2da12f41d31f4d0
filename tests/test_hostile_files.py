"""One hostile file per way in: nothing of it runs, and it ends in a sentence, soon, in little memory.

`tests/test_entry_points.py` lists the ways in. Chat templates are in
`tests/sampling/test_chat_template.py`, configurations in `tests/pipelines/test_strict_yaml.py`.
"""

import io
import json
import os
import pickle
import resource
import shutil
import struct
import time
import zipfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.distributed.checkpoint.format_utils import torch_save_to_dcp

from isentrope import reading
from isentrope.convert.write import convert
from isentrope.errors import IsentropeError
from isentrope.inert import Inert, load_pickle, load_torch
from isentrope.policy.checkpoint import load_tokenizer
from isentrope.policy.language_model import Policy
from isentrope.training.saved_arguments import read_training_arguments
from isentrope.update.optimizer_state import read_optimizer_state
from tests.tiny_checkpoint import as_made_elsewhere, copied, tiny

__all__ = ["tiny"]
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:TypedStorage is")


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, ran):
        self.ran = ran

    def __reduce__(self):
        return os.system, (f"touch {self.ran}",)


@pytest.fixture
def ran(tmp_path):
    """A file that code of a hostile file would make; time and memory are limited too."""
    begun, most = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield tmp_path / "ran"
    assert not (tmp_path / "ran").exists(), "code of the file ran"
    assert time.monotonic() - begun < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < 2**20, "KiB"


def bomb(opcode, number, form="<Q"):
    return b"\x80\x05" + opcode + struct.pack(form, number) + b"x."


def laughs(depth=60):
    """A list of twice a list of twice a list ..."""
    content = []
    for _ in range(depth):
        content = [content, content]
    return pickle.dumps(content)


PICKLES = {
    "memo": b"\x80\x02N" + b"r" + struct.pack("<I", 2**31 - 1) + b".",
    "bytes": bomb(b"\x8e", 2**40),
    "array": bomb(b"\x96", 2**36),
    "text": bomb(b"\x8d", 2**40),
    "frame": bomb(b"\x95", 2**40),
    "laughs": laughs(),
    "deep": b"\x80\x02" + b"]" * 10**6 + b"a" * (10**6 - 1) + b".",
    "extension": b"\x80\x02\x82\x01.",
    "cut": b"\x80\x04\x95",
    "itself": b"\x80\x02]q\x00h\x00a.",
    "device": b"\x80\x02cio\nFileIO\nX\x09\x00\x00\x00/dev/zero\x85R.",
}
BOMBS = [name for name in PICKLES if name != "memo"]


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_is_bounded(name, ran):
    try:
        value = load_pickle(io.BytesIO(PICKLES[name])).value
    except Exception as error:
        assert not isinstance(error, (SystemError, AssertionError)), error
    else:
        assert value is None or isinstance(value, (Inert, bytes, str))


def test_a_pickle_changes_nothing_of_the_library(ran):
    """State is given to stand-ins alone: what rebuilds tensors cannot be replaced."""
    state = b"}X\x04\x00\x00\x00evilK\x01s"
    for name in (b"torch._utils\n_rebuild_tensor_v2", b"collections\nOrderedDict", b"torch\nSize"):
        load_pickle(io.BytesIO(b"\x80\x02c" + name + b"\n" + state + b"b."))
        load_pickle(io.BytesIO(b"\x80\x02c" + name + b"\nN" + state + b"\x86b."))
    loaded = load_pickle(io.BytesIO(b"\x80\x04\x8c\x05torch\x8c\x0bnn.Module.x\x93."))
    assert loaded.classes == {("torch", "nn.Module.x")}
    assert not hasattr(load_torch.__globals__["_tensor"], "evil")


def packed(path, pickled, **members):
    """A file as torch.save makes them, around a pickle."""
    with zipfile.ZipFile(path, "w", members.pop("method", zipfile.ZIP_STORED)) as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/version", "3\n")
        for name, content in members.items():
            archive.writestr(f"a/data/{name[1:]}", content)
    return path


def expanded():
    """A tensor of 10^12 numbers, of which one is stored."""
    file = io.BytesIO()
    torch.save({"x": torch.zeros(1).expand(10**12)}, file)
    return file.getvalue()


def spoilt(path, at=-1):
    """A bit of the numbers flipped."""
    torch.save({"x": torch.arange(1000.0)}, path)
    content = bytearray(path.read_bytes())
    place = content.index(torch.arange(500.0, 510.0).numpy().tobytes())
    content[place] ^= 1
    path.write_bytes(content)


def torch_files(folder, ran):
    """Hostile files of torch.save, by what is wrong with them."""
    torch.save({"x": [Evil(ran)]}, folder / "code")
    torch.save({"x": Evil(ran)}, folder / "old", _use_new_zipfile_serialization=False)
    (folder / "bare").write_bytes(pickle.dumps(Evil(ran)))
    packed(folder / "packed", pickle.dumps({}, 2), _0=bytes(10**8), method=zipfile.ZIP_DEFLATED)
    (folder / "expanded").write_bytes(expanded())
    spoilt(folder / "spoilt")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), folder / "script")
    for name in BOMBS:
        packed(folder / name, PICKLES[name])
    os.mkfifo(folder / "pipe")
    (folder / "endless").symlink_to("/dev/zero")
    (folder / "folder").mkdir()
    return sorted(folder.iterdir())


READERS = {
    "read_torch": reading.read_torch,
    "read_torch_as_data": lambda path: inert_alone(reading.read_torch_as_data(path)),
    "optimizer": lambda path: read_optimizer_state(path, {}),
    "arguments": read_training_arguments,
}


def inert_alone(content):
    """Refuse what was read as data, and is no more than that."""
    assert "posix" in str([vars(type(x)).get("module") for x in content["x"]])
    raise reading.UnreadableError("f", "a stand-in")
