"""Evaluation of a model in training that restores its modes, hooks and random states."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from peft import PeftModel

from isentrope.models.module_state import KeptAttributes, buffers_kept
from isentrope.models.quantised import plain_products
from isentrope.system.log import log
from isentrope.system.processes import world_size


def bare_model(model: Any) -> Any:
    """The model below the wrapper of distributed training."""
    return getattr(model, "module", model) if world_size() > 1 else model


def add_to_log(trainer: Any, latest: Callable[[], dict[str, float]]) -> None:
    """Add numbers of the step just taken to each line of a trainer's log that has a loss."""
    plain = trainer.log

    def log_with_latest(logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        numbers: dict[str, float] = {}
        try:
            if "loss" in logs:
                numbers = latest()
        except Exception:  # a line of a log ends no run
            log.warning("Numbers of this step are not logged; training continues.", exc_info=True)
        plain({**logs, **numbers}, *args, **kwargs)

    trainer.log = log_with_latest


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode, without the hooks of gradient checkpointing on the embeddings.

    Dropout does not act inside, and experts and 4-bit layers run by plain operations. Those hooks
    (transformers and peft each add theirs, more than once) call requires_grad_ inside the forward
    pass, which forward mode refuses. Afterwards every module's mode, attribute and buffer, every
    hook and every random state is restored, also where the block fails.

    Args:
        model: A causal LM, or a PEFT model around one.

    Yields:
        Nothing.
    """
    modes = {module: module.training for module in model.modules()}
    hooks = model.get_input_embeddings()._forward_hooks
    saved = dict(hooks)
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        for key, hook in saved.items():
            if "require_grad" in getattr(hook, "__name__", ""):
                del hooks[key]
        model.eval()
        base = model.get_base_model() if isinstance(model, PeftModel) else model
        with (
            KeptAttributes(model),
            buffers_kept(model),
            plain_products(base),
            torch.random.fork_rng(devices),
        ):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        for module, training in modes.items():
            module.training = training
        hooks.clear()
        hooks.update(saved)
