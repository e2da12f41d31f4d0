"""Which verb a configuration is for, by its sections, and what that verb would do with it."""

from collections.abc import Collection, Iterable
from pathlib import Path

from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import KINDS, Config, load_config, read_yaml
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import SftConfig
from isentrope.config.trl import grpo_options, sft_options
from isentrope.results.verbs import MEASURE
from isentrope.run.study import require_inputs
from isentrope.system.manifest import verification
from isentrope.training.models import find_model
from isentrope.verbs.evaluate import require_evaluation_inputs

_SECTIONS = {"evaluation": "evaluate", "training": "train", "fine_tuning": "sft"}
"""Sections that one verb alone has."""


def kind_of(sections: Collection[str]) -> str:
    """Which verb a configuration of these sections is for; measure where no other one is named."""
    return next((kind for name, kind in _SECTIONS.items() if name in sections), MEASURE.name)


def load_any(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a configuration of whatever kind."""
    return load_config(path, overrides, KINDS[kind_of(read_yaml(Path(path)))])


def defaults(kind: str, overrides: Iterable[str] = ()) -> Config:
    """The defaults of a verb, with a path to fill in."""
    root = KINDS[kind]
    needed = {"model": {"path": "path/to/model"}}
    if "checkpoint" in root.model_fields:
        needed = {"checkpoint": {"checkpoint_path": "path/to/checkpoint"}}
    return load_config(needed, overrides, root)


def intention(config: Config) -> str:
    """Check what can be checked without work, and say what would be done.

    Args:
        config: A configuration.

    Returns:
        The end of a sentence that begins with the configuration's name: "it measures step_4".
    """
    if isinstance(config, (MeasureConfig, EvaluateConfig)):
        with verification(config.checkpoint.verify):
            if isinstance(config, MeasureConfig):
                return f"it measures {', '.join(x.name for x in require_inputs(config))}"
            found = require_evaluation_inputs(config.checkpoint, config.data, config.sampling)
        return f"it evaluates {', '.join(x.name for x in found)} on {config.data.dataset_name}"
    find_model(config.model.path)
    config.data.require_files()
    if isinstance(config, SftConfig):
        sft_options(config, Path())
        steps, verb = config.fine_tuning.steps, "fine-tunes"
    else:
        grpo_options(config, Path())
        steps, verb = config.training.steps, "trains"
    return f"it {verb} {config.model.path} on {config.data.dataset_name} for {steps} steps"
