"""`isentrope audit CONFIG`: published proxies against the measured influence."""

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
def audit(
    config: ConfigFile,
    checkpoints: Checkpoints = None,
    repeats: Repeats = None,
    settings: Overrides = None,
    folder: OutFolder = None,
) -> None:
    """Hold every published proxy against the measured influence of tokens and sequences."""
    from isentrope.cli.attribute import attribute
    from isentrope.cli.attribution_tables import print_audit
    from isentrope.pipelines.audit import find_audit

    asked = overrides(settings, folder, checkpoints, repeats)
    attribute("audit", find_audit, print_audit, config, asked)
