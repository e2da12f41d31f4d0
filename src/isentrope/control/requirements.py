"""Options of an entropy budget, and what controls require of a trainer."""

from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field

from isentrope.control.base import Count, Positive, options
from isentrope.control.gradients import GROUPS
from isentrope.estimators.functional import Functional
from isentrope.models.sharding import is_spread
from isentrope.probe.requirements import require_known_optimizer, require_whole_model


@options
class BudgetOptions:
    """Options of an entropy budget.

    Attributes:
        strength: Share of the predicted change of entropy that is cancelled, s.
        largest: Bound on ‖λu‖ as a multiple of ‖v‖, in the norm √<x, P⁻¹x>.
        range: Bound on |ηλc|, the change of entropy by the correction, beyond the step's own change
            ηv, as a share of the entropy.
        functional: "per_sequence", nats per response, or "per_token": a ratio, which shorter
            responses hold too.
        where: The class of positions whose entropy counts: "first token", "high entropy", "solved
            prompt", "unsolved prompt", or a regular expression between slashes that the response
            so far ends in; None for all.
        size: Responses of a step that serve for gradients; the level is that of all.
        every: Steps from one reading of gradients to the next; between them the effects of the
            step and of u are those last read, and the level is new.
        average: Readings over which the entropy gradient of u is averaged; 1 for the last.
    """

    targetable: ClassVar[bool] = True
    multiples: ClassVar[tuple[float, ...]] = (0.25, 0.5, 1.0)

    strength: Positive = 1.0
    largest: Positive = 1.0
    range: Positive = 0.2
    functional: Functional = "per_sequence"
    where: Annotated[str, Field(min_length=1)] | None = None
    size: Annotated[int, Field(ge=4 * GROUPS)] = 64
    every: Count = 2
    average: Count = 8


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
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ValueError(
                f"Parameter {name!r} is {kind}, which rounds the correction of an entropy "
                "budget away: train float32 parameters (a LoRA adapter has them), or choose a "
                "control of token weights."
            )
