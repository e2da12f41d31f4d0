"""The section `control` of a training run beside its other sections: what does not fit it."""

from typing import Any

from isentrope.checkpoint.infer.passed import BESIDE_TOKEN_WEIGHTS, CONTROLS
from isentrope.config.io import ConfigError
from isentrope.config.train import TrainConfig


def trainer_fields(config: TrainConfig) -> dict[str, Any]:
    """Fields of TRL's configuration that the control sets.

    Returns:
        Field and value.

    Raises:
        ConfigError: If the control does not fit the rest of the configuration.
    """
    control = config.control.build()
    if control is None:
        return {}
    from isentrope.control.base import TokenRule
    from isentrope.control.trainer_fields import TrainerFields

    name = config.control.name
    passed = config.trainer
    fields = control.fields() if isinstance(control, TrainerFields) else {}
    refused = dict.fromkeys(fields, "is set by the control's own options")
    refused |= {
        field: f"acts on entropy too (control.name={same_kind} is the control of that kind)"
        for field, same_kind in CONTROLS.items()
    }
    if isinstance(control, TokenRule):
        refused |= {
            field: f"{words}, and the control gives every token a weight of its own"
            for field, (usual, words) in BESIDE_TOKEN_WEIGHTS.items()
            if passed.get(field) not in (None, *usual)
        }
    if draws_held_out(config) and passed.get("num_iterations", 1) > 1:
        refused["num_iterations"] = (
            "has later steps start elsewhere than at the policy that drew the batch, where the "
            "control measures"
        )
    for field in refused.keys() & passed:
        raise ConfigError(
            f"control.name={name} does not go with trainer.{field}={passed[field]}, which "
            f"{refused[field]}: leave it out."
        )
    if isinstance(control, TokenRule):
        obstacle = control.refusal(config.training.group_size)
        if obstacle:
            raise ConfigError(
                f"control.name={name} does not go with training.group_size: {obstacle}."
            )
    return fields


def draws_held_out(config: TrainConfig) -> bool:
    """Whether the control draws evaluation batches of its own."""
    return getattr(config.control.build(), "needs", None) == "influence"
