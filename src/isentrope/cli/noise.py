"""`isentrope noise CONFIG`: how many prompts a step needs."""

from __future__ import annotations

from isentrope.cli.app import (
    Checkpoints,
    ConfigFile,
    OutFolder,
    Overrides,
    Repeats,
    one_sentence,
    overrides,
)


@one_sentence
def noise(
    config: ConfigFile,
    checkpoints: Checkpoints = None,
    repeats: Repeats = None,
    settings: Overrides = None,
    folder: OutFolder = None,
) -> None:
    """Measure the gradient noise scale, and that of the entropy change."""
    from isentrope.cli.attribute import attribute
    from isentrope.cli.attribution_tables import print_noise
    from isentrope.pipelines.noise import find_noise

    asked = overrides(settings, folder, checkpoints, repeats)
    attribute("noise", find_noise, print_noise, config, asked)
