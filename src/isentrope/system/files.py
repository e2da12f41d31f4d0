"""Files and folders that are complete or absent, lines appended to logs, and digests.

This is the only module that writes under a temporary name. A file is written as `NAME.*.partial`, a
folder as `.NAME.partial`, both beside their target. The content is flushed to the disk, then
renamed, then the rename is flushed. So a name never refers to an incomplete file, even if the
process is killed or the machine loses power. The next write removes what a killed process left.

No link is followed: a temporary file or folder is created anew, a link under its name is removed,
and a folder of a run that is a link to somewhere else is refused.

The last file of a folder is manifest.json, the size and SHA-256 of every other one (`manifest`
verifies it). No file of such a folder is changed afterwards. One of the files, isentrope.json, says
that the folder has a manifest, so that one that was lost is missed.

    {"schema": "isentrope/manifest/1", "files": {"U.parquet": {"sha256": "9f…", "size": 4711}}}
    {"schema": "isentrope/folder/1", "manifest": "manifest.json"}
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from glob import escape
from pathlib import Path
from typing import Any

from isentrope.system.errors import FileError
from isentrope.system.failures import naming
from isentrope.system.formatting import finite

MANIFEST = "manifest.json"
MANIFEST_SCHEMA = "isentrope/manifest/1"
MARKER = "isentrope.json"
_MARKER_TEXT = f'{{"schema": "isentrope/folder/1", "manifest": "{MANIFEST}"}}\n'
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
_RUN: ContextVar[Path | None] = ContextVar("run", default=None)


@contextmanager
def writing_below(folder: Path) -> Iterator[None]:
    """Refuse to write, in the block, through a link in a folder that leads out of it."""
    token = _RUN.set(folder.absolute())
    try:
        yield
    finally:
        _RUN.reset(token)


def write_file(path: Path, write: Callable[[Path], object]) -> Path:
    """Write a file through a function; the file gets its name when it is complete.

    Args:
        path: Target file; its folder is created if missing, and an older file is replaced.
        write: Called with the temporary path to write to.

    Returns:
        The path.
    """
    _require_inside(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in path.parent.glob(f"{escape(path.name)}.*.partial"):
        abandoned.unlink()
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with naming(path):
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
            write(partial)
            _sync(partial)
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    _sync(path.parent)
    return path


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file, complete or not at all; its folder is created, an older file replaced."""
    return write_file(path, lambda partial: partial.write_bytes(content))


def write_json(path: Path, content: Any) -> Path:
    """Write JSON, complete or not at all; NaN and infinity become null."""
    text = json.dumps(finite(content), indent=2, ensure_ascii=False, allow_nan=False)
    return write_bytes(path, f"{text}\n".encode())


def append_line(path: Path, line: str) -> None:
    """Append a line to a log; it is on the disk when this returns.

    Args:
        path: The log; it is created with its folder if missing.
        line: Text without a line break.
    """
    _require_inside(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    with naming(path), open(os.open(path, flags, 0o666), "ab") as file:
        file.write(f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Build a folder under a temporary name; it gets its own when the block ends.

    If the block fails, the folder and the parents created for it are removed.

    Args:
        target: The folder to create, which must not exist.

    Yields:
        The temporary folder to write into.

    Raises:
        FileExistsError: If `target` exists.
    """
    if target.exists() or target.is_symlink():
        raise FileExistsError(f"{target} exists already: choose another folder, or remove it.")
    created = [p for p in target.parents if not p.exists()]
    partial = target.with_name(f".{target.name}.partial")
    fresh_folder(partial)
    try:
        with naming(target):
            yield partial
        publish_folder(partial, target)
    except BaseException:  # raised again: also an interrupted folder is removed
        shutil.rmtree(partial, ignore_errors=True)
        remove_empty(created)
        raise


def fresh_folder(folder: Path) -> None:
    """Make a folder in place of whatever has its name; a link is removed, not followed."""
    _require_inside(folder.parent)
    remove_any(folder)
    folder.mkdir(parents=True)


def remove_any(path: Path) -> None:
    """Remove a file, a link or a folder, if there is one; an error names what it could not."""
    with naming(path):
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)


def publish_folder(complete: Path, target: Path) -> None:
    """Flush a complete folder to the disk with its manifest, then give it its name.

    Args:
        complete: The folder, on the same file system as its target.
        target: Its name, which is not in use.
    """
    for path in sorted(complete.rglob("*"), reverse=True):  # what is in a folder before it
        _sync(path)
    write_manifest(complete)
    with naming(target):
        os.replace(complete, target)
    _sync(target.parent)


def write_manifest(folder: Path) -> Path:
    """Mark a folder as ours, and list its files with sizes and digests; both are on the disk then.

    Args:
        folder: The folder, whose files are complete.

    Returns:
        The manifest.
    """
    write_bytes(folder / MARKER, _MARKER_TEXT.encode())
    files = {
        path.relative_to(folder).as_posix(): {
            "sha256": sha256_of_file(path),
            "size": path.stat().st_size,
        }
        for path in files_below(folder)
    }
    return write_bytes(folder / MANIFEST, manifest_text(files).encode())


def manifest_text(files: Mapping[str, Mapping[str, Any]]) -> str:
    """The only text of a manifest of these files, so that every other one is a damaged one."""
    ordered = {name: dict(files[name]) for name in sorted(files)}
    return json.dumps({"schema": MANIFEST_SCHEMA, "files": ordered}, indent=2) + "\n"


def files_below(folder: Path) -> list[Path]:
    """The files that a folder's manifest lists.

    Hidden files, those of hidden folders, and the contents of inner folders that have a manifest
    of their own are not among them.

    Args:
        folder: The folder.

    Returns:
        In the order of their names, the manifest itself not among them.

    Raises:
        FileError: If one is a link to a directory, which may lead back.
    """
    files: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == MANIFEST:
            continue
        if not path.is_dir():
            files.append(path)
        elif path.is_symlink():
            raise FileError(
                f"{path} is a link to a directory, which no folder of isentrope holds: put the "
                "directory itself there, or remove the link.",
            )
        elif not (path / MANIFEST).exists():
            files += files_below(path)
    return files


def remove_folder(folder: Path, renamed: str) -> None:
    """Remove a folder; its name never refers to one that is half removed.

    Args:
        folder: The folder.
        renamed: The name it has in the same parent while it is removed.
    """
    doomed = folder.with_name(renamed)
    remove_any(doomed)  # what a process that was killed left
    with naming(folder):
        os.replace(folder, doomed)
    _sync(folder.parent)
    remove_any(doomed)


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove those of the folders that are empty; each comes before its parents."""
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def sha256(parts: Iterable[bytes]) -> str:
    """SHA-256 of the joined parts, in hexadecimal; they are read one at a time."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def require_regular(path: Path) -> None:
    """Refuse what would be read for ever: a device, a pipe or a socket, perhaps behind a link.

    Raises:
        FileError: If it is there and no file or folder.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise FileError(f"{path} is a device, a pipe or a socket: put a file in its place.")


def sha256_of_file(path: Path) -> str:
    """SHA-256 of the content of a file, in hexadecimal."""
    require_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def short_digest(text: str, size: int) -> bytes:
    """BLAKE2b of a text, for keys and for splits that depend on nothing else."""
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


def _require_inside(folder: Path) -> None:
    """Refuse a folder below that of `writing_below` which a link leads out of it."""
    run = _RUN.get()
    if run is None or not folder.absolute().is_relative_to(run):
        return
    if not folder.resolve().is_relative_to(run.resolve()):
        raise FileError(
            f"{folder} leads to {folder.resolve()}, out of {run}: remove the link, or let the "
            "whole run folder be one.",
        )


def _sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    with naming(path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:  # some network file systems cannot flush folders
            if not path.is_dir() or error.errno not in _NO_FOLDER_SYNC:
                raise
        finally:
            os.close(handle)
