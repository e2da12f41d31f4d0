"""The folder of a run: what was asked, with what it was made, and results that are whole or absent.

runs/run_YYYY-MM-DD_HH-MM-SS/
  config.yaml                      resolved; running it again reproduces the run
  measurements/<verb>_step_N/      results.json, tables, figure
  logs/                            what `detailed_logging` asks for
  .lock                            process, host, command and time of the one who writes

Whether results can be written is looked at before any work is done. One process writes: the kernel
releases the lock when its holder dies, however it dies, and .lock is removed when the holder is
done. The file alone locks nothing, and does no harm where it was left by a process that was killed.
"""

import errno
import logging
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from isentrope._version import __version__
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import dump_config
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.config.values import relative_to_run
from isentrope.system.files import remove_empty, writing_below
from isentrope.system.outputs import require_apart
from isentrope.system.processes import gather, rank

C = TypeVar("C", MeasureConfig, EvaluateConfig, TrainConfig, SftConfig)

PACKAGES = ("torch", "transformers", "trl", "peft", "safetensors", "numpy", "scipy", "arviz-stats")
"""Packages whose versions can move a number."""

LOCK = ".lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


def run_directory(directory: str | None) -> Path:
    """The folder that `output.directory` names, or one named by the time; it is not made yet."""
    by_time = Path("runs") / f"run_{datetime.now():%Y-%m-%d_%H-%M-%S}"
    return gather(Path(directory) if directory else by_time)[0]


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


def versions() -> dict[str, Any]:
    """With what a run is made: isentrope and its git commit, Python, the packages that matter."""
    installed = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return {
        "isentrope": __version__,
        "git": git_commit(Path(__file__).parents[1]),
        "python": platform.python_version(),
        "packages": installed,
    }


def resolved_content(
    config: C,
    run: Path,
    folder: Path | None = None,
    *,
    seeds: Mapping[str, int] | None = None,
    provenance: Mapping[str, Any] | None = None,
    omit: Collection[str] = (),
) -> bytes:
    """The config.yaml of a run: with what it was made, its output folder left to a rerun.

    Args:
        config: As it was run.
        run: The run's folder.
        folder: The folder of the file, if it is one in the run's.
        seeds: By what was drawn with them.
        provenance: Of the start of a run that is resumed; None for that of now.
        omit: Keys that are not written.

    Returns:
        YAML.
    """
    with_seeds = {"seeds": dict(seeds)} if seeds else {}
    made_with = dict(provenance) if provenance else versions() | with_seeds
    output = config.output.model_copy(update={"directory": None})
    ran = config.model_copy(update={"provenance": made_with, "output": output})
    ran = relative_to_run(ran, run, folder or run)
    return dump_config(ran, omit=omit).encode()


def git_commit(folder: Path) -> str | None:
    """The commit of sources, with "-dirty" where they were changed; None where there is no git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        if not git("ls-files", "--", "__init__.py"):
            return None
        dirty = "-dirty" if git("status", "--porcelain", "--", ".") else ""
        return git("rev-parse", "HEAD") + dirty
    except (OSError, subprocess.CalledProcessError):
        return None


def content_differences(made_with: Mapping[str, Any]) -> list[str]:
    """What is another version here than in `provenance`: ["torch 2.12.0 then, 2.13.0 now"]."""
    then, now = (
        {k: x[k] for k in ("isentrope", "python") if k in x} | x.get("packages", {})
        for x in (made_with, versions())
    )
    return [
        f"{name} {old} then, {now.get(name, 'absent')} now"
        for name, old in then.items()
        if now.get(name) != old
    ]


def heed(config: C, words: str = "This configuration is of a run") -> None:
    """Log at the level that a configuration asks for, and say what else it was run with."""
    log = logging.getLogger("isentrope")
    log.setLevel(config.output.log_level)
    for difference in content_differences(config.provenance or {}):
        log.warning("%s with %s.", words, difference)


def kept_steps(
    steps: range, every: int, keep_last: int | None = None, keep_every: int | None = None
) -> list[int]:
    """Steps whose checkpoints will be there together, with the one that is being written.

    Args:
        steps: Those that will be taken; the last one is saved in any case.
        every: Steps between checkpoints.
        keep_last: Newest checkpoints kept; None for all.
        keep_every: Multiples of this many steps are kept beside them.

    Returns:
        The steps, in order.
    """
    saved = [step for step in steps if step % every == 0 or step == steps[-1]]
    newest = saved if keep_last is None else saved[-keep_last - 1 :]
    return [s for s in saved if s in newest or (keep_every is not None and s % keep_every == 0)]


def folder_name(text: str) -> str:
    """A name of a folder from a text that may hold a path: separators become underscores."""
    return text.replace("/", "_").replace("\\", "_").lstrip(".") or "data"


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
                with suppress(
                    OSError
                ):  # who waits with the old file open finds that it has no name
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
            logging.getLogger("isentrope").warning(
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
