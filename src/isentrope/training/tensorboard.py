"""The TensorBoard of a run that goes on: steps that are taken again stand there once.

TensorBoard leaves out of earlier event files every step from `purge_step` of a later one on.
"""

from pathlib import Path
from typing import Any

from transformers.integrations.integration_utils import TensorBoardCallback

from isentrope.system.processes import rank

TENSORBOARD = "tensorboard"
"""Folder of the events in that of a run."""


def continue_tensorboard(trainer: Any, run: Path, step: int) -> None:
    """Let a resumed run's events replace those of the steps that it takes again.

    Args:
        trainer: Whose callback it is, if it has one.
        run: The run folder; nothing is changed where it has no events yet.
        step: The step that the run resumes from.
    """
    events = run / TENSORBOARD
    if not events.is_dir() or trainer.pop_callback(TensorBoardCallback) is None:
        return
    writer = None
    if rank() == 0:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:  # transformers takes either
            from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
        writer = SummaryWriter(log_dir=str(events), purge_step=step + 1)
    trainer.add_callback(TensorBoardCallback(tb_writer=writer))
