"""Requirements of controls, and of sampling, on the trainer and its parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from isentrope.models.sharding import is_spread
from isentrope.probe.requirements import require_known_optimizer


def require_whole_parameters_to_sample(trainer: Any) -> None:
    """Refuse a trainer that would sample from parameters that FSDP shards.

    Raises:
        ValueError: If parameters are sharded and vLLM does not sample.
    """
    if trainer.is_fsdp_enabled and not trainer.use_vllm:
        raise ValueError(
            "Responses cannot be sampled here from parameters that FSDP shards: set "
            "trainer.use_vllm=true, or train without FSDP."
        )


def require_controllable(trainer: Any, needs: str | None, sharded: bool = False) -> None:
    """Refuse a trainer whose tokens cannot be weighted by a control.

    Args:
        trainer: TRL's trainer.
        needs: The column of a batch that the control needs, or None.
        sharded: Whether the frozen base is spread over the processes.

    Raises:
        ValueError: If parameters are sharded, or influence is needed and the optimizer is unknown.
    """
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ValueError(
            "A control scores batches by itself and needs whole parameters: train without "
            "FSDP and DeepSpeed, or without control."
        )
    if sharded and needs:
        raise ValueError(
            f"This control computes {needs} by passes of its own on each process, which a base "
            "that is spread over the processes does not allow: set model.shard_base=false."
        )
    if needs == "influence":
        require_known_optimizer(trainer, "The control 'influence'")


def require_correctable(trainer: Any) -> None:
    """Refuse a trainer whose steps cannot be corrected.

    Raises:
        ValueError: If parameters are sharded, or have less precision than float32, or steps may be
            skipped.
    """
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ValueError(
            "An isentropic step needs whole parameters and gradients on every process: train "
            "without FSDP and DeepSpeed, or choose a control of token weights."
        )
    if getattr(trainer.args, "fp16", False):
        raise ValueError(
            "An isentropic step needs every optimizer step to be taken, and fp16 skips those "
            "whose scaled gradients overflow: set trainer.fp16=false."
        )
    require_long_parameters(trainer.model)
    if is_spread(trainer.model):
        raise ValueError(
            "An isentropic step computes gradients by passes of its own on each process, which a "
            "base that is spread over the processes does not allow: set model.shard_base=false."
        )


def require_long_parameters(model: Any) -> None:
    """Refuse trainable parameters that are sharded or too coarse to hold a correction.

    Raises:
        ValueError: If there is such a parameter; the message names it and its type.
    """
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if isinstance(parameter, DTensor):
            raise ValueError(
                f"Parameter {name!r} is sharded, and an isentropic step needs whole parameters on "
                "every process: choose a control of token weights."
            )
        if parameter.dtype not in (torch.float32, torch.float64):
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ValueError(
                f"Parameter {name!r} is {kind}, which rounds the correction of an isentropic step "
                "away: train float32 parameters (a LoRA adapter has them), or choose a control of "
                "token weights."
            )
