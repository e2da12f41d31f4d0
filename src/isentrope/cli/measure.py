"""`isentrope measure CONFIG`: ΔH(η) with its first and second order, at one checkpoint or more."""

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
def measure(
    config: ConfigFile,
    checkpoints: Checkpoints = None,
    repeats: Repeats = None,
    settings: Overrides = None,
    folder: OutFolder = None,
) -> None:
    """Measure how much one optimizer step changes the entropy of a checkpoint, or of a list."""
    from isentrope.cli.tables import print_measurement
    from isentrope.config.io import load_config
    from isentrope.pipelines.measure import measure as run_measure
    from isentrope.progress import Progress
    from isentrope.reports.figures import entropy_change_figure

    asked = load_config(config, overrides(settings, folder, checkpoints, repeats))
    run = run_measure(asked, progress=Progress(err), draw=entropy_change_figure)
    print_measurement(out, run.results)
    for made in run.measurements.values():
        out.print(f"Wrote {made}", markup=False, highlight=False, soft_wrap=True)
