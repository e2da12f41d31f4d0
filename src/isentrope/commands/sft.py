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

    def shown(self, outcome: Any) -> Iterator[Any]:
        """The last loss, what held-out prompts are answered, and where the model is."""
        yield f"Loss of the last step: {outcome.loss:.4f} nats per token"
        for name, share in outcome.adherence.items():
            if share is not None:
                yield f"Greedy on held-out prompts, {name}: {share}"
        yield Conclusion(f"Wrote {outcome.model}")
