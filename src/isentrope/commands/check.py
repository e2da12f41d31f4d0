"""`isentrope check` on the command line; `verbs.check` and `verbs.replay` do the work."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from isentrope.commands.command import Changeable, Conclusion, command_line
from isentrope.commands.measuring import OnFolder
from isentrope.results.verbs import MEASURE


@dataclass(frozen=True, kw_only=True)
class Checked(OnFolder):
    """A verb that takes a configuration or a checkpoint, and knows how to go on."""

    write: Annotated[
        str | None,
        Option(metavar="FILE", help="Write the settings to a new YAML file, if all is well."),
    ] = None
    replay: Annotated[
        bool, Option("--replay", help="Compare the recorded step with the one that was taken.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class CheckCommand(Checked, Changeable):
    """Check that a checkpoint can be measured; exit status 1 if not."""

    name = "check"

    def read(self) -> None:
        """Read the configuration, or look for the folder; and for room for the settings."""
        from isentrope.checkpoint.folders import require_present

        if self.write is not None:
            self._require_writable(Path(self.write))
        require_present(self.configuration)

    def run(self) -> Any:
        """Check or replay every checkpoint, then write the settings."""
        from isentrope.config.io import dump_chosen
        from isentrope.system.files import write_bytes
        from isentrope.system.processes import rank
        from isentrope.system.progress import progress

        with progress().bar("loading the libraries"):
            from isentrope.verbs.check import check
            from isentrope.verbs.replay import replay

        if self.write is not None:
            self._require_writable(Path(self.write))
        work = replay if self.replay else check
        config = self.configuration
        outcome = work(config)
        if self.write is not None and not self.failures(outcome) and rank() == 0:
            write_bytes(Path(self.write), dump_chosen(config).encode())
        return outcome

    def read_configuration(self) -> Any:
        """The configuration, or that of a folder, which may lack prompts and rewards."""
        from isentrope.config.io import load_config

        sections = self.folder_sections()
        return load_config(self.config if sections is None else sections, self.overrides)

    def _require_writable(self, file: Path) -> None:
        """Refuse a file that is there, in no folder, or whose settings would not be complete."""
        if file.exists():
            raise FileExistsError(f"{file} is there already (--write): give a new file.")
        if not file.absolute().parent.is_dir():
            raise FileNotFoundError(f"There is no folder {file.absolute().parent} (--write).")
        super().read_configuration()

    def shown(self, outcome: Any) -> Iterator[Any]:
        """A table of findings per checkpoint, and a sentence where no check failed."""
        from isentrope.verbs.tables import printed_findings

        yield from printed_findings(outcome, details=self.details)
        if not self.failures(outcome):
            yield Conclusion("The step is the one taken." if self.replay else "Can be measured.")
            yield Conclusion(f"Next: {self._next_command()}")

    def _next_command(self) -> str:
        """The measurement of what was checked, and what has to be filled in."""
        if self.write is not None:
            no_verify = ["--no-verify"] if self.no_verify else []
            return command_line(MEASURE.name, self.write, *no_verify)
        words = [MEASURE.name, self.config]
        words += [] if self.prompts is None else ["--prompts", self.prompts]
        words += [word for name in self.reward or () for word in ("--reward", name)]
        options = [word for setting in self.settings or () for word in ("--set", setting)]
        if self.folder is not None:
            options += ["--out", self.folder]
        if self.no_verify:
            options.append("--no-verify")
        try:
            super().read_configuration()
        except ValueError:
            words += ["--prompts", "FILE"] if self.prompts is None else []
            if self.prompts is None and "U_file" in self._batch_sections():
                return f"{command_line(*words, *options)}, with four prompts or more"
            words += [] if self.reward else ["--reward", "FILE.py:NAME"]
            line = command_line(*words, *options)
            return f"{line}, with the prompts and the reward function of training"
        return command_line(*words, *options)

    def _batch_sections(self) -> dict[str, Any]:
        """The settings of the batches that a folder brings; a recorded batch is their U_file."""
        return (self.folder_sections() or {}).get("batch_config", {})

    def failures(self, outcome: Any) -> list[str]:
        """Which checks failed, of which checkpoints."""
        failed = {
            name: names
            for name, findings in outcome.items()
            if (names := [finding.name for finding in findings if finding.passed is False])
        }
        number = sum(map(len, failed.values()))
        if not number:
            return []
        where = "; ".join(f"{name}: {', '.join(names)}" for name, names in failed.items())
        if number == 1:
            return [f"1 check failed ({where}): do what its row says, then check again."]
        return [f"{number} checks failed ({where}): do what their rows say, then check again."]
