"""`EntropyMeasurements`, for scripts that follow the configuration dictionary of the notes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isentrope.commands.measure import measure
from isentrope.config.io import load_config
from isentrope.config.measure import MeasureConfig
from isentrope.system.log import log
from isentrope.system.one_line import one_line, quoted


class EntropyMeasurements:
    """A measurement described by a dictionary, or by the path of a YAML file.

    Attributes:
        config: The configuration, checked, defaults filled in.
    """

    def __init__(self, config: Mapping[str, Any] | str | Path | MeasureConfig) -> None:
        """Check the configuration.

        Args:
            config: Sections and keys as `isentrope config show` prints them, or a YAML file.
        """
        self.config = config if isinstance(config, MeasureConfig) else load_config(config)

    def __repr__(self) -> str:
        path = self.config.checkpoint.checkpoint_path
        return one_line(self, f"of {quoted(str(path))}")

    def run_experiments(self) -> dict[str, Any]:
        """Measure and write the run folder.

        Returns:
            The content of results.json, with "B_E", "B_U" and "run_folder" at the top as well;
            of several checkpoints {"measurements": [one such dictionary each], "run_folder": …}.
        """
        run = measure(self.config)
        for result in run.results:
            for sentence in result.warnings:
                log.warning("%s: %s", result.policy.name, sentence)
        contents = [
            result.to_dict() | {"B_E": result.batches.B_E, "B_U": result.batches.B_U}
            for result in run.results
        ]
        content = contents[0] if len(contents) == 1 else {"measurements": contents}
        return content | {"run_folder": str(run.folder)}
