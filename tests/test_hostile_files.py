"""One hostile file per way in: nothing of it runs, and it ends in a sentence, in little memory.

`tests/test_entry_points.py` lists the ways in. Chat templates are in
`tests/sampling/test_chat_template.py`, configurations in `tests/config/test_strict_yaml.py`.
"""

import io
import os
import pickle
import resource
import shutil
import struct
import time
import zipfile
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.distributed.checkpoint.format_utils import torch_save_to_dcp

from isentrope import Policy
from isentrope.checkpoint.convert.distributed import require_inert
from isentrope.checkpoint.convert.write import convert
from isentrope.checkpoint.infer.arguments import read_training_arguments
from isentrope.system import file_contents, reading
from isentrope.system.errors import IsentropeError
from isentrope.system.inert import Inert, load_pickle, load_torch
from isentrope.update.optimizer_state import _read_state  # pyright: ignore[reportPrivateUsage]
from tests.tiny_checkpoint import copied, tiny

__all__ = ["tiny"]
pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is", "ignore:TypedStorage is", "ignore:.*torch.jit"
)


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
    "deep": b"\x80\x02" + b"]" * 10**5 + b"a" * (10**5 - 1) + b".",
    "extension": b"\x80\x02\x82\x01.",
    "cut": b"\x80\x04\x95",
    "itself": b"\x80\x02]q\x00h\x00a.",
    "device": b"\x80\x02cio\nFileIO\nX\x09\x00\x00\x00/dev/zero\x85R.",
}
BOMBS = [name for name in PICKLES if name != "memo"]


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_is_bounded(name, ran):
    value = None
    with suppress(Exception):  # `reading` makes a sentence of any
        value = load_pickle(io.BytesIO(PICKLES[name])).value
    assert value is None or isinstance(value, (Inert, bytes, str))


def test_a_pickle_changes_nothing_of_the_library(ran):
    """State is given to stand-ins alone: what rebuilds tensors cannot be replaced."""
    state = b"}X\x04\x00\x00\x00evilK\x01s"
    for name in (b"torch._utils\n_rebuild_tensor_v2", b"collections\nOrderedDict", b"torch\nSize"):
        load_pickle(io.BytesIO(b"\x80\x02c" + name + b"\n" + state + b"b."))
        load_pickle(io.BytesIO(b"\x80\x02c" + name + b"\nN" + state + b"\x86b."))
    loaded = load_pickle(io.BytesIO(b"\x80\x04\x8c\x05torch\x8c\x0bnn.Module.x\x93."))
    assert loaded.classes == {"torch.nn.Module.x"}
    assert not hasattr(load_torch.__globals__["_rebuild"], "evil")


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


def spoilt(path):
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
    packed(folder / "packed", pickle.dumps({}, 2), _0=bytes(10**7), method=zipfile.ZIP_DEFLATED)
    (folder / "expanded").write_bytes(expanded())
    spoilt(folder / "spoilt")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), folder / "script")
    for name in BOMBS:
        packed(folder / name, PICKLES[name])
    os.mkfifo(folder / "pipe")
    (folder / "endless").symlink_to("/dev/zero")
    (folder / "folder").mkdir()
    return sorted(folder.iterdir())


REFUSALS = (IsentropeError, ValueError, FileNotFoundError)
READERS = {
    "read_torch": file_contents.read_torch,
    "read_torch_as_data": file_contents.read_torch_as_data,
    "optimizer": _read_state,
    "arguments": read_training_arguments,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_file_of_torch_is_refused_or_inert(reader, tmp_path, ran):
    (tmp_path / "files").mkdir()
    for file in torch_files(tmp_path / "files", ran):
        if reader == "read_torch_as_data" and file.name in ("code", "device"):
            content = READERS[reader](file)
            assert isinstance(content["x"][0] if file.name == "code" else content, Inert)
            continue
        words = rf"{file.name}.* (cannot be read|refused|not read|a dev)|state at .*{file.name}"
        with pytest.raises(REFUSALS, match=words):
            READERS[reader](file)


def dcp(folder, content):
    """A folder of torch.distributed.checkpoint."""
    torch.save(content, folder.with_suffix(".one"))
    torch_save_to_dcp(folder.with_suffix(".one"), folder)
    return folder


def with_metadata(folder, change):
    """The folder with another .metadata."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def escaping(path):
    def change(metadata):
        for place in metadata.storage_data.values():
            place.relative_path = path

    return change


def enlarged(metadata):
    for entry in metadata.state_dict_metadata.values():
        entry.size = torch.Size([10**7, 10**7])
        entry.chunks[0].sizes = entry.size


def longer(metadata):
    for place in metadata.storage_data.values():
        place.length = 2**62


def overlapping(metadata):
    for k, place in enumerate(list(metadata.storage_data.values())[:1]):
        for n in range(1000):
            index = type(next(iter(metadata.storage_data)))(f"more{k}.{n}")
            metadata.storage_data[index] = place


def far_index(metadata):
    name = next(iter(metadata.planner_data))
    metadata.planner_data[name] = ("model", 10**12)


def evil_metadata(metadata):
    metadata.planner_data = Evil(RAN[0])


RAN = [Path()]
CHANGES = {
    "code": evil_metadata,
    "above": escaping("../other/__0_0.distcp"),
    "absolute": escaping("/dev/zero"),
    "enlarged": enlarged,
    "longer": longer,
    "overlapping": overlapping,
    "index": far_index,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_distributed_checkpoint_is_refused(change, tiny, tmp_path, ran):
    RAN[0] = ran
    for name in ("c", "other"):
        dcp(tmp_path / name, {"model": {"a": torch.zeros(3)}})
    with_metadata(tmp_path / "c", CHANGES[change])
    with pytest.raises(REFUSALS, match=r"c/\.metadata cannot be read|no weights|sets of weights"):
        convert(tmp_path / "c", tmp_path / "out", tiny / "base")


@pytest.mark.parametrize("name", PICKLES)
def test_metadata_that_is_a_bomb_is_refused(name, tiny, tmp_path, ran):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / ".metadata").write_bytes(PICKLES[name])
    with pytest.raises(REFUSALS, match="metadata cannot be read"):
        convert(tmp_path / "c", tmp_path / "out", tiny / "base")


def test_single_values_of_a_distributed_checkpoint_do_not_run(tiny, tmp_path, ran):
    """torch reads them by torch.load(weights_only=False)."""
    clean = dcp(tmp_path / "c", {"model": {"a": torch.zeros(3)}, "x": [1]})
    file, evil = next(clean.glob("*.distcp")), io.BytesIO()
    torch.save(Evil(ran), evil)
    content = file.read_bytes()
    file.write_bytes(content + evil.getvalue())

    def change(metadata):
        for index, place in metadata.storage_data.items():
            if index.fqn.startswith("x"):
                place.offset, place.length = len(content), len(evil.getvalue())

    with_metadata(clean, change)
    with pytest.raises(ValueError, match="in the model of"):  # it is read, and is not this model
        convert(clean, tmp_path / "out", tiny / "base")


def test_a_run_of_fsdp_is_not_resumed_from_code(tmp_path, ran):
    """torch reads the shards then, and unpickles .metadata and single values freely."""
    RAN[0] = ran
    folder = dcp(tmp_path / "c", {"state": {"a": torch.zeros(3)}, "groups": [{"lr": 1.0}]})
    require_inert(folder)
    with_metadata(folder, evil_metadata)
    with pytest.raises(IsentropeError, match=r"names posix\.system, which could run code"):
        require_inert(folder)
    shutil.rmtree(folder)
    with pytest.raises(IsentropeError, match=r"names fractions\.Fraction, which could run code"):
        require_inert(dcp(folder, {"state": {"a": torch.zeros(3)}, "x": Fraction(1)}))


def test_a_name_in_latest_stays_in_the_folder(tiny, tmp_path):
    for name in ("../other", "/tmp", "a/b", "", "a\0b"):
        (tmp_path / "c").mkdir(exist_ok=True)
        (tmp_path / "c" / "latest").write_text(name)
        with pytest.raises(REFUSALS, match=r"latest|no layout"):
            convert(tmp_path / "c", tmp_path / "out", tiny / "base")


def test_a_table_of_repeated_values_is_refused(tmp_path, monkeypatch, ran):
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 10**6), ["x"])
    pq.write_table(pa.table({"a": values}), tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size < 10**4
    file_contents.read_arrow(tmp_path / "t.parquet")
    monkeypatch.setattr(file_contents, "_MOST_VALUES", 10**6 - 1)
    with pytest.raises(IsentropeError, match="1000000 values"):
        file_contents.read_arrow(tmp_path / "t.parquet")


def test_a_header_of_safetensors_that_is_too_long_is_refused(tmp_path, ran):
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    for read in (
        file_contents.read_tensors,
        file_contents.read_tensor_headers,
        file_contents.read_tensor_notes,
    ):
        with pytest.raises(IsentropeError, match="cannot be read"):
            read(tmp_path / "m.safetensors")


PLACES = (
    *("step_4/optimizer.pt", "step_4/adapter_config.json", "step_4/adapter_model.safetensors"),
    *("step_4/parameter_names.json", "step_4/manifest.json", "step_4/tokenizer.json"),
    *("step_4/chat_template.jinja", "base/config.json", "base/model.safetensors"),
    *("base/manifest.json", "base/generation_config.json"),
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_a_special_file_in_a_checkpoint_is_refused_and_named(place, kind, tiny, tmp_path, ran):
    file = copied(tiny, tmp_path) / place
    file.unlink(missing_ok=True)
    os.mkfifo(file) if kind == "pipe" else file.symlink_to("/dev/zero")
    with pytest.raises(IsentropeError, match=rf"{file.name} is a device, a pipe or a socket"):
        Policy.from_checkpoint(tmp_path / "step_4")


@pytest.mark.parametrize("read", [reading.read_text, reading.read_json, file_contents.read_tensors])
def test_a_special_file_is_refused_by_every_reader(read, tmp_path, ran):
    os.mkfifo(tmp_path / "f")
    with pytest.raises(IsentropeError, match="a device, a pipe or a socket"):
        read(tmp_path / "f")
