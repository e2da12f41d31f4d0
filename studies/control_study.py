"""What is each control of entropy worth? Paired by seed, at equal tokens, as a curve of strengths.

    python -m studies.control_study --hours 8
    python -m studies.control_study --table

A cell is (task, control, strength, seed). Every cell of a task starts from one fine-tuned model; a
seed fixes prompts and uniforms, so cells of one seed are pairs. Vanilla runs for the steps of the
task, and the tokens that it generates are the budget of all other cells of its seed; what a control
samples for itself is charged to it. `relay` goes on with phase 2, vanilla and with equally many
steps for all, from where each control left the policy.

    vanilla        also evaluated after 1/4, 1/2 and 3/4 of its steps, and at other temperatures
    lower_rate     vanilla at a share of the learning rate
    the others     `control.name` with a strength; of budget the strength is the share of the
                   first entropy that a linear target keeps at the end (1: it holds)

The order is seed by seed, then strength, then control, then task, so that results are balanced
whenever the run is stopped. A cell is a file in --out and is not repeated. --table writes
docs/results/control_study.md and control_study.png from the files that are there, and all of them
into control_study.json, from which another machine goes on; its cells start from a model that it
fine-tunes itself.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from studies.control_cells import STRENGTHS, VANILLA, Cell, Content, Sizes, cells, perform
from studies.control_runs import SETTINGS

OUT = Path("build/control_study")
RESULTS = Path("docs/results")
KEPT = "control_study.json"

Perform = Callable[[Cell, Path, float | None, Sizes], Content]


def study(
    todo: Sequence[Cell],
    out: Path,
    hours: float,
    sizes: Sizes,
    make: Perform = perform,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Make the cells that have no file yet, until the time is over.

    Args:
        todo: Cells in order.
        out: Folder of their files.
        hours: No cell is begun after this time.
        sizes: How much is evaluated.
        make: Makes the content of one cell.
        clock: Seconds.

    Returns:
        Cells made.
    """
    out.mkdir(parents=True, exist_ok=True)
    begun, made = clock(), 0
    for cell in todo:
        file = out / f"{cell.name}.json"
        if file.exists():
            continue
        if clock() - begun > 3600 * hours:
            break
        for left in (f"run_{cell.name}", f"run_{cell.name}_2"):
            shutil.rmtree(out / left, ignore_errors=True)  # of a cell that was stopped
        content = make(cell, out, _budget(cell, out), sizes)
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(content))
        partial.replace(file)
        for done in (f"run_{cell.name}", f"run_{cell.name}_2"):
            shutil.rmtree(out / done, ignore_errors=True)
        made += 1
        print(cell.name, flush=True)
    return made


def _budget(cell: Cell, out: Path) -> float | None:
    if cell.control == VANILLA:
        return None
    file = out / f"{Cell(cell.task, VANILLA, 1.0, cell.seed).name}.json"
    if not file.exists():
        raise ValueError(f"{cell.name} has no budget: vanilla of its seed comes first.")
    return float(json.loads(file.read_text())["tokens"])


def read(out: Path) -> list[Mapping[str, Any]]:
    """The cells that are there."""
    return [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]


def starts(out: Path) -> dict[str, Mapping[str, float]]:
    """What was read of each task's fine-tuned model."""
    files = {task: out / f"sft_{task}" / "reading.json" for task in SETTINGS}
    return {t: json.loads(file.read_text()) for t, file in files.items() if file.exists()}


def keep(out: Path, file: Path) -> None:
    """Write all cells, and what all of them start from, into one file."""
    content = {"starts": starts(out), "cells": read(out)}
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def restore(file: Path, out: Path) -> None:
    """Make the files of cells that are kept and are not there."""
    if not file.exists():
        return
    kept = json.loads(file.read_text(encoding="utf-8"))
    out.mkdir(parents=True, exist_ok=True)
    for content in kept["cells"]:
        fields = ("task", "control", "strength", "seed")
        target = out / f"{Cell(**{key: content[key] for key in fields}).name}.json"
        if not target.exists():
            target.write_text(json.dumps(content))
    for task, reading in kept["starts"].items():
        target = out / f"sft_{task}" / "reading.json"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps(reading))


def main() -> None:
    """Run cells, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", action="append", choices=[*SETTINGS], help="(all)")
    parser.add_argument("--control", action="append", choices=[*STRENGTHS], help="(all)")
    parser.add_argument("--strengths", type=int, help="of each control, the first few (all)")
    parser.add_argument("--seeds", type=int, default=8, help="(%(default)s)")
    parser.add_argument("--first-seed", type=int, default=100, help="(%(default)s)")
    parser.add_argument("--hours", type=float, default=8.0, help="(%(default)s)")
    parser.add_argument("--prompts", type=int, default=32, help="evaluated (%(default)s)")
    parser.add_argument("--samples", type=int, default=256, help="per prompt (%(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, help="(%(default)s)")
    parser.add_argument("--table", action="store_true", help="write the page, run nothing")
    asked = parser.parse_args()
    restore(RESULTS / KEPT, asked.out)
    if asked.table:
        from studies.control_study_page import write_page

        print(write_page(read(asked.out), RESULTS, starts(asked.out)))
        keep(asked.out, RESULTS / KEPT)
        return
    torch.set_num_threads(1)
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    todo = cells(asked.task or [*SETTINGS], asked.control or [*STRENGTHS], seeds, asked.strengths)
    study(todo, asked.out, asked.hours, Sizes(asked.prompts, asked.samples))


if __name__ == "__main__":
    main()
