"""`isentrope check` on the command line; `verbs.check` and `verbs.replay` do the work."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from isentrope.commands.command import Changeable, Command, Conclusion, command_line
from isentrope.results.verbs import MEASURE


@dataclass(frozen=True, kw_only=True)
class Checked(Command):
    """A verb that takes a configuration or a checkpoint."""

    config: Annotated[
        str,
        Argument(metavar="CONFIG", help="A YAML file of settings, or a checkpoint folder."),
    ]
    replay: Annotated[
        bool, Option("--replay", help="Compare the recorded step with the one that was taken.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class CheckCommand(Checked, Changeable):
    """Check that a checkpoint can be measured; exit status 1 if not."""

    name = "check"

    def read(self) -> None:
        """Read the configuration, or look for the folder."""
        from isentrope.checkpoint.present import require_present

        require_present(self._configuration())

    def run(self) -> Any:
        """Check or replay every checkpoint."""
        from isentrope.verbs.check import check
        from isentrope.verbs.replay import replay

        work = replay if self.replay else check
        return work(self._configuration())

    def _configuration(self) -> Any:
        """The configuration, or that of a folder alone."""
        from isentrope.config.io import load_config

        if not Path(self.config).exists():
            raise FileNotFoundError(
                f"There is nothing at {self.config}: give the folder of a checkpoint, or a "
                "configuration (a YAML file) that names one by checkpoint.checkpoint_path."
            )
        source: Any = self.config
        if Path(self.config).is_dir():
            source = {"checkpoint": {"checkpoint_path": self.config}}
        return load_config(source, self.overrides)

    def shown(self, outcome: Any) -> Iterator[Any]:
        """A table of findings per checkpoint, and a sentence where no check failed."""
        from isentrope.verbs.tables import printed_findings

        yield from printed_findings(outcome, details=self.details)
        if not self.failures(outcome):
            yield Conclusion("The step is the one taken." if self.replay else "Can be measured.")
            yield Conclusion(f"Next: {self._next_command()}")

    def _next_command(self) -> str:
        """The measurement of what was checked; a folder says nothing of the prompts."""
        options = [word for setting in self.settings or () for word in ("--set", setting)]
        if self.folder is not None:
            options += ["--out", self.folder]
        if self.no_verify:
            options.append("--no-verify")
        if not Path(self.config).is_dir():
            return command_line(MEASURE.name, self.config, *options)
        line = command_line(MEASURE.name, "CONFIG", "--checkpoints", self.config, *options)
        return f"{line}, where CONFIG names prompts and rewards (docs/own_checkpoint.md)"

    def failures(self, outcome: Any) -> list[str]:
        """How many checks failed."""
        failed = sum(
            finding.passed is False for findings in outcome.values() for finding in findings
        )
        return [f"{failed} checks failed."] if failed else []
