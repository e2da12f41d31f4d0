"""One process writes into a folder, and an interrupt says what is kept of its work.

    <folder>/.lock      process, host, command and time of the one who writes

The kernel releases the lock when its holder dies, however it dies, and .lock is removed when the
holder is done. The file alone locks nothing, and does no harm where it was left by a process that
was killed.
"""

import errno
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from isentrope.system.files import remove_empty, writing_below
from isentrope.system.log import log
from isentrope.system.outputs import require_apart
from isentrope.system.processes import gather, rank

LOCK = ".lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


@contextmanager
def noted_if_interrupted(note: Callable[[], str | None]) -> Iterator[None]:
    """Add a sentence to an interrupt (Ctrl-C): what is kept, and how to go on.

    Args:
        note: Called when the block is interrupted; None for no sentence.

    Yields:
        Nothing.

    Raises:
        KeyboardInterrupt: That of the block, with the note.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if sentence := note():
            error.add_note(sentence)
        raise


@contextmanager
def one_writer(folder: str | Path, inputs: Iterable[str | Path] = ()) -> Iterator[None]:
    """Hold a folder for writing; every process of a distributed run must call this.

    The processes of a distributed run are one writer: the first of them holds the lock. A block
    inside another block of the same thread, on the same folder, is the same writer too. Readers
    need no lock. Folders that were made for the lock are removed if nothing was written.

    Args:
        folder: The folder; it is made if need be.
        inputs: What is read, which the folder must be apart from (`outputs`).

    Yields:
        Nothing.

    Raises:
        FileError: If the folder is in or above an input; nothing is made then.
        BlockingIOError: If another process writes there; the message names it.
        OSError: If the folder cannot be made or written into.
    """
    folder = Path(folder)
    require_apart(folder, inputs)
    created = [p for p in (folder, *folder.parents) if not p.exists()]
    lock: FileLock | None = None
    refusal: OSError | None = None
    if rank() == 0:
        try:
            lock = _acquire(folder)
        except OSError as error:
            refusal = error
    try:
        if refusal := gather(refusal)[0]:
            raise refusal
        with writing_below(folder):
            yield
    finally:
        if lock is not None:
            if lock.lock_counter == 1:
                # who waits with the old file open finds that it has no name
                with suppress(OSError):
                    Path(lock.lock_file).unlink()
            lock.release()
        if rank() == 0:
            remove_empty(created)


def _acquire(folder: Path) -> FileLock | None:
    """The lock, held; None where the file system has no locks, which is said."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, blocking=False, is_singleton=True, fallback_to_soft=False)
        lock.acquire()
    except Timeout:
        raise BlockingIOError(
            f"{folder} is being written by another process{_holder(folder / LOCK)}: wait until it "
            "has ended, or choose another folder."
        ) from None
    except OSError as error:
        if error.errno in _NO_LOCKS:
            log.warning(
                "The file system of %s has no locks: see to it that no other process writes there.",
                folder,
            )
            return None
        raise OSError(
            f"Nothing can be written into {folder} ({error.strerror or error}): choose another "
            "folder, or change its permissions."
        ) from error
    if lock.lock_counter == 1:
        command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:2]])
        since = datetime.now().isoformat(sep=" ", timespec="seconds")
        note = f"process {os.getpid()} on {socket.gethostname()}, {command}, since {since}"
        with suppress(OSError):  # the lock holds without its note
            (folder / LOCK).write_text(note, encoding="utf-8")
    return lock


def _holder(lock: Path) -> str:
    """What the holder of a lock wrote of itself, in brackets; nothing where that cannot be read."""
    try:
        note = lock.read_text(encoding="utf-8") if lock.is_file() else ""
    except (OSError, ValueError):
        return ""
    return f" ({note})" if 0 < len(note) < 500 and note.isprintable() else ""
