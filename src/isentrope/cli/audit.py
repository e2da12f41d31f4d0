"""`isentrope audit CONFIG`: published proxies against the measured influence."""

from __future__ import annotations

from isentrope.cli.app import (
    Checkpoints,
    ConfigFile,
    OutFolder,
    Overrides,
    Repeats,
    err,
    one_sentence,
    out,
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
    from isentrope.cli.attribution_tables import print_audit
    from isentrope.experiments.attribution.audit import find_audit
    from isentrope.experiments.attribution.run import run_verb
    from isentrope.experiments.config_io import load_config
    from isentrope.experiments.progress import Progress

    asked = load_config(config, overrides(settings, folder, checkpoints, repeats))
    run = run_verb("audit", find_audit, asked, Progress(err))
    for result, made in zip(run.results, run.measurements.values(), strict=True):
        print_audit(out, result)
        out.print(f"Wrote {made}", markup=False, highlight=False, soft_wrap=True)
