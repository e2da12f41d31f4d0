"""The files of a training run. A run killed at any moment resumes bit-for-bit identically.

logs/metrics.jsonl        one line per step, a function of settings and seed only (no times)
logs/timing.jsonl         seconds and tokens per second of each step
logs/rollouts/            step_N.parquet: ids, texts, rewards, advantages, per-token numbers
logs/rollouts.jsonl       digest of each of these tables (`rollout_digests`)
training_state/step_N/    checkpoints, complete or absent

A resumed run removes the lines after its checkpoint and writes them again.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from isentrope.checkpoint.files import step_name, step_of_folder, written_step
from isentrope.system.files import append_line, remove_any, remove_folder, write_bytes
from isentrope.system.formatting import finite
from isentrope.system.log import log
from isentrope.system.reading import parse_json, reading

WRITING = ".writing"
"""Name that a checkpoint has while it is written."""
_INCOMPLETE = re.compile(r"\.(writing|removed_\d+|([^.]+)\..*partial)")
"""Names of folders that are not complete, which a killed process leaves; `files` gives the last."""
_TABLE = re.compile(r"parquet(\..*partial)?")


class RunFiles:
    """Paths of the files of a training run.

    Attributes:
        folder: The run folder.
        checkpoints: Folder of its checkpoints.
        metrics: The metrics file.
        timing: The timing file.
        rollouts: Folder of rollout tables.
        digests: Digests of these tables.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.checkpoints = self.folder / "training_state"
        self.metrics = self.folder / "logs" / "metrics.jsonl"
        self.timing = self.folder / "logs" / "timing.jsonl"
        self.rollouts = self.folder / "logs" / "rollouts"
        self.digests = self.folder / "logs" / "rollouts.jsonl"

    def checkpoint(self, step: int) -> Path:
        """The folder of a checkpoint."""
        return self.checkpoints / step_name(step)

    def steps(self) -> list[int]:
        """Steps with complete checkpoints, ascending."""
        steps = [written_step(p.name) for p in self.checkpoints.glob("step_*") if p.is_dir()]
        return sorted(step for step in steps if step is not None)

    def latest(self) -> Path | None:
        """The latest complete checkpoint, or None."""
        steps = self.steps()
        return self.checkpoint(steps[-1]) if steps else None

    def prune(self, keep_last: int | None, keep_every: int | None) -> None:
        """Remove checkpoints that are not to be kept; the latest is always kept.

        Args:
            keep_last: Number of latest checkpoints to keep; None for all.
            keep_every: Steps that are multiples of this are kept in addition to `keep_last`.
        """
        if keep_last is None:
            return
        for step in self.steps()[:-keep_last]:
            if keep_every is None or step % keep_every:
                remove_folder(self.checkpoint(step), f".removed_{step}")

    def log(self, metrics: Mapping[str, float], timing: Mapping[str, float] | None = None) -> None:
        """Append the lines of a step.

        Args:
            metrics: Metrics with `step`; none may depend on the clock. NaN is written as null.
            timing: Times with `step`; None if times are not written.
        """
        append_line(self.metrics, json.dumps(finite(metrics)))
        if timing is not None:
            append_line(self.timing, json.dumps(finite(timing)))

    def require_known_names(self) -> None:
        """Refuse checkpoints whose names are not those that are written here.

        Raises:
            ValueError: Naming the folder, such as step_006, and the name that it should have.
        """
        for path in self.checkpoints.glob("*"):
            step = step_of_folder(path.name)
            if step is not None and written_step(path.name) is None:
                raise ValueError(
                    f"{path} is not a name that a run gives to a checkpoint: rename it to "
                    f"{step_name(step)}, or move it to another folder."
                )

    def require_whole_log(self, step: int) -> None:
        """Refuse to resume a run whose metrics lack a line of a step before its checkpoint.

        Args:
            step: The checkpoint's step.

        Raises:
            ValueError: Naming the first step that has no line, or one out of order, and damaged
                lines by their numbers.
        """
        lines, damaged = readable_lines(self.metrics)
        steps = [saved for saved, _ in lines if saved <= step]
        if (fault := misplaced_line(steps) or lost_line(steps, step)) is None:
            return
        faulty_step, words = fault
        damage = f" (damaged: line {', '.join(map(str, damaged))})" if damaged else ""
        raise ValueError(
            f"{self.metrics} has {words}{damage}, and the newest checkpoint is of step {step}: "
            f"restore the file, or remove the checkpoints from step {faulty_step} on to take these "
            "steps again."
        )

    def rewind(self, step: int) -> None:
        """Remove log lines and tables after a step, damaged lines, and incomplete checkpoints."""
        for path in (self.metrics, self.timing, self.digests):
            if path.exists():
                lines, damaged = readable_lines(path)
                for number in damaged:
                    log.warning("Line %d of %s is damaged, and was removed.", number, path)
                write_bytes(path, "".join(line for saved, line in lines if saved <= step).encode())
        for table in self.rollouts.glob("step_*.parquet*"):
            name, ending = table.name.split(".", 1)
            table_step = written_step(name)
            if table_step is not None and table_step > step and _TABLE.fullmatch(ending):
                table.unlink()
        for leftover in self.checkpoints.glob(".*"):
            match = _INCOMPLETE.fullmatch(leftover.name)
            incomplete = match is not None and (
                match[2] is None or written_step(match[2]) is not None
            )
            if incomplete and not leftover.is_symlink():
                remove_any(leftover)


Fault = tuple[int, str]
"""The step of a line that is wrong in a log, and what the log has there."""


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


def misplaced_line(steps: Sequence[int]) -> Fault | None:
    """The first line of a log that repeats a step, or stands after that of a later one.

    Args:
        steps: Of its lines, in their order.

    Returns:
        The fault; None if steps only grow.
    """
    for place, (before, step) in enumerate(pairwise(steps), 1):
        if step > before:
            continue
        if step in steps[:place]:
            return step, f"two lines of step {step}"
        return step, f"the line of step {step} after that of step {before}"
    return None


def lost_line(steps: Iterable[int], last: int) -> Fault | None:
    """The first step of 1, ..., `last` that has no line."""
    lost = min(set(range(1, last + 1)) - set(steps), default=None)
    return None if lost is None else (lost, f"no line of step {lost}")


def readable_lines(path: Path) -> tuple[list[tuple[int, str]], list[int]]:
    """Step and text of every whole line of a log, and the numbers of the damaged ones.

    A last line without its end is neither: a process was killed while it wrote it. Nor is a blank
    line.

    Returns:
        The lines, and the numbers.
    """
    lines: list[tuple[int, str]] = []
    damaged: list[int] = []
    content = b""
    if path.is_file():
        with reading(path):
            content = path.read_bytes()
    for number, raw in enumerate(content.splitlines(keepends=True), 1):
        if not raw.strip() or not raw.endswith(b"\n"):
            continue
        try:
            text = raw.decode("utf-8")
            step = parse_json(text)["step"]
        except (ValueError, KeyError, TypeError, RecursionError):
            damaged.append(number)
            continue
        if isinstance(step, int) and not isinstance(step, bool):
            lines.append((step, text))
        else:
            damaged.append(number)
    return lines, damaged


def read_log(path: str | Path) -> tuple[list[dict[str, Any]], int]:
    """The lines of a log that have a step and numbers alone, and how many others there are."""
    with reading(path) as file:
        lines = file.read_bytes().decode(errors="replace").split("\n")
    rows = list[dict[str, Any]]()
    written = [line for line in lines if line.strip()]
    for line in written:
        try:
            row = parse_json(line)
        except (ValueError, RecursionError):
            continue
        step = row.get("step") if isinstance(row, dict) else None
        if type(step) is int and 0 <= step < 2**53:
            plain = all(x is None or isinstance(x, (int, float)) for x in row.values())
            rows += [row] if plain else []
    return rows, len(written) - len(rows)
