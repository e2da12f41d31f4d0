"""`isentrope config show` and `isentrope config validate`."""

from collections.abc import Iterator
from dataclasses import dataclass
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

    def run(self) -> Any:
        """Read the configuration, or the defaults of a verb."""
        from isentrope.verbs.kinds import defaults, load_any

        if self.config and self.kind:
            raise ValueError(f"{self.config} says itself which verb it is for: omit --for.")
        if self.config:
            return load_any(self.config, self.overrides)
        return defaults(self.kind or MEASURE.name, self.overrides)

    def shown(self, outcome: Any) -> Iterator[Any]:
        """The settings as YAML, with what each does."""
        from isentrope.config.io import dump_config

        yield Conclusion(dump_config(outcome, comments=True).rstrip())


@dataclass(frozen=True, kw_only=True)
class ValidateCommand(Configured, Overridden):
    """Check CONFIG: its keys and values, and that the files it names are there."""

    name = "validate"

    def run(self) -> Any:
        """Check the configuration without doing its work."""
        from isentrope.verbs.kinds import intention, load_any

        return intention(load_any(self.config, self.overrides))

    def shown(self, outcome: Any) -> Iterator[Any]:
        """What the configuration would do."""
        yield f"{self.config} is valid: {outcome}."
