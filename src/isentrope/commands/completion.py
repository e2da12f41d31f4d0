"""What the shell offers for a word that is begun: settings, controls and checkpoints.

The shell asks at every press of the key, so nothing that takes a second is imported: the sections
of the settings load no torch. For a word that has nothing here it offers files.
"""

from pathlib import Path

CHECKPOINTS = ("checkpoint-*", "training_state/step_*")
"""Folders of checkpoints in that of a run, as TRL and isentrope name them."""


def complete_setting(incomplete: str) -> list[str]:
    """The settings that begin so, each with its equals sign."""
    from isentrope.config.io import KINDS
    from isentrope.config.keys import all_keys

    keys = dict.fromkeys(key for kind in KINDS.values() for key in all_keys(kind))
    return [f"{key}=" for key in keys if "." in key and key.startswith(incomplete)]


def complete_controls(incomplete: str) -> list[str]:
    """The controls that can follow those which are there, with commas."""
    from isentrope.control.names import TOKEN_NAMES

    *before, last = incomplete.split(",")
    names = TOKEN_NAMES if before else ("all", *TOKEN_NAMES)
    return [
        ",".join([*before, name]) for name in names if name.startswith(last) and name not in before
    ]


def complete_checkpoint(incomplete: str) -> list[str]:
    """The checkpoints of a run whose folder is there."""
    folder = Path(incomplete).expanduser()
    runs = [folder] if folder.is_dir() else [folder.parent]
    paths = (path for run in runs for pattern in CHECKPOINTS for path in sorted(run.glob(pattern)))
    return [str(path) for path in paths if str(path).startswith(incomplete) and path.is_dir()]
