"""Whether a training can be begun, by its settings, sources and folders alone."""

from difflib import get_close_matches
from importlib.util import find_spec

from isentrope.checkpoint.infer.passed import managed_fields
from isentrope.config.io import ConfigError
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.config.trl import (
    TRL_CLASSES,
    demonstrations_per_pass,
    draws_by_vllm,
    passed_to_grpo,
    require_spreadable,
    verb_of,
)
from isentrope.config.trl_fields import require_fields, trackers_in_source, types_in_source
from isentrope.models.base_model import require_positions
from isentrope.models.trainable import require_trainable_model
from isentrope.sampling.tasks.requirements import require_demonstrations


def require_trainable(config: TrainConfig | SftConfig) -> None:
    """Refuse settings of which no trainer can be made, as far as they and sources tell.

    Args:
        config: Of the run.

    Raises:
        ConfigError: If a field of TRL is unknown or does not fit, or settings do not fit each
            other.
        FileNotFoundError: If there is no such model.
        ValueError: If the model cannot be trained so.
    """
    require_fields_of_trainer(config)
    require_spreadable(config.model, config.trainer)
    if draws_by_vllm(config.trainer):
        require_vllm_to_train()
    for tracker in config.output.report_to:
        if tracker not in ("tensorboard", "all", "none"):
            _require_tracker(tracker)
    if isinstance(config, TrainConfig):
        passed_to_grpo(config, dict(config.trainer))
    else:
        demonstrations_per_pass(config)
    model = config.model
    source, base = require_trainable_model(
        model.path, model.lora_rank, model.lora_alpha, allow_hub=model.allow_hub
    )
    if isinstance(config, TrainConfig):
        require_positions(base or source, config.sampling.max_new_tokens)
    else:
        data = config.data
        require_demonstrations(data.dataset_name, data.dataset_path)


def require_fields_of_trainer(config: TrainConfig | SftConfig) -> None:
    """Refuse fields of the section `trainer` that TRL does not have, as far as its sources tell.

    Args:
        config: Of the run.

    Raises:
        ConfigError: Naming the field.
    """
    verb = verb_of(config)
    types = types_in_source(TRL_CLASSES[verb]) if config.trainer else None
    if types is not None:
        name = TRL_CLASSES[verb].partition(":")[2]
        require_fields(config.trainer, name, types, managed_fields(verb))


def _require_tracker(name: str) -> None:
    """Refuse a tracker that transformers does not know."""
    trackers = trackers_in_source()
    if trackers and name not in trackers:
        nearest = get_close_matches(name, trackers, n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"output.report_to: {name!r} is no tracker that transformers knows: the nearest is "
            f"{nearest!r}, and [] is none."
        )


def require_vllm_to_train() -> None:
    """Refuse vLLM where it is not installed.

    Raises:
        ConfigError: With what to do.
    """
    if find_spec("vllm") is None:
        raise ConfigError(
            "trainer.use_vllm=true, and vLLM is not installed: `pip install 'trl[vllm]'`, or leave "
            "it out, and transformers samples."
        )
