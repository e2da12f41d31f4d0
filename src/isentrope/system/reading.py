"""The only place where files are parsed: whatever is wrong with one is a sentence that names it.

Every other module reads through these functions, or inside a `reading` block where a library opens
the files itself (`tests/system/test_reading.py` sees to it). A file of a folder with a manifest is
verified before it is opened.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isentrope.system.errors import FileError, IsentropeError
from isentrope.system.failures import ENDINGS, os_error_number
from isentrope.system.file_contents import TableSchema
from isentrope.system.files import require_regular
from isentrope.system.manifest import verify_file

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

CURE = "Restore the file, or make it again."
LARGEST_TEXT = 256 * 2**20
"""Bytes of a text file that is read as a whole."""
_MOST_VALUES = 2 * 10**8
"""Of a column."""
_LONGEST_REASON = 300


@contextmanager
def reading(path: str | Path, cure: str = CURE) -> Iterator[Path]:
    """Turn whatever goes wrong in the block into a sentence on the file, or on the folder.

    Errors of isentrope, of missing packages and of a full GPU are left as they are.

    Args:
        path: What is read in the block.
        cure: What to do if it cannot be read, a sentence.

    Yields:
        The path.

    Raises:
        FileNotFoundError: If a file is missing.
        FileError: For every other failure.
        IsentropeError: As it is.
        ImportError: As it is.
        ENDINGS: As they are.
    """
    path = Path(path)
    for file in (path, *(path.iterdir() if path.is_dir() else ())):
        require_regular(file)
    verify_file(path)
    try:
        yield path
    except (IsentropeError, ImportError):
        raise
    except FileNotFoundError as error:
        if error.errno is None and str(error) != str(path):  # pyarrow names the path alone
            raise  # a sentence of isentrope
        raise FileNotFoundError(f"There is no file {error.filename or path}. {cure}") from error
    except ENDINGS:
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        if type(error).__name__ == "OutOfMemoryError":  # of torch: the file is not at fault
            raise
        raise FileError(f"{path} cannot be read: {reason(error)}. {cure}") from error


def figure_left_out(error: BaseException) -> str:
    """What stands in the place of a figure that cannot be drawn.

    Args:
        error: What matplotlib, or the writing of its file, raised.

    Returns:
        A sentence.

    Raises:
        BaseException: The error itself, where it is of the disk: that is not the figure's.
    """
    if os_error_number(error) is not None:
        raise error
    return f"The figure is left out: its numbers cannot be drawn ({reason(error)})."


def reason(error: BaseException) -> str:
    """What an exception of a library says, as the middle of a sentence."""
    text = " ".join(str(error).split()).rstrip(".:")
    if len(text) > _LONGEST_REASON:
        text = f"{text[:_LONGEST_REASON]} …"
    kind = type(error).__name__
    known: dict[str, str] = {
        "UnicodeDecodeError": "it is not UTF-8 text",
        "JSONDecodeError": f"it is not JSON ({text})",
        "RecursionError": "its content is nested too deeply",
        "MemoryError": "there is not enough memory for it",
        "UnpicklingError": "it holds something other than tensors and plain values",
        "KeyError": f"it has no {text}",
        "PanicException": f"what reads it gave up ({text})",
    }
    if kind in known:
        return known[kind]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if not text or kind in ("TypeError", "AttributeError"):
        return f"{text} ({kind})".strip()
    return text


def read_text(path: str | Path, cure: str = CURE) -> str:
    """The content of a UTF-8 file of at most LARGEST_TEXT bytes.

    Returns:
        The text.

    Raises:
        ValueError: If it is too large, or no text.
    """
    with reading(path, cure) as file:
        if (size := file.stat().st_size) > LARGEST_TEXT:
            raise ValueError(f"it has {size} bytes, more than any file of its kind")
        return file.read_bytes().decode()


def read_json(path: str | Path, cure: str = CURE, *, kind: type = dict, finite: bool = True) -> Any:
    """The content of a JSON file.

    Args:
        path: The file.
        cure: What to do if it cannot be read, a sentence.
        kind: What it must hold, an object (dict) or a list.
        finite: Whether NaN and infinity are refused.

    Returns:
        The content.

    Raises:
        ValueError: If it is not such JSON.
    """
    text = read_text(path, cure)
    with reading(path, cure):
        content = parse_json(text, finite=finite)
        if not isinstance(content, kind):
            words = "a list" if kind is list else "an object"
            raise ValueError(f"it should hold {words}, and holds {text[:40]}")
        return content


def read_json_lines(path: str | Path, cure: str = CURE) -> list[tuple[int, Any]]:
    """The content of a file with one JSON value per line; blank lines are skipped.

    Returns:
        Line number from 1, and value.

    Raises:
        FileError: Naming the line.
    """
    rows = []
    for number, line in enumerate(read_text(path, cure).split("\n"), 1):
        if line.strip():
            try:
                rows.append((number, parse_json(line)))
            except (ValueError, RecursionError) as error:
                raise FileError(
                    f"{path}, line {number} cannot be read: {reason(error)}. {cure}"
                ) from error
    return rows


def require_types(path: str | Path, content: Any, types: Any, cure: str = CURE) -> None:
    """Refuse content of a file whose keys have values of other types.

    Args:
        path: The file.
        content: What it holds.
        types: A type that pydantic validates.
        cure: What to do, a sentence.

    Raises:
        FileError: Naming the file and the key.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        TypeAdapter(types).validate_python(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "its content"
        raise FileError(f"{path}: {key} is wrong ({first['msg']}). {cure}") from error


def read_tensors(
    path: str | Path,
    cure: str = CURE,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Args:
        path: The file.
        cure: What to do if it cannot be read, a sentence.
        shapes: The names and shapes that it must have; None for any.

    Returns:
        Tensor by name.

    Raises:
        ValueError: If it is damaged, or has others.
    """
    from safetensors.torch import load_file

    with reading(path, cure) as file:
        tensors = load_file(file)
        for name, shape in (shapes or {}).items():
            found = tuple(tensors[name].shape) if name in tensors else None
            if found != tuple(shape):
                raise ValueError(f"its tensor {name!r} has shape {found}, not {shape}")
        return tensors


def read_tensor_headers(path: str | Path, cure: str = CURE) -> dict[str, tuple[str, list[int]]]:
    """Types and shapes of the tensors in a safetensors file, without their values."""
    from safetensors import safe_open

    with reading(path, cure) as file, safe_open(file, "pt") as content:
        slices = {key: content.get_slice(key) for key in content.keys()}  # noqa: SIM118
        return {key: (part.get_dtype(), list(part.get_shape())) for key, part in slices.items()}


def read_tensor_notes(path: str | Path) -> dict[str, str]:
    """The metadata of a safetensors file."""
    from safetensors import safe_open

    with reading(path) as file, safe_open(file, "pt") as content:
        return dict(content.metadata() or {})


def read_torch(path: str | Path, cure: str = CURE) -> Any:
    """What torch.save wrote: tensors and plain values alone, on the CPU."""
    import torch

    from isentrope.system.inert import require_bounded, require_intact

    with reading(path, cure) as file:
        require_intact(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
        require_bounded(content)
        return content


def read_torch_as_data(path: str | Path) -> Any:
    """What torch.save wrote; objects of other classes are `inert.Inert`."""
    from isentrope.system.inert import load_torch

    with reading(path) as file:
        return load_torch(file).value


def read_schema(path: str | Path) -> Any:
    """Names of the columns of a parquet file, and its metadata."""
    import pyarrow.parquet as pq

    with reading(path) as file:
        return pq.read_schema(file)


def read_arrow(path: str | Path, cure: str = CURE) -> Any:
    """A parquet file as an arrow table.

    Returns:
        The table.

    Raises:
        ValueError: If a column takes much more memory than the file: repeated values are packed.
    """
    import pyarrow.parquet as pq

    with reading(path, cure) as file:
        metadata = pq.read_metadata(file)
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        for k in range(metadata.num_columns):
            if (values := sum(group.column(k).num_values for group in groups)) > _MOST_VALUES:
                raise ValueError(f"a column has {values} values, more than any table of its kind")
        table = pq.read_table(file)
        table.validate(full=True)
        return table


def read_table(
    path: str | Path,
    cure: str = CURE,
    *,
    schema: TableSchema,
    today: Callable[[str], str] = str,
) -> pd.DataFrame:
    """A parquet file as a table.

    Args:
        path: The file.
        cure: What to do if it cannot be read, a sentence.
        schema: The columns that it must have.
        today: Turns the name that a column had in an earlier version into that of today.

    Returns:
        The table.

    Raises:
        ValueError: If it is damaged, or a column is missing, unknown or of another type.
    """
    with reading(path, cure) as file:
        table = read_arrow(file, cure)
        if fault := schema.fault(table.rename_columns([*map(today, table.column_names)])):
            raise ValueError(fault)
        return table.to_pandas().rename(columns=today)


def parse_json(text: str, *, finite: bool = True) -> Any:
    """Parse JSON in which no key is given twice.

    Args:
        text: JSON.
        finite: Whether NaN and infinity are refused.

    Returns:
        The content.

    Raises:
        ValueError: If it is not that.
    """
    number = _finite if finite else float
    content = json.loads(text, object_pairs_hook=_once, parse_constant=number, parse_float=number)
    if "\\u" in text:
        json.dumps(content, ensure_ascii=False).encode()  # refuses half of a surrogate pair
    return content


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"the key {twice!r} is given twice")
    return content


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value
