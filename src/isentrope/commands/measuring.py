"""A verb that puts a question to checkpoints.

A new one is a module with a dataclass: its name and facts (`results.verbs.Verb`), and its analysis
from a prepared checkpoint to its result, which knows its words and tables. The loop over
checkpoints, resuming, the run folder and the table of a study are those of all of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from typer import Argument, Option

from isentrope.commands.command import (
    AsJson,
    Changeable,
    Command,
    Conclusion,
    Configured,
    Sets,
)
from isentrope.commands.completion import complete_checkpoint
from isentrope.results.verbs import Verb


@dataclass(frozen=True, kw_only=True)
class OnFolder(Configured):
    """A verb that takes a configuration, or a checkpoint with prompts and a reward.

    Attributes:
        named_objective: Whether it needs training's objective by name, and not recorded weights.
    """

    named_objective: ClassVar[bool] = False

    config: Annotated[
        str,
        Argument(
            metavar="CONFIG",
            help="A YAML file of settings, or a checkpoint folder.",
            autocompletion=complete_checkpoint,
        ),
    ]
    prompts: Annotated[
        str | None,
        Option(metavar="FILE", help="Prompts for a folder: jsonl, parquet or csv."),
    ] = None
    reward: Annotated[
        list[str] | None,
        Option(
            metavar="FILE.py:NAME",
            help="Reward for a folder: a function, or a task; repeatable, as training had several.",
        ),
    ] = None

    def read_configuration(self) -> Any:
        """The configuration of a measurement."""
        from isentrope.checkpoint.folder_settings import require_batches
        from isentrope.config.io import load_config

        sections = self.folder_sections()
        if sections is None:
            return load_config(self.config, self.overrides)
        require_batches(sections, self.overrides)
        if self.named_objective:
            sections.pop("estimator", None)
        return load_config(sections, self.overrides)

    def folder_sections(self) -> dict[str, dict[str, Any]] | None:
        """The settings of a checkpoint folder before overrides; None for a YAML file."""
        from isentrope.checkpoint.folder_settings import folder_settings
        from isentrope.checkpoint.folders import is_pattern
        from isentrope.config.strict_yaml import ConfigError

        place = Path(self.config).expanduser()
        if not place.exists() and not is_pattern(self.config):
            raise FileNotFoundError(
                f"There is nothing at {self.config}: give the folder of a checkpoint, or a "
                "configuration (a YAML file) that names one by checkpoint.checkpoint_path."
            )
        if place.suffix in (".jsonl", ".parquet", ".csv"):
            raise ConfigError(
                f"{self.config} is a file of data: give the folder of a checkpoint, and prompts by "
                "--prompts."
            )
        if place.is_dir() or not place.exists():
            return folder_settings(self.config, self.prompts, self.reward or (), self.overrides)
        if self.prompts is not None or self.reward:
            raise ConfigError(
                f"{self.config} names prompts and rewards itself (batch_config): leave --prompts "
                "and --reward out, or give a checkpoint folder in its place."
            )
        return None


@dataclass(frozen=True, kw_only=True)
class Measuring(OnFolder, AsJson):
    """A verb that measures; it is given with `OnFolder`, whose configuration it reads.

    Attributes:
        verb: What the loop and the tables know of it.
        figure_file: File of its figure; empty for none.
    """

    verb: ClassVar[Verb]
    figure_file: ClassVar[str] = ""

    def read(self) -> None:
        """Read the configuration, and refuse what the verb has no answer for."""
        from isentrope.checkpoint.folders import require_present
        from isentrope.verbs.answerable import require_answerable

        config = self.configuration
        require_present(config)
        require_answerable(self.verb, config)

    @classmethod
    def analyse(cls, ready: Any) -> Any:
        """The result at a prepared checkpoint, at the measuring precision."""
        raise NotImplementedError

    @classmethod
    def figure(cls) -> Callable[[Any], Any] | None:
        """The function from a result to its figure; None for no figure."""
        return None

    def run(self) -> Any:
        """Run the verb on every checkpoint of the configuration."""
        return self.measure(self.configuration, draw=self.figure())

    @classmethod
    def measure(cls, config: Any, **options: Any) -> Any:
        """Run the verb on every checkpoint of a configuration that was read.

        Args:
            config: The checkpoints and settings.
            **options: Of `verbs.loop.run_verb`: draw, prepare.

        Returns:
            The folders and the results.
        """
        from isentrope.verbs.loop import run_verb

        return run_verb(cls, config, **options)

    def shown(self, outcome: Any) -> Iterator[Any]:
        """The answers of all results, and where they are."""
        results = outcome.results
        yield from type(results[0]).printed(results)
        *earlier, last = outcome.measurements.values()
        for path in earlier:
            yield f"Wrote {path}"
        yield Conclusion(f"Wrote {last}", folder=last.parent if earlier else last)

    def documents(self, outcome: Any) -> list[Any]:
        """The content of each results.json."""
        return [result.to_dict() for result in outcome.results]


@dataclass(frozen=True, kw_only=True)
class Study(Command):
    """A verb that looks at several checkpoints, and at several update batches at each."""

    checkpoints: Annotated[
        list[str] | None,
        Option(
            metavar="PATTERN",
            help='Checkpoints to look at, as "run/training_state/*" in quotes; repeatable.',
            autocompletion=complete_checkpoint,
        ),
        Sets("checkpoint.checkpoint_path"),
    ] = None
    repeats: Annotated[
        int | None,
        Option(min=1, help="Fresh update batches at each checkpoint."),
        Sets("batch_config.repeats"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class OnCheckpoints(Measuring, OnFolder, Study, Changeable):
    """The options of most of them."""
