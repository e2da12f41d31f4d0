"""`isentrope plan` on the command line; `verbs.plan` does the work."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from typer import Option

from isentrope.commands.command import AsJson, Command, Conclusion, Overridden
from isentrope.commands.measuring import OnFolder


@dataclass(frozen=True, kw_only=True)
class Planned(Command):
    """A verb that plans others."""

    verbs: Annotated[
        list[str] | None,
        Option("--verb", metavar="VERB", help="Plan this verb only; repeatable."),
    ] = None
    memory: Annotated[
        str | None, Option(metavar="SIZE", help="Such as 16GB; what is free if left out.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class PlanCommand(OnFolder, Planned, AsJson, Overridden):
    """Count what verbs take by shapes; exit status 1 if it is too much."""

    name = "plan"

    def read(self) -> None:
        """Read the configuration and the options; the files that it names may come later."""
        from isentrope.config.io import kind_of
        from isentrope.config.train import SftConfig, TrainConfig
        from isentrope.config.trainable import require_fields_of_trainer
        from isentrope.verbs.planned import bytes_of, planned_verbs

        config = self.configuration
        kind = kind_of(type(config).model_fields)
        planned_verbs(kind, self.config, self.verbs or (), dict(config))
        if self.memory is not None:
            bytes_of(self.memory)
        if isinstance(config, (SftConfig, TrainConfig)):
            require_fields_of_trainer(config)

    def run(self) -> Any:
        """Plan the verbs of a configuration."""
        from isentrope.verbs.plan import plan

        return plan(self.configuration, self.config, verbs=self.verbs or (), memory=self.memory)

    def read_configuration(self) -> Any:
        """The configuration, of whatever kind, or that of a folder."""
        from isentrope.config.io import load_any, load_config

        sections = self.folder_sections()
        if sections is None:
            return load_any(self.config, self.overrides)
        return load_config(sections, self.overrides)

    def shown(self, outcome: Any) -> Iterator[Any]:
        """Each plan as a table."""
        from isentrope.verbs.tables import SOURCES, printed_plans

        yield from printed_plans(outcome)
        yield Conclusion(SOURCES)

    def document(self, outcome: Any) -> Any:
        """A list of all plans."""
        from isentrope.verbs.tables import described_plans

        return described_plans(outcome)

    def failures(self, outcome: Any) -> list[str]:
        """Which plans do not fit, and what would."""
        from isentrope.verbs.tables import too_large

        return too_large(outcome)
