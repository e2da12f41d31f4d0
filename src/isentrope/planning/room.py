"""The refusal of a training that is sure not to fit."""

from typing import Any

import torch

from isentrope.planning.memory import held_in_training
from isentrope.planning.plan import DoesNotFitError
from isentrope.system.formatting import gigabytes, sizes_in_words
from isentrope.system.memory import free_memory


def require_room_to_train(model: Any, device: str | torch.device) -> None:
    """Refuse a training whose weights, gradients and moments are more than the free memory.

    Args:
        model: With its trainable set, on the CPU.
        device: Where it is to be trained.

    Raises:
        DoesNotFitError: Before any work.
    """
    terms = held_in_training(model)
    if torch.device(device).type == "cpu":
        del terms["weights"]  # they are there
    needed = sum(terms.values())
    free = free_memory(device)
    if needed > free:
        raise DoesNotFitError(
            f"The training does not fit: it holds {gigabytes(needed)} at least "
            f"({sizes_in_words(terms)}), and {gigabytes(free)} are free on {device}. "
            "isentrope plan says what else it takes."
        )
