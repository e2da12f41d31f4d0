"""Does more entropy find what vanilla does not? The study on the task `compose`.

    python -m studies.compose_study --calibrate      # the gates, on seeds of their own
    python -m studies.compose_study --jobs 2         # the study; run it again to continue
    python -m studies.compose_study --page           # docs/results/compose.md, from what is there

The design is fixed in studies/compose_design.md, written before the first run. A cell is an arm, a
base and a seed; the bases take turns, pair k has seed k, and all arms of a pair come before the
next pair, so an unfinished study is balanced. A cell is a file in --out/cells, written when it is
complete, and is not repeated; an arm that is added to `compose_arms.ARMS` joins. About 6 seconds
per cell on one core, and half a minute per base, which are kept in --out too.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from studies.compose_arms import ARMS
from studies.compose_base import Base, Dials, make_base, make_skilled
from studies.compose_outcomes import Outcome, outcome
from studies.compose_policy import Policy
from studies.compose_run import Settings, train
from studies.compose_task import read

OUT = Path("build/compose")
RESULTS = Path("docs/results")
BASES = (0, 1, 2, 4, 6, 7)
"""The first six seeds whose bases meet gate g1; 3 (pass@256 .68) and 5 (.797) do not."""
PAIRS = 48
CALIBRATION = 1000
"""Seeds from here on are of the calibration; those of the study are below."""
GATE_ARMS = ("vanilla", "demonstrations")


@dataclass(frozen=True)
class Cell:
    """One run of the study."""

    arm: str
    base: int
    seed: int

    @property
    def name(self) -> str:
        """Name of the cell's file."""
        return f"{self.arm}_{self.base}_{self.seed}"


@dataclass(frozen=True)
class Plan:
    """What all cells of a folder have in common."""

    dials: Dials = field(default_factory=Dials)
    settings: Settings = field(default_factory=Settings)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def cells(
    arms: Sequence[str], pairs: int, bases: Sequence[int] = BASES, first_seed: int = 0
) -> list[Cell]:
    """All cells in the order of the run.

    Args:
        arms: Their names.
        pairs: Number of (base, seed).
        bases: Their seeds; they take turns.
        first_seed: Seed of the first pair.

    Returns:
        Pair by pair, all arms of each.

    Raises:
        ValueError: If an arm is unknown.
    """
    if unknown := [arm for arm in arms if arm not in ARMS]:
        raise ValueError(f"Unknown arm {unknown[0]!r}; there are {', '.join(ARMS)}.")
    return [Cell(arm, bases[k % len(bases)], first_seed + k) for k in range(pairs) for arm in arms]


def base_of(seed: int, out: Path, dials: Dials) -> Base:
    """A base, made at its first use.

    Args:
        seed: Of the base.
        out: Folder of the study.
        dials: Of the task.

    Returns:
        The base.

    Raises:
        ValueError: If the folder has a base of other dials.
    """
    file = out / "bases" / f"{seed}.pt"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        base = make_base(dials, seed, make_skilled(dials, seed))
        content = {"weights": base.policy.state_dict(), "q": base.q, "dials": asdict(dials)}
        partial_file = file.with_suffix(f".{os.getpid()}")
        torch.save(content, partial_file)
        partial_file.replace(file)
    content = torch.load(file, weights_only=True)
    _require_same(file, content["dials"], asdict(dials))
    policy = Policy()
    policy.load_state_dict(content["weights"])
    return Base(policy, content["q"], read(policy))


def perform(cell: Cell, out: Path, plan: Plan) -> str:
    """Run a cell and write its file.

    Args:
        cell: The cell.
        out: Folder of the study.
        plan: What its cells have in common.

    Returns:
        The name of the cell.
    """
    torch.set_num_threads(1)
    base = base_of(cell.base, out, plan.dials)
    found = train(ARMS[cell.arm](), base, cell.seed, plan.settings)
    content = asdict(cell) | {"plan": plan.plain(), "q": base.q} | found
    file = out / "cells" / f"{cell.name}.json"
    partial_file = file.with_suffix(f".{os.getpid()}")
    partial_file.write_text(json.dumps(content))
    partial_file.replace(file)
    return cell.name


def study(todo: Sequence[Cell], out: Path, plan: Plan, jobs: int = 1) -> int:
    """Run the cells that have no file.

    Args:
        todo: Cells in order.
        out: Folder of the study.
        plan: What its cells have in common.
        jobs: Processes.

    Returns:
        Cells that were run.
    """
    (out / "cells").mkdir(parents=True, exist_ok=True)
    left = [cell for cell in todo if not (out / "cells" / f"{cell.name}.json").exists()]
    for seed in sorted({cell.base for cell in left}):
        base_of(seed, out, plan.dials)  # once, not in every process
    run = partial(perform, out=out, plan=plan)
    if jobs == 1:
        for cell in left:
            print(run(cell), flush=True)
        return len(left)
    with ProcessPoolExecutor(jobs) as pool:
        for name in pool.map(run, left):
            print(name, flush=True)
    return len(left)


def load(todo: Sequence[Cell], out: Path, plan: Plan) -> list[Outcome]:
    """What came of the cells that are there; files of other cells are not read.

    Args:
        todo: Cells of the study, or of the calibration, which share a folder.
        out: Folder of the study.
        plan: What its cells have in common.

    Returns:
        One outcome per file.

    Raises:
        ValueError: If a cell was run with another plan.
    """
    found = []
    for file in (out / "cells" / f"{cell.name}.json" for cell in todo):
        if not file.exists():
            continue
        content = json.loads(file.read_text())
        for part, value in plan.plain().items():
            _require_same(file, content["plan"][part], value)
        found.append(outcome(content))
    return found


def _require_same(file: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    for key in before.keys() | now.keys():
        if before.get(key) != now.get(key):
            raise ValueError(
                f"{file} was made with {key} = {before.get(key)}, and now it is {now.get(key)}: "
                "give another --out."
            )


def main() -> None:
    """Run cells, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arms", nargs="+", choices=[*ARMS], default=[*ARMS], help="(all)")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="(%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (%(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, help="(%(default)s)")
    parser.add_argument("--calibrate", action="store_true", help="the gates, on seeds of their own")
    parser.add_argument("--page", action="store_true", help="write the page, run nothing")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    from studies.compose_gates import gate_table
    from studies.compose_page import write_page

    plan = Plan()
    if asked.calibrate:
        todo = cells(GATE_ARMS, asked.pairs, first_seed=CALIBRATION)
        study(todo, asked.out, plan, asked.jobs)
        print(gate_table(load(todo, asked.out, plan)))
        return
    todo = cells(asked.arms, asked.pairs)
    if asked.page:
        write_page(load(todo, asked.out, plan), RESULTS)
        return
    study(todo, asked.out, plan, asked.jobs)


if __name__ == "__main__":
    main()
