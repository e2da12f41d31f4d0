"""`isentrope sft` on the command line; `verbs.sft` does the work."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from isentrope.commands.command import Changeable, Conclusion
from isentrope.commands.new_run import NewRun


@dataclass(frozen=True, kw_only=True)
class SftCommand(NewRun, Changeable):
    """Fine-tune a model on a task's demonstrations; or resume a run."""

    name = "sft"
    packages = ("trl",)

    def run(self) -> Any:
        """Start a run, or resume one."""
        from isentrope.verbs.sft import resume_sft, sft

        self.require_one_beginning()
        if self.resume is not None:
            return resume_sft(self.resume, self.overrides)
        return sft(self.configuration)

    def read_configuration(self) -> Any:
        """The configuration of a run that starts."""
        from isentrope.config.io import load_config
        from isentrope.config.train import SftConfig

        assert self.config is not None
        return load_config(self.config, self.overrides, SftConfig)

    def settings_of_begun(self) -> Any:
        """The configuration of a run that goes on."""
        from isentrope.config.train import SftConfig
        from isentrope.run.begun import begun_settings
        from isentrope.training.run_files import RunFiles

        assert self.resume is not None
        return begun_settings(RunFiles(self.resume), self.overrides, SftConfig)

    def shown(self, outcome: Any) -> Iterator[Any]:
        """The last loss, what held-out prompts are answered, and where the model is."""
        yield f"Loss of the last step: {outcome.loss:.4f} nats per token"
        for name, share in outcome.adherence.items():
            if share is not None:
                yield f"Greedy on held-out prompts, {name}: {share}"
        yield Conclusion(f"Wrote {outcome.model}")
