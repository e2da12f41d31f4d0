"""Which settings a configuration sets itself, and which act on a step."""

from __future__ import annotations

from typing import Any

from isentrope.config.given_batch import GivenBatch
from isentrope.config.measure import MeasureConfig
from isentrope.trainers.fields import KEYS
from isentrope.trainers.settings import TrainingSettings
from isentrope.trainers.step import Use

_NULL_IS_UNSET = ("estimator.advantages", "estimator.max_response_length", "estimator.micro_batch")
"""Keys whose null leaves the value to others."""


def given_keys(config: MeasureConfig) -> set[str]:
    """Keys that the configuration itself sets."""
    keys = set()
    for key in KEYS:
        section, name = key.split(".")
        is_set = (
            section in config.model_fields_set and name in getattr(config, section).model_fields_set
        )
        if is_set and not (key in _NULL_IS_UNSET and value_of(config, key) is None):
            keys.add(key)
    return keys


def value_of(config: MeasureConfig, key: str) -> Any:
    """A key of a configuration; the clip as a pair."""
    section, name = key.split(".")
    return config.estimator.clip_pair if name == "clip" else getattr(getattr(config, section), name)


def acting_keys(
    config: MeasureConfig, training: TrainingSettings, use: Use, batch: GivenBatch
) -> set[str]:
    """Keys that act on the step in question, or on the batches that it is measured on."""
    objective, trained = use.objective, training.keys.get("estimator.objective")
    same = trained in (None, objective)
    weighted = objective not in ("recorded", "sft")
    sampled = batch.drawn or config.batch_config.E_file is None
    if same:
        of_objective = objective != "recorded" or trained is not None
    else:
        of_objective = "estimator.objective" in given_keys(config) and objective != "recorded"
    acts = {
        "sampling.temperature": True,
        "sampling.max_new_tokens": sampled,
        "estimator.max_grad_norm": True,
        "estimator.objective": of_objective,
        "batch_config.G": weighted and batch.drawn,
        "estimator.advantages": weighted and same and not use.own_advantages,
        "estimator.max_response_length": same and objective == "dr_grpo",
        "estimator.clip": weighted and same and (use.off_policy or objective == "cispo"),
        "estimator.micro_batch": (same and objective == "bnpo") or use.rounding is not None,
    }
    return {key for key, does in acts.items() if does}


def assumable_keys(use: Use, batch: GivenBatch, known: set[str]) -> set[str]:
    """Keys whose default would act on the step; G and the length of E's responses do not."""
    constant = use.objective == "dr_grpo" and "estimator.max_response_length" not in known
    cut = "sampling.max_new_tokens" in known or batch.max_new_tokens
    keys = {"sampling.temperature", "estimator.objective", "estimator.advantages"}
    keys |= {"estimator.max_grad_norm", "estimator.clip"}
    if use.objective == "bnpo":
        keys.add("estimator.micro_batch")
    if (batch.drawn or constant) and not cut:
        keys.add("sampling.max_new_tokens")
    return keys
