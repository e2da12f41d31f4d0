"""Verification of folders by their manifest.json: a file that was changed is never read.

`files` writes the manifest as the last file of a folder. Here every listed file must be there with
its size and SHA-256, and no other file beside them; inner folders with a manifest of their own
(`next_update` of a checkpoint) are verified too.

A folder that has isentrope.json and no manifest has lost it, and is refused. One that has neither
was made elsewhere, or by an earlier version, and is read; that it is not verified is said once per
place, where one of its files is one that isentrope writes.

A file is hashed once per process: what was read is kept by path, size, times and inode.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from isentrope.system.errors import FileError
from isentrope.system.files import (
    MANIFEST,
    MANIFEST_SCHEMA,
    MARKER,
    files_below,
    manifest_text,
    require_regular,
    sha256,
    sha256_of_file,
)
from isentrope.system.log import log

NOT_VERIFIED = (
    "READ WITHOUT VERIFICATION, as --no-verify (checkpoint.verify=false) allows: files that were "
    "changed after they were written are not detected."
)
"""The warning of results that were made without verification."""

_UNVERIFIED = (
    "read the folder with --no-verify (verify=False in Python), which believes whatever its files "
    "hold now"
)
_CURE = f"restore it, or {_UNVERIFIED}"
_LARGEST = 64 * 2**20
_OURS = ("contract.json", "results.json", "metrics.json", "update.json")
"""Names that isentrope gives; few folders of other tools have one of them."""
_VERIFYING: ContextVar[bool] = ContextVar("verifying", default=True)

_noted: set[Path] = set()
_known: dict[tuple[Path, object], tuple[object, Any]] = {}
"""What was read of a file by a function, with what its entry in the file system was then."""
_T = TypeVar("_T")


@contextmanager
def verification(on: bool) -> Iterator[None]:
    """Verify what is read in the block, or do not.

    Args:
        on: Whether to verify. Off in an outer block is off in every inner one.

    Yields:
        Nothing.
    """
    token = _VERIFYING.set(on and _VERIFYING.get())
    try:
        yield
    finally:
        _VERIFYING.reset(token)


def verifying() -> bool:
    """Whether files are verified here."""
    return _VERIFYING.get()


def verify(folder: str | Path) -> str | None:
    """Refuse a folder of which a file was changed, removed or added after it was written.

    The manifest itself is such a file.

    Args:
        folder: The folder.

    Returns:
        SHA-256 of its manifest; None where it has none, or verification is off.

    Raises:
        FileError: Naming the first file.
    """
    if not verifying():
        return None
    folder = Path(os.path.realpath(folder))
    for inner in sorted(folder.iterdir()) if folder.is_dir() else ():  # written later than it
        has_manifest = any((inner / name).exists() for name in (MANIFEST, MARKER))
        if has_manifest and not inner.name.startswith(".") and not inner.is_symlink():
            verify(inner)
    if (listed := _list_files(folder)) is None:
        _say_unverified(folder)
        return None
    for name, entry in listed.items():
        _require_unchanged(folder / name, entry)
    for file in files_below(folder):
        if file.relative_to(folder).as_posix() not in listed:
            raise FileError(
                f"{file} was added after {folder} was written: move it elsewhere, or "
                f"{_UNVERIFIED}.",
            )
    return sha256([manifest_text(listed).encode()])


def verify_file(path: str | Path) -> None:
    """Refuse a file that differs from its entry in the manifest of its folder, if there is one.

    Args:
        path: A file in a folder, or in an inner folder, that was written as a whole.

    Raises:
        FileError: If it was changed, or the manifest is missing.
    """
    path = Path(os.path.realpath(path))  # which does not fail on a link to itself
    if not verifying() or path.name == MANIFEST or not path.is_file():
        return
    for folder in path.parents[:2]:
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts):  # such files are not listed
            return
        if (listed := _list_files(folder)) is not None:
            if entry := listed.get(name.as_posix()):
                _require_unchanged(path, entry)
            return


def _require_unchanged(path: Path, entry: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise FileError(f"{path} is missing, which {MANIFEST} lists: {_CURE}.")
    if path.stat().st_size != entry["size"] or file_digest(path) != entry["sha256"]:
        explanation = _explain_line_ends(path, entry["sha256"])
        raise FileError(f"{path} was changed after it was written{explanation}: {_CURE}.")


def _explain_line_ends(path: Path, written: str | None = None) -> str:
    """Words that git changed the line ends of a file, and nothing else of what was written."""
    content = path.read_bytes() if path.is_file() and path.stat().st_size <= _LARGEST else b""
    plain = content.replace(b"\r\n", b"\n")
    if plain == content or written not in (None, sha256([plain])):
        return ""
    return " (its line ends alone: git does so where core.autocrlf is not false)"


def read_once(path: Path, reader: Callable[[Path], _T]) -> _T:
    """What a function reads of a file; it is called once per process and content."""
    key = (path.resolve(), reader)
    entry = path.stat()
    stamp = entry.st_size, entry.st_mtime_ns, entry.st_ctime_ns, entry.st_ino
    if _known.get(key, (None,))[0] != stamp:
        _known[key] = stamp, reader(path)
    return _known[key][1]


def file_digest(path: Path) -> str:
    """SHA-256 of a file, computed once per process and content."""
    return read_once(path, sha256_of_file)


def _list_files(folder: Path) -> dict[str, dict[str, Any]] | None:
    """What the manifest of a folder lists; None where the folder was made elsewhere."""
    path = folder / MANIFEST
    require_regular(path)
    if (folder / MARKER).exists():
        if not path.exists():
            raise FileError(f"{path} is missing, which was written ({MARKER} says so): {_CURE}.")
    elif not path.is_file() or not _is_ours(path):
        return None
    try:
        return read_once(path, _parse_manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(
            f"{path} is damaged{_explain_line_ends(path)}, or is not a manifest of isentrope, so "
            f"the folder cannot be verified: {_CURE}.",
        ) from error


def _is_ours(path: Path) -> bool:
    """Whether a manifest is one of isentrope: other tools use the name too."""
    with path.open("rb") as file:
        return MANIFEST_SCHEMA.encode() in file.read(200)


def _parse_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """The files of a manifest; whatever differs from the text that `files` writes is an error."""
    if path.stat().st_size > _LARGEST:
        raise ValueError("the manifest is too large")
    text = path.read_bytes().decode()
    files = json.loads(text)["files"]
    if text != manifest_text(files):
        raise ValueError("the manifest is not in the form in which it is written")
    for name, entry in files.items():
        if os.path.isabs(name) or ".." in name.split("/") or set(entry) != {"sha256", "size"}:
            raise ValueError(f"the entry {name!r} is not one of a manifest")
    return files


def _say_unverified(folder: Path) -> None:
    place = folder.parent  # an old run has many such folders side by side
    if place not in _noted and any((folder / name).is_file() for name in _OURS):
        _noted.add(place)
        log.warning(
            "%s has no %s, so its files are not verified: an earlier version or another tool wrote "
            "it, or the manifest was lost. More such folders in %s are not named.",
            *(folder, MANIFEST, place),
        )
