"""The figure of one result: that of its panel on the page of its run."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from isentrope.attribution.influence.classes import sequence_classes, token_classes
from isentrope.attribution.influence.contributions import Influence
from isentrope.estimators.entropy_change import EntropyChange
from isentrope.reports.panel import Panel
from isentrope.reports.panels.attribution import audit_panels, class_bars, class_panels
from isentrope.reports.panels.change import entropy_change_figure, sweep_figure, trial_figure
from isentrope.reports.panels.kernel import moved_panels, own_panels
from isentrope.reports.panels.plane import within_step
from isentrope.reports.read_run import NotMeasuredError, Reading
from isentrope.reports.saved_result import SavedResult
from isentrope.results.result import Result, Tables
from isentrope.results.results import (
    AuditResult,
    InfluenceResult,
    KernelResult,
    MeasureResult,
    TrialResult,
)
from isentrope.system.formatting import listed

PANELS: Mapping[type[Result], tuple[Callable[[Reading], Iterator[Panel]], ...]] = {
    InfluenceResult: (class_panels, within_step),
    AuditResult: (audit_panels,),
    KernelResult: (moved_panels, own_panels),
}
"""Panels of a result, of which the first that has a figure is its figure."""


def draw_figure(instance: Any) -> Figure:
    """The figure of a result, of a sweep of ΔH, or of an influence.

    Args:
        instance: The object.

    Returns:
        The figure.

    Raises:
        LookupError: If the report has none of it.
    """
    if isinstance(instance, EntropyChange):
        return sweep_figure(instance)
    if isinstance(instance, Influence):
        tokens = instance.scores is not None
        return class_bars((token_classes if tokens else sequence_classes)(instance)).figure()
    if isinstance(instance, MeasureResult) and instance.sweep:
        return entropy_change_figure(instance)
    if isinstance(instance, TrialResult):
        return trial_figure(instance)
    if isinstance(instance, Result):
        with TemporaryDirectory() as scratch:
            folder = Path(scratch)
            if isinstance(instance.tables, Tables):
                folder = instance.tables.folder
            elif type(instance) in PANELS:
                instance.save(folder)  # some panels read what lies beside the tables
            for panel in _panels(instance, folder):
                if panel.drawn is not None:
                    return panel.drawn.figure()
    verbs = [kind.verb for kind in (MeasureResult, *PANELS, TrialResult)]
    raise LookupError(
        f"The report has no figure of this {type(instance).__name__}: results of "
        f"{listed(verbs)} have one, where what it shows was measured."
    )


def _panels(result: Result, folder: Path) -> Iterator[Panel]:
    """The panels of a result alone, as those of a run that has no other."""
    saved = SavedResult(result.name, folder, result)
    reading = Reading(folder, {}, [saved], pd.DataFrame(), [], result.name)
    for draw in PANELS.get(type(result), ()):
        try:
            yield from draw(reading)
        except NotMeasuredError:
            continue
