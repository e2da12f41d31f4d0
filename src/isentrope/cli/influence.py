"""`isentrope influence CONFIG`: which sequences and tokens moved the entropy."""

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
def influence(
    config: ConfigFile,
    checkpoints: Checkpoints = None,
    repeats: Repeats = None,
    settings: Overrides = None,
    folder: OutFolder = None,
) -> None:
    """Attribute the entropy change of a step to the sequences and tokens of its batch."""
    from isentrope.cli.attribution_tables import print_influence
    from isentrope.experiments.attribution.influence import find_influence
    from isentrope.experiments.attribution.run import run_verb
    from isentrope.experiments.config_io import load_config
    from isentrope.experiments.progress import Progress

    asked = load_config(config, overrides(settings, folder, checkpoints, repeats))
    run = run_verb("influence", find_influence, asked, Progress(err))
    for result, made in zip(run.results, run.measurements.values(), strict=True):
        print_influence(out, result, made)
        out.print(f"Wrote {made}", markup=False, highlight=False, soft_wrap=True)
