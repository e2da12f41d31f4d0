"""The folder of a run: what was asked, with what it was made, and results that are whole or absent.

runs/run_YYYY-MM-DD_HH-MM-SS/
  config.yaml                      resolved; running it again reproduces the run
  measurements/<verb>_step_N/      results.json, tables, figure
  logs/                            what `detailed_logging` asks for
"""

from __future__ import annotations

import io
import json
import math
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import isentrope

PACKAGES = ("torch", "transformers", "trl", "peft", "safetensors", "numpy", "scipy", "arviz-stats")
"""Packages whose versions can move a number."""


def run_directory(directory: str | None) -> Path:
    """The run folder that a configuration names; it is not made yet.

    Args:
        directory: `output.directory`; None for one under runs/ named by the time.

    Returns:
        The path.
    """
    return Path(directory) if directory else Path("runs") / f"run_{_now():%Y-%m-%d_%H-%M-%S}"


def _now() -> datetime:
    return datetime.now()


def versions() -> dict[str, Any]:
    """With what a run is made.

    Returns:
        Version and git commit of isentrope, versions of Python and the packages that matter.
    """
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "isentrope": isentrope.__version__,
        "git": git_commit(Path(isentrope.__file__).parent),
        "python": platform.python_version(),
        "packages": found,
    }


def git_commit(folder: Path) -> str | None:
    """The commit of the sources in use, "-dirty" added where they were changed since.

    Args:
        folder: A folder of sources.

    Returns:
        The commit, or None where the folder is not under git.
    """

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


def differences(made_with: Mapping[str, Any]) -> list[str]:
    """What is another version here than in a run that is repeated.

    Args:
        made_with: The `provenance` of its config.yaml.

    Returns:
        For example ["torch 2.12.0 then, 2.13.0 now"].
    """
    then = {k: v for k, v in made_with.items() if k in ("isentrope", "python")}
    then |= made_with.get("packages", {})
    here = versions()
    now = {"isentrope": here["isentrope"], "python": here["python"]} | here["packages"]
    return [
        f"{name} {old} then, {now.get(name, 'absent')} now"
        for name, old in then.items()
        if now.get(name) != old
    ]


def write_json(path: Path, content: Any) -> Path:
    """Write JSON, whole or not at all; NaN and infinity become null.

    Args:
        path: Target file.
        content: Dictionaries, lists, numbers and texts.

    Returns:
        The path.
    """
    text = json.dumps(finite(content), indent=2, ensure_ascii=False, allow_nan=False)
    return write_bytes(path, f"{text}\n".encode())


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file under a temporary name, then rename it.

    Args:
        path: Target file; its folder is made if need be.
        content: What to write.

    Returns:
        The path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def parquet(table: Any, compression: Literal["gzip"] | None = None) -> bytes:
    """A pandas table as the bytes of a parquet file.

    Args:
        table: The table.
        compression: "gzip", or None for the usual one.

    Returns:
        For `write_bytes`.
    """
    buffer = io.BytesIO()
    table.to_parquet(buffer, compression=compression or "snappy")
    return buffer.getvalue()


def finite(content: Any) -> Any:
    """The same content with None for every number that JSON cannot hold.

    Args:
        content: Dictionaries, lists, tuples, numbers and texts.

    Returns:
        A copy.
    """
    if isinstance(content, Mapping):
        return {str(key): finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [finite(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


def require_new(folder: Path) -> None:
    """Refuse to write over results.

    Args:
        folder: A measurement folder to be made.

    Raises:
        FileExistsError: If it is there already.
    """
    if folder.exists():
        raise FileExistsError(
            f"{folder} holds results already: choose another --out, or remove it."
        )


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Build a folder under a temporary name; it takes its own when the block is done.

    If the block fails nothing is left: neither the folder nor the parents made for it.

    Args:
        target: The folder to be.

    Yields:
        The temporary folder to write into.
    """
    require_new(target)
    made = [p for p in target.parents if not p.exists()]
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.replace(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        remove_empty(made)
        raise


def remove_empty(folders: list[Path]) -> None:
    """Remove those of the folders that are empty, innermost first.

    Args:
        folders: Folders, each before its parents.
    """
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
