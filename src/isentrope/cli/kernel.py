"""`isentrope kernel CONFIG`: the Fisher kernel of a batch, its structure and spectrum."""

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
def kernel(
    config: ConfigFile,
    checkpoints: Checkpoints = None,
    repeats: Repeats = None,
    settings: Overrides = None,
    folder: OutFolder = None,
) -> None:
    """Compute the Fisher kernel: how a step on one response moves another."""
    from isentrope.cli.attribution_tables import print_kernel
    from isentrope.experiments.attribution.kernel import find_kernel
    from isentrope.experiments.attribution.run import run_verb
    from isentrope.experiments.config_io import load_config
    from isentrope.experiments.progress import Progress

    asked = load_config(config, overrides(settings, folder, checkpoints, repeats))
    run = run_verb("kernel", find_kernel, asked, Progress(err))
    for result, made in zip(run.results, run.measurements.values(), strict=True):
        print_kernel(out, result)
        out.print(f"Wrote {made}", markup=False, highlight=False, soft_wrap=True)
