"""`isentrope config show` and `isentrope config validate`."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from isentrope.commands.command import Command, Conclusion, Configured, Overridden
from isentrope.results.verbs import MEASURE

ConfigurationKind = Literal["measure", "evaluate", "sft", "train"]
"""Verbs whose configurations have roots of their own."""


@dataclass(frozen=True, kw_only=True)
class Shown(Command):
    """A verb that takes a configuration, or the name of a verb for its defaults."""

    config: Annotated[
        str | None, Argument(metavar="[CONFIG]", help="A YAML file; left out: defaults.")
    ] = None
    kind: Annotated[
        ConfigurationKind | None,
        Option("--for", help="The verb whose defaults are shown; measure if left out."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ShowCommand(Shown, Overridden):
    """Print every setting, its default or its value in CONFIG, and what it does."""

    name = "show"

    def read(self) -> None:
        """Read the configuration."""
        _ = self.chosen

    def run(self) -> Any:
        """The configuration that was read."""
        return self.chosen

    @cached_property
    def chosen(self) -> Any:
        """The configuration, or the defaults of a verb."""
        from isentrope.config.io import default_config, load_any

        if self.config and self.kind:
            raise ValueError(f"{self.config} says itself which verb it is for: omit --for.")
        if self.config:
            return load_any(self.config, self.overrides)
        return default_config(self.kind or MEASURE.name, self.overrides)

    def shown(self, outcome: Any) -> Iterator[Any]:
        """The settings as YAML, with what each does."""
        from isentrope.config.io import dump_config

        yield Conclusion(dump_config(outcome, comments=True).rstrip())


@dataclass(frozen=True, kw_only=True)
class ValidateCommand(Configured, Overridden):
    """Check CONFIG: its keys and values, and that the files it names are there."""

    name = "validate"

    def read(self) -> None:
        """Read the configuration, and refuse what cannot be trained."""
        from isentrope.config.train import SftConfig, TrainConfig
        from isentrope.config.trainable import require_trainable
        from isentrope.system.manifest import verification

        super().read()
        if isinstance(self.configuration, (SftConfig, TrainConfig)):
            with verification(False):  # validating verifies what it reads
                require_trainable(self.configuration)

    def run(self) -> Any:
        """Check the configuration without doing its work."""
        from isentrope.config.measure import MeasureConfig
        from isentrope.config.train import SftConfig, TrainConfig
        from isentrope.system.manifest import verification

        config = self.configuration
        if isinstance(config, (SftConfig, TrainConfig)):
            return _describe_training(config)
        with verification(config.checkpoint.verify):
            if isinstance(config, MeasureConfig):
                return _describe_measurement(config)
            return _describe_evaluation(config)

    def shown(self, outcome: Any) -> Iterator[Any]:
        """What the configuration would do."""
        yield f"{self.config} is valid: it {outcome}."


def _describe_measurement(config: Any) -> str:
    from isentrope.run.study import require_inputs

    return f"measures {', '.join(checkpoint.name for checkpoint in require_inputs(config))}"


def _describe_evaluation(config: Any) -> str:
    from isentrope.verbs.evaluate import require_evaluation_inputs

    data = config.data
    checkpoints = require_evaluation_inputs(config.checkpoint, data, config.sampling)
    names = ", ".join(checkpoint.name for checkpoint in checkpoints)
    return f"evaluates {names} on {data.dataset_name}"


def _describe_training(config: Any) -> str:
    from isentrope.config.train import SftConfig
    from isentrope.config.trl import grpo_options, sft_options
    from isentrope.models.trainable import find_model

    find_model(config.model.path)
    config.data.require_files()
    if isinstance(config, SftConfig):
        sft_options(config, Path())
        steps = config.fine_tuning.steps
        verb = "fine-tunes"
    else:
        grpo_options(config, Path())
        steps = config.training.steps
        verb = "trains"
    return f"{verb} {config.model.path} on {config.data.dataset_name} for {steps} steps"
