"""`isentrope evaluate` on the command line; `verbs.evaluate` does the work."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from isentrope.commands.command import AsJson, Changeable, Conclusion
from isentrope.commands.measuring import OnFolder


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand(OnFolder, AsJson, Changeable):
    """Evaluate checkpoints on a task: pass@k, lengths, entropy."""

    name = "evaluate"
    kept = "Finished chunks of prompts are kept: run the same command again to go on."

    def run(self) -> Any:
        """Evaluate the checkpoints, or resume an evaluation that was stopped."""
        from isentrope.verbs.evaluate import evaluate_checkpoints

        return evaluate_checkpoints(self.configuration())

    def configuration(self) -> Any:
        """The configuration of an evaluation, or that of a folder."""
        from isentrope.checkpoint.folder_settings import evaluation_settings
        from isentrope.config.evaluate import EvaluateConfig
        from isentrope.config.io import load_config

        sections = self.folder_sections()
        source = self.config if sections is None else evaluation_settings(sections, self.overrides)
        return load_config(source, self.overrides, EvaluateConfig)

    def shown(self, outcome: Any) -> Iterator[Any]:
        """A row per checkpoint and decoding."""
        from isentrope.verbs.tables import printed_evaluation

        yield from printed_evaluation(outcome.results)
        yield Conclusion(f"Wrote {outcome.table}", folder=outcome.folder)

    def documents(self, outcome: Any) -> list[Any]:
        """The content of each metrics.json."""
        from isentrope.results.encode import encode

        return [encode(result) for result in outcome.results]
