"""Whether what a configuration names is there: one look at the paths, before any work."""

from isentrope.checkpoint.files import ADAPTER_CONFIG
from isentrope.checkpoint.folders import checkpoint_folders
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import Config
from isentrope.config.measure import MeasureConfig
from isentrope.models.base_model import adapter_base
from isentrope.models.checkpoint_folder import require_optimizer
from isentrope.system.manifest import verification


def require_present(config: Config) -> None:
    """Refuse files and checkpoint folders that are missing.

    At log level DEBUG the work itself refuses them, which shows where. The work verifies what it
    reads; here nothing is hashed.

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
    if not isinstance(config, (MeasureConfig, EvaluateConfig)):
        return
    where = config.checkpoint
    with verification(False):
        for folder in checkpoint_folders(where.checkpoint_path):
            if isinstance(config, MeasureConfig):
                require_optimizer(folder, config.checkpoint.optimizer_path)
            if (folder / ADAPTER_CONFIG).is_file():
                adapter_base(folder, where.base_model, allow_hub=where.allow_hub)
