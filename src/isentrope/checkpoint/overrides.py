"""Settings of one step that are given in Python, as the configuration has them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isentrope.config.io import load_config
from isentrope.config.measure import MeasureConfig
from isentrope.policy.language_model import Policy

STEP_SETTINGS = (
    "objective",
    "advantages",
    "max_response_length",
    "max_grad_norm",
    "clip",
    "micro_batch",
    "off_policy",
    "rounded_step",
    "master_weights",
    "ignore_training_settings",
)
"""Settings of a step that can be given; any other is training's."""


def configure_step(folder: Path, policy: Policy, overrides: Mapping[str, Any]) -> MeasureConfig:
    """The configuration of a step, at the temperature and the precision of the policy.

    Args:
        folder: The checkpoint.
        policy: The policy at θ.
        overrides: Settings by name.

    Returns:
        The configuration.

    Raises:
        ValueError: If a setting is not one of `STEP_SETTINGS`, or a value is none that it can have.
    """
    for name in overrides:
        if name not in STEP_SETTINGS:
            raise ValueError(
                f"{name!r} is not a setting of a step: give one of {', '.join(STEP_SETTINGS)}."
            )
    estimator = dict(overrides)
    master_weights = estimator.pop("master_weights", False)
    autocast = policy.precision.autocast
    rounding: Any = policy.precision.rounding
    if autocast:
        rounding = {"use_amp": True, "amp_dtype": autocast}
    return load_config(
        {
            "checkpoint": {"checkpoint_path": str(folder), "master_weights": master_weights},
            "estimator": estimator,
            "sampling": {"temperature": policy.temperature},
            "precision": {"update_vector": rounding},
        }
    )
