"""The state of a control in the checkpoints of a trainer that does not know of it.

checkpoint-N/entropy_budget.json           state_dict()
checkpoint-N/entropy_budget.safetensors    tensors()

Both are written with the optimizer's state, and read with it where the trainer resumes.
"""

import json
import logging
from pathlib import Path
from typing import Any

from safetensors.torch import save

from isentrope.system.files import write_bytes
from isentrope.system.processes import rank
from isentrope.system.reading import read_json, read_tensors, reading

log = logging.getLogger("isentrope")

NAME = "entropy_budget"


def keep_state(trainer: Any, control: Any) -> None:
    """Save a control with each checkpoint that holds an optimizer, and resume it from there.

    Args:
        trainer: A transformers Trainer.
        control: Has state_dict, tensors, load_state_dict and load_tensors.
    """
    save_optimizer = trainer._save_optimizer_and_scheduler
    load_optimizer = trainer._load_optimizer_and_scheduler

    def save_too(folder: str) -> None:
        save_optimizer(folder)
        if rank() == 0:
            write_bytes(Path(folder) / f"{NAME}.json", json.dumps(control.state_dict()).encode())
            write_bytes(Path(folder) / f"{NAME}.safetensors", save(control.tensors()))

    def load_too(folder: str | None) -> None:
        load_optimizer(folder)
        if folder is None:
            return
        file = Path(folder) / f"{NAME}.json"
        if not file.is_file():
            if rank() == 0:
                words = "%s was saved without an entropy budget: this one begins there."
                log.warning(words, folder)
            return
        state = read_json(file, finite=False)
        tensors = read_tensors(file.with_suffix(".safetensors"))
        with reading(file):
            control.load_state_dict(state)
            control.load_tensors({n: x.to(trainer.args.device) for n, x in tensors.items()})

    trainer._save_optimizer_and_scheduler = save_too
    trainer._load_optimizer_and_scheduler = load_too
