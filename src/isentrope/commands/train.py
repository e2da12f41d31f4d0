"""`isentrope train` on the command line; `verbs.train` does the work."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from typer import Option

from isentrope.commands.command import Changeable, Command, Conclusion, command_line
from isentrope.commands.new_run import NewRun


@dataclass(frozen=True, kw_only=True)
class Start(Command):
    """A verb whose run may start where another was."""

    start: Annotated[
        str | None,
        Option("--from", metavar="CHECKPOINT", help="Start a run where another was."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TrainCommand(NewRun, Start, Changeable):
    """Train by Dr. GRPO, with checkpoints to measure; or resume a run."""

    name = "train"
    packages = ("trl",)
    kept = "No step of training is lost, since none was begun: run the same command again."

    @property
    def beginnings(self) -> tuple[str | None, ...]:
        """A configuration, a run to resume, or a checkpoint to start at."""
        return *super().beginnings, self.start

    def run(self) -> Any:
        """Start a run, resume one, or start at a checkpoint of one."""
        from isentrope.verbs.train import branch, resume, train

        self.require_one_beginning()
        if self.resume is not None:
            return resume(self.resume, self.overrides)
        if self.start is not None:
            return branch(self.start, self.overrides)
        return train(self.configuration)

    def settings_of_begun(self) -> Any:
        """The configuration of a run that goes on, or begins at a checkpoint of another."""
        from isentrope.run.begun import branched_settings

        if self.start is None:
            return super().settings_of_begun()
        return branched_settings(self.start, self.overrides)[2]

    def shown(self, outcome: Any) -> Iterator[Any]:
        """What its log says from the first step to the last, where the run is, and what is next."""
        from isentrope.results.answers.training import training_sentence
        from isentrope.training.run_files import RunFiles, read_log

        log = RunFiles(outcome).metrics
        if log.is_file():
            steps, _ = read_log(log)
            yield from training_sentence(steps)
        yield Conclusion(f"Wrote {outcome}")
        yield f"Next: {command_line('report', outcome)}"
