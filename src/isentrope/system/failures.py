"""What an exception of any library means: an end that was asked for, a failed write, or a fault.

Libraries have no class in common. Those in Rust raise the bare `Exception` for a full disk and a
BaseException (PanicException) where they give up; torch says of a full disk that a stream broke. So
every exception that is no end counts as a failure, and the number of the operating system's error
is taken from wherever it stands.
"""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isentrope.system.errors import IsentropeError

ENDINGS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Ways to end: signals and exits. Every other exception is a failure, whatever its base class."""

_NUMBER = re.compile(r"\(os error (\d+)\)|\[errno:? (\d+)\]", re.IGNORECASE)
"""How libraries in Rust, and pyarrow, give the number."""
_BROKEN_STREAM = re.compile(
    r"basic_ios::clear|iostream error|unexpected pos \d+ vs \d+|PytorchStreamWriter failed"
    r"|Error writing bytes to file"
)
"""What torch and pyarrow say of a write that failed, without its number."""
_ADVICE = {
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG): "free disk space",
    (errno.EACCES, errno.EPERM, errno.EROFS): "allow writing there",
    (errno.EMFILE, errno.ENFILE): "allow more open files (ulimit -n)",
    (errno.EIO, errno.ESTALE): "see to the disk, or write to another",
    (errno.ENOTDIR, errno.EISDIR, errno.EEXIST): "remove what is in the way",
}
_FULL = 2**16
"""Free bytes below which a disk is full."""


def os_error_number(error: BaseException) -> int | None:
    """The number of the operating system's error that an exception reports, or was raised from.

    Args:
        error: Of any library.

    Returns:
        errno; EIO for a write that failed without a number, None where there was no such error.
    """
    broken = None
    for cause in _list_causes(error):
        if isinstance(cause, OSError) and cause.errno is not None:
            return cause.errno
        if number := _NUMBER.search(str(cause)):
            return int(number[1] or number[2])
        if _BROKEN_STREAM.search(str(cause)):
            broken = errno.EIO
    return broken


def advice(number: int | None) -> str:
    """What to do about an error of the operating system, the middle of a sentence."""
    return next((words for kinds, words in _ADVICE.items() if number in kinds), "remove the cause")


def words_of(number: int) -> str:
    """What the operating system calls an error."""
    return os.strerror(number)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of reading and writing name the path and say what to do, whoever raises them."""
    try:
        yield
    except (IsentropeError, *ENDINGS):
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        number = os_error_number(error)
        if number in (None, errno.EIO) and _count_free_bytes(path) < _FULL:
            number = errno.ENOSPC  # libraries that do not say why
        if number is None:
            raise
        if isinstance(error, OSError) and isinstance(error.filename, str):
            if os.sep in error.filename:
                raise  # it has its path
            path = path / error.filename  # rmtree has names relative to the folder
        cause = error.strerror if isinstance(error, OSError) and error.errno == number else None
        cause = cause or words_of(number)
        sentence = f"{cause}: {advice(number)}, and run the command again"
        raise OSError(number, sentence, str(path)) from error


def _count_free_bytes(path: Path) -> int:
    """Free bytes on the disk of a path that is perhaps not there yet."""
    folder = next(p for p in path.absolute().parents if p.exists())
    return shutil.disk_usage(folder).free


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and what it was raised from; cycles end."""
    passed = list[BaseException]()
    current: BaseException | None = error
    while current is not None and not any(current is cause for cause in passed):
        passed.append(current)
        yield current
        current = current.__cause__
