"""`isentrope noise CONFIG`: how many prompts a step needs."""

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
def noise(
    config: ConfigFile,
    checkpoints: Checkpoints = None,
    repeats: Repeats = None,
    settings: Overrides = None,
    folder: OutFolder = None,
) -> None:
    """Measure the gradient noise scale, and that of the entropy change."""
    from isentrope.cli.attribution_tables import print_noise
    from isentrope.experiments.attribution.noise import find_noise
    from isentrope.experiments.attribution.run import run_verb
    from isentrope.experiments.config_io import load_config
    from isentrope.experiments.progress import Progress

    asked = load_config(config, overrides(settings, folder, checkpoints, repeats))
    run = run_verb("noise", find_noise, asked, Progress(err))
    for result, made in zip(run.results, run.measurements.values(), strict=True):
        print_noise(out, result)
        out.print(f"Wrote {made}", markup=False, highlight=False, soft_wrap=True)
