"""Reading of files: whatever is wrong with one is a sentence that names it.

Every other module reads through these functions and those of `file_contents`, or inside a `reading`
block where a library opens the files itself (`tests/system/test_reading.py` sees to it). A file of
a folder with a manifest is verified before it is opened.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isentrope.system.errors import FileError, IsentropeError
from isentrope.system.failures import ENDINGS, os_error_number
from isentrope.system.files import require_regular
from isentrope.system.manifest import verify_file

RESTORE_FILE = "Restore the file, or make it again."
"""What to do where a file cannot be read."""
LARGEST_TEXT = 256 * 2**20
"""Bytes of a text file that is read as a whole."""
_LONGEST_REASON = 300
_VALIDATORS: dict[Any, Any] = {}
"""By type: making one takes longer than checking a line with it."""


def require_directory(folder: Path, cure: str) -> None:
    """Refuse what is no directory.

    Args:
        folder: A path.
        cure: What to give instead, a clause.

    Raises:
        FileNotFoundError: Naming the path.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a directory: {cure}.")


@contextmanager
def reading(path: str | Path, cure: str = RESTORE_FILE) -> Iterator[Path]:
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
    words: dict[str, str] = {
        "UnicodeDecodeError": "it is not UTF-8 text",
        "JSONDecodeError": f"it is not JSON ({text})",
        "RecursionError": "its content is nested too deeply",
        "MemoryError": "there is not enough memory for it",
        "UnpicklingError": "it holds something other than tensors and plain values",
        "KeyError": f"it has no {text}",
        "PanicException": f"what reads it gave up ({text})",
    }
    if kind in words:
        return words[kind]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if not text or kind in ("TypeError", "AttributeError"):
        return f"{text} ({kind})".strip()
    return text


def read_text(path: str | Path, cure: str = RESTORE_FILE) -> str:
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


def read_json(
    path: str | Path, cure: str = RESTORE_FILE, *, kind: type = dict, finite: bool = True
) -> Any:
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


def read_json_lines(path: str | Path, cure: str = RESTORE_FILE) -> list[tuple[int, Any]]:
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


def require_types(path: str | Path, content: Any, types: Any, cure: str = RESTORE_FILE) -> None:
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

    if types not in _VALIDATORS:
        _VALIDATORS[types] = TypeAdapter(types)
    try:
        _VALIDATORS[types].validate_python(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "its content"
        raise FileError(f"{path}: {key} is wrong ({first['msg']}). {cure}") from error


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
    number = _parse_finite if finite else float
    content = json.loads(
        text, object_pairs_hook=_refuse_duplicates, parse_constant=number, parse_float=number
    )
    if "\\u" in text:
        json.dumps(content, ensure_ascii=False).encode()  # refuses half of a surrogate pair
    return content


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"the key {twice!r} is given twice")
    return content


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value
