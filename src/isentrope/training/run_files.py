"""The files of a training run. A run killed at any moment resumes bit-for-bit identically.

logs/metrics.jsonl        one line per step, a function of settings and seed only (no times)
logs/timing.jsonl         seconds and tokens per second of each step
logs/rollouts/            step_N.parquet: ids, texts, rewards, advantages, per-token numbers
training_state/step_N/    checkpoints, complete or absent

A resumed run removes the lines after its checkpoint and writes them again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from isentrope.checkpoint_names import step_name, written_step
from isentrope.files import append_line, complete_lines, finite, remove_folder, write_bytes


class RunFiles:
    """Paths of the files of a training run.

    Attributes:
        folder: The run folder.
        checkpoints: Folder of its checkpoints.
        metrics: The metrics file.
        timing: The timing file.
        rollouts: Folder of rollout tables.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.checkpoints = self.folder / "training_state"
        self.metrics = self.folder / "logs" / "metrics.jsonl"
        self.timing = self.folder / "logs" / "timing.jsonl"
        self.rollouts = self.folder / "logs" / "rollouts"

    def checkpoint(self, step: int) -> Path:
        """The folder of a checkpoint."""
        return self.checkpoints / step_name(step)

    def steps(self) -> list[int]:
        """Steps with complete checkpoints, ascending."""
        steps = [written_step(p.name) for p in self.checkpoints.glob("step_*")]
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
        for path, line in ((self.metrics, metrics), (self.timing, timing)):
            if line is None:
                continue
            append_line(path, json.dumps(finite(line)))

    def rewind(self, step: int) -> None:
        """Remove log lines and tables after a step, and incomplete checkpoints."""
        for path in (self.metrics, self.timing):
            if path.exists():
                lines = [x for x in complete_lines(path) if json.loads(x)["step"] <= step]
                write_bytes(path, "".join(lines).encode())
        for table in self.rollouts.glob("step_*.parquet*"):
            table_step = written_step(table.name.split(".")[0])
            if table_step is not None and table_step > step:
                table.unlink()
        for leftover in self.checkpoints.glob(".*"):
            shutil.rmtree(leftover)
