"""`isentrope kernel CONFIG`: the Fisher kernel of a batch, its structure and spectrum."""

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
def kernel(
    config: ConfigFile,
    checkpoints: Checkpoints = None,
    repeats: Repeats = None,
    settings: Overrides = None,
    folder: OutFolder = None,
) -> None:
    """Compute the Fisher kernel: how a step on one response moves another."""
    from isentrope.cli.attribute import attribute
    from isentrope.cli.attribution_tables import print_kernel
    from isentrope.pipelines.kernel import find_kernel

    asked = overrides(settings, folder, checkpoints, repeats)
    attribute("kernel", find_kernel, print_kernel, config, asked)
