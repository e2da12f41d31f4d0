"""`isentrope evaluate` on the command line; `verbs.evaluate` does the work."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from isentrope.commands.command import AsJson, Changeable, Conclusion
from isentrope.commands.measuring import OnFolder


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand(OnFolder, AsJson, Changeable):
    """Evaluate checkpoints on a task: pass@k, lengths, entropy."""

    name = "evaluate"
    kept = "Finished chunks of prompts are kept: run the same command again to go on."

    def read(self) -> None:
        """Read the configuration; refuse prompts that are too few, and a folder of others."""
        from isentrope.verbs.evaluable import require_evaluable, require_evaluation

        super().read()
        config = self.configuration
        if config.output.directory is not None:
            require_evaluation(config.output.directory)
        require_evaluable(config.data, config.evaluation)

    def run(self) -> Any:
        """Evaluate the checkpoints, or resume an evaluation that was stopped."""
        from isentrope.verbs.evaluate import evaluate_checkpoints

        return evaluate_checkpoints(self.configuration)

    def read_configuration(self) -> Any:
        """The configuration of an evaluation, or that of a folder."""
        from isentrope.config.evaluate import EvaluateConfig
        from isentrope.config.io import load_config

        sections = self.folder_sections()
        if sections is not None and self.prompts is not None:
            sections["batch_config"].pop("dataset_options", None)  # halves of them, for E and U
        source = self.config if sections is None else _evaluation_of(sections, self.overrides)
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


def _evaluation_of(
    sections: dict[str, dict[str, Any]], overrides: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """The sections of an evaluation, from those of a measurement of the same folder.

    Args:
        sections: Of `folder_settings`.
        overrides: Settings that will win.

    Returns:
        Checkpoint and data: the prompts that are given, or those that training held out.

    Raises:
        ConfigError: If no prompts are known that training did not see.
    """
    from isentrope.checkpoint.folder_settings import PROMPT_SETTINGS
    from isentrope.config.io import key_of
    from isentrope.config.strict_yaml import ConfigError

    batch = sections["batch_config"]
    folder = sections["checkpoint"]["checkpoint_path"]
    chosen = {key_of(override) for override in overrides}
    of_training = batch.get("dataset_path", "") == batch.get("U_file")
    is_named = "dataset_name" in batch and not of_training
    if not is_named and "data.dataset_name" not in chosen:
        raise ConfigError(
            f"{folder} does not say on which prompts it is evaluated: give --prompts FILE (jsonl, "
            "parquet or csv), and --reward FILE.py:NAME."
        )
    names = ("dataset_name", "dataset_path", "dataset_options", *PROMPT_SETTINGS)
    data = {name: batch[name] for name in names if name in batch}
    if "E_split" in batch:
        data["split"] = batch["E_split"]
    return {"checkpoint": sections["checkpoint"], "data": data}
