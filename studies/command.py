"""The command lines that several studies have."""

import argparse
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch


def demo_folder(doc: str | None) -> Path:
    """The folder of the demo's run that a command line gives; torch takes one thread.

    Args:
        doc: Of the study's module, whose first line describes it.

    Returns:
        The folder.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("runs/demo"), help="(%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    return options.run


def measure_steps(
    study: str,
    titles: Mapping[str, str],
    measure: Callable[[str, Path, Path | None], Any],
    page: Callable[[dict[str, Any]], str],
    arguments: Sequence[str] | None = None,
) -> None:
    """Measure the steps that a command line names, or write the tables of those that are measured.

    Args:
        study: Name of the study's module.
        titles: Title of each step by name, in the order of the tables.
        measure: From a step, the folder and the checkpoint of SmolLM2 to a result, which is kept.
        page: From the results by step to their tables.
        arguments: The command line; None for that of the process.
    """
    parser = argparse.ArgumentParser(prog=f"python -m studies.{study}")
    parser.add_argument("steps", nargs="*", help=", ".join(titles))
    parser.add_argument("--run", type=Path, default=Path("build") / study)
    parser.add_argument("--smollm2", type=Path, help="checkpoint of SmolLM2 after 20 steps")
    parser.add_argument("--page", action="store_true", help="write tables.md in the folder")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.steps) - set(titles)):
        parser.error(f"there is no step {unknown[0]!r}; choose from {', '.join(titles)}")
    options.run.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    files = {name: options.run / f"{name}.pickle" for name in titles}
    for name in options.steps:
        if not files[name].exists():
            files[name].write_bytes(pickle.dumps(measure(name, options.run, options.smollm2)))
    if options.page:
        results = {n: pickle.loads(f.read_bytes()) for n, f in files.items() if f.exists()}
        (options.run / "tables.md").write_text(page(results), encoding="utf-8")
        print(f"Wrote {options.run / 'tables.md'}")
