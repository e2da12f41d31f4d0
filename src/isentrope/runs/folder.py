"""The folder of a run: what was asked, with what it was made, and results that are whole or absent.

runs/run_YYYY-MM-DD_HH-MM-SS/
  config.yaml                      resolved; running it again reproduces the run
  measurements/<verb>_step_N/      results.json, tables, figure
  logs/                            what `detailed_logging` asks for

Whether results can be written is looked at before any work is done.
"""

import logging
import os
import platform
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from isentrope._version import __version__
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import dump_config
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.config.values import relative_to_run
from isentrope.system.errors import FileError

C = TypeVar("C", MeasureConfig, EvaluateConfig, TrainConfig, SftConfig)

PACKAGES = ("torch", "transformers", "trl", "peft", "safetensors", "numpy", "scipy", "arviz-stats")
"""Packages whose versions can move a number."""


def run_directory(directory: str | None) -> Path:
    """The folder that `output.directory` names, or one named by the time; it is not made yet."""
    return (
        Path(directory) if directory else Path("runs") / f"run_{datetime.now():%Y-%m-%d_%H-%M-%S}"
    )


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
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
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
    then = {k: v for k, v in made_with.items() if k in ("isentrope", "python")}
    then |= made_with.get("packages", {})
    here = versions()
    now = {"isentrope": here["isentrope"], "python": here["python"]} | here["packages"]
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


def require_new(folder: Path) -> None:
    """Refuse to write over results.

    Raises:
        FileExistsError: If it is there already.
    """
    if folder.exists():
        raise FileExistsError(
            f"{folder} holds results already: choose another --out, or remove it."
        )


def require_writable(folder: str | Path, key: str) -> None:
    """Refuse a folder that cannot be written into, or made.

    Args:
        folder: The folder, perhaps not there yet.
        key: The setting that names it.

    Raises:
        FileError: Naming the folder and the setting.
    """
    there = Path(folder).expanduser().absolute()
    while not there.exists():
        there = there.parent
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        what = "Nothing can be written into it" if there.is_dir() else "It is not a directory"
        raise FileError(f"{there}: {what}. Choose another {key}, or change the permissions.")


def folder_name(text: str) -> str:
    """A name of a folder from a text that may hold a path: separators become underscores."""
    return text.replace("/", "_").replace("\\", "_").lstrip(".") or "data"
