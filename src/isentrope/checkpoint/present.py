"""Whether what a configuration names is there: one look at the paths, before any work."""

from isentrope.checkpoint.folders import checkpoint_folders
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import Config
from isentrope.config.measure import MeasureConfig


def require_present(config: Config) -> None:
    """Refuse files and checkpoint folders that are missing.

    At log level DEBUG the work itself refuses them, which shows where.

    Args:
        config: Any configuration.

    Raises:
        FileNotFoundError: Naming the key and the path.
    """
    if config.output.log_level == "DEBUG":
        return
    if isinstance(config, MeasureConfig):
        config.batch_config.require_files("batch_config")
    else:
        config.data.require_files()
    if isinstance(config, (MeasureConfig, EvaluateConfig)):
        checkpoint_folders(config.checkpoint.checkpoint_path)
