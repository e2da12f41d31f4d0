"""What controls require of a trainer."""

from typing import Any

import torch

from isentrope.models.sharding import is_spread
from isentrope.policy.derivative_guard import DerivativeError, require_derivatives
from isentrope.policy.language_model import Policy
from isentrope.policy.own_logits import random_sequences
from isentrope.probe.requirements import require_known_optimizer, require_whole_model


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


def require_controllable(trainer: Any, needs: str | None) -> None:
    """Refuse a trainer in which a control cannot act.

    Args:
        trainer: TRL's trainer.
        needs: What the control computes by passes of its own, or None.

    Raises:
        ValueError: If parameters are sharded, or influence is needed and the optimizer is unknown.
    """
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ValueError(
            "A control of entropy needs whole parameters and gradients on every process: train "
            "without FSDP and DeepSpeed, or without control."
        )
    if needs and is_spread(trainer.model):
        raise ValueError(
            f"This control computes {needs} by passes of its own on each process, which a base "
            "that is spread over the processes does not allow: set model.shard_base=false."
        )
    if needs == "influence":
        require_known_optimizer(trainer, "The control 'influence'")


def require_entropy_gradients(policy: Policy) -> None:
    """Refuse a model of which autograd's gradient of entropy is not that of the function.

    Args:
        policy: The policy that is trained.

    Raises:
        ValueError: Naming the model and the cause.
    """
    try:
        require_derivatives(policy, random_sequences(policy.scorer), "backward")
    except DerivativeError as error:
        raise ValueError(
            f"An entropy budget corrects steps by gradients of entropy. {error.cause} Train "
            "without the budget, or with an adapter that detaches nothing."
        ) from error


def require_correctable(trainer: Any) -> None:
    """Refuse a trainer whose steps cannot be corrected.

    Raises:
        ValueError: If parameters are sharded, or have less precision than float32, or steps may be
            skipped.
    """
    require_controllable(trainer, "entropy gradients")
    if getattr(trainer.args, "fp16", False):
        raise ValueError(
            "An entropy budget needs every optimizer step to be taken, and fp16 skips those "
            "whose scaled gradients overflow: set trainer.fp16=false."
        )
    require_whole_model(trainer.model)
    for name, parameter in trainer.model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            dtype = str(parameter.dtype).removeprefix("torch.")
            raise ValueError(
                f"Parameter {name!r} is {dtype}, which rounds the correction of an entropy "
                "budget away: train float32 parameters (a LoRA adapter has them), or choose a "
                "control of token weights."
            )
