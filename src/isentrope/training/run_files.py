"""The files of a training run, such that a run killed at any moment goes on as if it had not been.

logs/metrics.jsonl        one line a step, a function of settings and seed alone (no times)
logs/timing.jsonl         seconds and tokens a second of each step
logs/rollouts/            step_N.parquet: ids, texts, rewards, advantages, per-token numbers
training_state/step_N/    checkpoints, whole or absent

A resumed run forgets the lines after its checkpoint and writes them again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from isentrope.checkpoint_names import step_name, written_step
from isentrope.files import append_line, complete_lines, finite, remove_folder, write_bytes


class RunFiles:
    """Where a training run writes.

    Attributes:
        folder: The run folder.
        checkpoints: Folder of its checkpoints.
        metrics: The metrics file.
        timing: The file of times.
        rollouts: Folder of rollout tables.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.checkpoints = self.folder / "training_state"
        self.metrics = self.folder / "logs" / "metrics.jsonl"
        self.timing = self.folder / "logs" / "timing.jsonl"
        self.rollouts = self.folder / "logs" / "rollouts"

    def checkpoint(self, step: int) -> Path:
        """The folder of a checkpoint.

        Args:
            step: Its step.

        Returns:
            The folder, there or not.
        """
        return self.checkpoints / step_name(step)

    def steps(self) -> list[int]:
        """Steps whose checkpoints are whole, ascending."""
        steps = [written_step(p.name) for p in self.checkpoints.glob("step_*")]
        return sorted(step for step in steps if step is not None)

    def latest(self) -> Path | None:
        """The newest whole checkpoint, or None."""
        steps = self.steps()
        return self.checkpoint(steps[-1]) if steps else None

    def prune(self, keep_last: int | None, keep_every: int | None) -> None:
        """Remove checkpoints that need not be kept; the newest always stays.

        Args:
            keep_last: Newest ones to keep; None for all.
            keep_every: Steps whose multiples are kept whatever `keep_last` says.
        """
        if keep_last is None:
            return
        for step in self.steps()[:-keep_last]:
            if keep_every is None or step % keep_every:
                remove_folder(self.checkpoint(step), f".removed_{step}")

    def log(self, metrics: Mapping[str, float], timing: Mapping[str, float] | None = None) -> None:
        """Add the lines of a step.

        Args:
            metrics: With `step`; nothing in it may depend on the clock. NaN becomes null.
            timing: With `step`; None where times are not kept.
        """
        for path, line in ((self.metrics, metrics), (self.timing, timing)):
            if line is None:
                continue
            append_line(path, json.dumps(finite(line)))

    def rewind(self, step: int) -> None:
        """Forget what was logged after a step, and whatever was being written.

        Args:
            step: The step to go on from.
        """
        for path in (self.metrics, self.timing):
            if path.exists():
                kept = [x for x in complete_lines(path) if json.loads(x)["step"] <= step]
                write_bytes(path, "".join(kept).encode())
        for table in self.rollouts.glob("step_*.parquet*"):
            of = written_step(table.name.split(".")[0])
            if of is not None and of > step:
                table.unlink()
        for leftover in self.checkpoints.glob(".*"):
            shutil.rmtree(leftover)
