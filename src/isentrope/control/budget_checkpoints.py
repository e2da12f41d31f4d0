"""The state of an entropy budget in the checkpoints of its trainer.

checkpoint-N/entropy_budget.json           state_dict() of the budget
checkpoint-N/entropy_budget.safetensors    tensors()

Both are written with the optimizer's state, and read with it where the trainer resumes.
"""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save

from isentrope.system.file_contents import read_tensors
from isentrope.system.files import write_bytes
from isentrope.system.log import log
from isentrope.system.processes import rank
from isentrope.system.reading import read_json, reading

STATE_FILE = "entropy_budget.json"


def keep_state(trainer: Any, control: Any) -> None:
    """Save a control with each checkpoint that holds an optimizer, and resume it from there.

    Args:
        trainer: A transformers Trainer, whose checkpoints do not know of the control.
        control: Has state_dict, tensors, load_state_dict and load_tensors.
    """
    save_optimizer = trainer._save_optimizer_and_scheduler
    load_optimizer = trainer._load_optimizer_and_scheduler

    def save_with_control(folder: str) -> None:
        save_optimizer(folder)
        if rank() == 0:
            file = Path(folder) / STATE_FILE
            write_bytes(file, json.dumps(control.state_dict()).encode())
            write_bytes(file.with_suffix(".safetensors"), save(control.tensors()))

    def load_with_control(folder: str | None) -> None:
        load_optimizer(folder)
        if folder is None:
            return
        file = Path(folder) / STATE_FILE
        if file.is_file():
            tensors = read_tensors(file.with_suffix(".safetensors"))
            with reading(file):
                control.load_state_dict(read_json(file, finite=False))
                control.load_tensors({n: x.to(trainer.args.device) for n, x in tensors.items()})
        elif rank() == 0:
            message = "%s was saved without an entropy budget: this one begins there."
            log.warning(message, folder)

    trainer._save_optimizer_and_scheduler = save_with_control
    trainer._load_optimizer_and_scheduler = load_with_control
