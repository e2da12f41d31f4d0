"""The folder of a run: its name, and its config.yaml: what was asked, and with what it was made.

runs/run_YYYY-MM-DD_HH-MM-SS/
  config.yaml                      resolved; running it again reproduces the run
  measurements/<verb>_step_N/      results.json, tables, figure
  logs/                            what `detailed_logging` asks for
  .lock                            who writes (`run.lock`)
"""

import platform
import subprocess
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from isentrope._version import __version__
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import dump_config
from isentrope.config.measure import MeasureConfig
from isentrope.config.paths import relative_to_run
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.system.log import log
from isentrope.system.processes import gather

_Config = TypeVar("_Config", MeasureConfig, EvaluateConfig, TrainConfig, SftConfig)

PACKAGES = ("torch", "transformers", "trl", "peft", "safetensors", "numpy", "scipy", "arviz-stats")
"""Packages whose versions can move a number."""


def run_directory(directory: str | None) -> Path:
    """The folder that `output.directory` names, or one named by the time; it is not made yet."""
    by_time = Path("runs") / f"run_{datetime.now():%Y-%m-%d_%H-%M-%S}"
    return gather(Path(directory) if directory else by_time)[0]


def folder_name(text: str) -> str:
    """A name of a folder from a text that may hold a path: separators become underscores."""
    return text.replace("/", "_").replace("\\", "_").lstrip(".") or "data"


def resolved_content(
    config: _Config,
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
    made_with = dict(provenance) if provenance else {**versions(), **with_seeds}
    output = config.output.model_copy(update={"directory": None})
    ran = config.model_copy(update={"provenance": made_with, "output": output})
    ran = relative_to_run(ran, run, folder or run)
    return dump_config(ran, omit=omit).encode()


def prepare_log(config: _Config, words: str = "This configuration is of a run") -> None:
    """Log at the level of a configuration, and say with which other versions it was run."""
    log.setLevel(config.output.log_level)
    if config.provenance is not None:
        for difference in content_differences(config.provenance):
            log.warning("%s with %s.", words, difference)


@cache  # those of what this process has loaded; git and the package index are slow to ask
def versions() -> Mapping[str, Any]:
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


def git_commit(folder: Path) -> str | None:
    """The commit of sources, with "-dirty" where they were changed; None where there is no git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        process = subprocess.run(command, capture_output=True, text=True, check=True)
        return process.stdout.strip()

    try:
        if not git("ls-files", "--", "__init__.py"):
            return None
        dirty = "-dirty" if git("status", "--porcelain", "--", ".") else ""
        return git("rev-parse", "HEAD") + dirty
    except (OSError, subprocess.CalledProcessError):
        return None


def content_differences(made_with: Mapping[str, Any]) -> list[str]:
    """What is another version here than in `provenance`: ["torch 2.12.0 then, 2.13.0 now"]."""
    before, current = (
        {k: x[k] for k in ("isentrope", "python") if k in x} | x.get("packages", {})
        for x in (made_with, versions())
    )
    return [
        f"{name} {old} then, {current.get(name, 'absent')} now"
        for name, old in before.items()
        if current.get(name) != old
    ]
