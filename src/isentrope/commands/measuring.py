"""A verb that puts a question to checkpoints.

A new one is a module with a dataclass: its name and facts (`results.verbs.Verb`), and its analysis
from a prepared checkpoint to its result, which knows its words and tables. The loop over
checkpoints, resuming, the run folder and the table of a study are those of all of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from typer import Option

from isentrope.commands.command import (
    AsJson,
    Changeable,
    Command,
    Conclusion,
    Configured,
    Sets,
)
from isentrope.results.verbs import Verb


@dataclass(frozen=True, kw_only=True)
class Measuring(Configured, AsJson):
    """A verb that measures; it is given with `Configured`, whose configuration it reads.

    Attributes:
        verb: What the loop and the tables know of it.
        figure_file: File of its figure; empty for none.
    """

    verb: ClassVar[Verb]
    figure_file: ClassVar[str] = ""

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
        return self.measure(self.configuration(), draw=self.figure())

    def configuration(self) -> Any:
        """The configuration of a measurement."""
        from isentrope.config.io import load_config

        return load_config(self.config, self.overrides)

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
        *others, last = outcome.measurements.values()
        for path in others:
            yield f"Wrote {path}"
        yield Conclusion(f"Wrote {last}", folder=last.parent if others else last)

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
        ),
        Sets("checkpoint.checkpoint_path"),
    ] = None
    repeats: Annotated[
        int | None,
        Option(min=1, help="Fresh update batches at each checkpoint."),
        Sets("batch_config.repeats"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class OnCheckpoints(Measuring, Configured, Study, Changeable):
    """The options of most of them."""
