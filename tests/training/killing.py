"""A training run in a process of its own, killed at a chosen moment. Imported by the child too."""

import os
import signal
import threading

from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.training.run_files import RunFiles
from isentrope.training.trainer import EntropyGRPOTrainer
from isentrope.training.update_batches import UpdateBatches
from isentrope.verbs.train import resume, train
from tests.training import runs

PHASES = {  # what is going on, and about how many seconds it takes
    "generation": (UpdateBatches, "draw", 0.05),
    "backward": (EntropyGRPOTrainer, "training_step", 0.02),
    "checkpoint": (EntropyGRPOTrainer, "_save_checkpoint", 0.1),
    "logging": (EntropyGRPOTrainer, "log", 0.02),
    "metrics": (RunFiles, "log", 0.005),
    "rewinding": (RunFiles, "rewind", 0.008),
}


def go_on(folder, sections, phase=None, entry=0, seconds=0.0):
    """Start or resume the run in `folder`; die so long after the n-th entry into a phase."""
    if phase is not None:
        owner, name, _ = PHASES[phase]
        plain, entries = getattr(owner, name), [0]

        def deadly(*args, **kwargs):
            entries[0] += 1
            if entries[0] == entry:
                threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
            return plain(*args, **kwargs)

        setattr(owner, name, deadly)
    if (folder / "run" / "config.yaml").exists():
        resume(folder / "run")
    else:
        train(load_config(runs.settings(folder, **sections), root=TrainConfig))
