"""`isentrope influence CONFIG`: which sequences and tokens moved the entropy."""

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
def influence(
    config: ConfigFile,
    checkpoints: Checkpoints = None,
    repeats: Repeats = None,
    settings: Overrides = None,
    folder: OutFolder = None,
) -> None:
    """Attribute the entropy change of a step to the sequences and tokens of its batch."""
    from isentrope.cli.attribute import attribute
    from isentrope.cli.attribution_tables import print_influence
    from isentrope.pipelines.influence import find_influence

    asked = overrides(settings, folder, checkpoints, repeats)
    attribute("influence", find_influence, print_influence, config, asked)
