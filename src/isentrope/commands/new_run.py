"""A verb that starts a run, or resumes one."""

from dataclasses import dataclass
from typing import Annotated, Any

from typer import Argument, Option

from isentrope.commands.command import Reader


@dataclass(frozen=True, kw_only=True)
class NewRun(Reader):
    """A verb that starts a run, or resumes one; a run that starts has a configuration."""

    config: Annotated[str | None, Argument(metavar="[CONFIG]", help="A YAML file of settings.")] = (
        None
    )
    resume: Annotated[str | None, Option(metavar="RUN", help="Resume this run folder.")] = None

    @property
    def beginnings(self) -> tuple[str | None, ...]:
        """What the run may begin with, of which one is given."""
        return self.config, self.resume

    def read(self) -> None:
        """Read the configuration of the run, and refuse what cannot be trained."""
        from isentrope.checkpoint.folders import require_present
        from isentrope.config.trainable import require_trainable
        from isentrope.run.begun import is_done, require_no_run
        from isentrope.system.manifest import verification
        from isentrope.training.run_files import RunFiles

        self.require_one_beginning()
        with verification(False):  # the work itself verifies what it reads
            config = self.configuration if self.config is not None else self.settings_of_begun()
            training = getattr(config, "training", None)
            steps = training.steps if training else None
            if self.resume is not None and is_done(RunFiles(self.resume), steps):
                return
            if self.config is not None and config.output.directory is not None:
                require_no_run(RunFiles(config.output.directory), type(config))
            require_present(config)
            require_trainable(config)

    def read_configuration(self) -> Any:
        """The configuration of a run that starts."""
        from isentrope.config.io import KINDS, load_config

        assert self.config is not None
        return load_config(self.config, self.overrides, KINDS[self.name])

    def settings_of_begun(self) -> Any:
        """The configuration of a run that goes on."""
        from isentrope.config.io import KINDS
        from isentrope.run.begun import begun_settings
        from isentrope.training.run_files import RunFiles

        assert self.resume is not None
        kind: Any = KINDS[self.name]  # of a verb that trains
        return begun_settings(RunFiles(self.resume), self.overrides, kind)

    def require_one_beginning(self) -> None:
        """Refuse a run that has no beginning, or several."""
        if sum(beginning is not None for beginning in self.beginnings) != 1:
            raise ValueError(
                "Give one of a CONFIG to start a run, --resume RUN to resume one, and, of train, "
                "--from CHECKPOINT to start a run at a checkpoint of another."
            )
