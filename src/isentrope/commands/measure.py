"""`isentrope measure` on the command line; `verbs.measure` does the work."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from isentrope.commands.measuring import OnCheckpoints
from isentrope.results.verbs import MEASURE


@dataclass(frozen=True, kw_only=True)
class MeasureCommand(OnCheckpoints):
    """Measure how much the next step of a checkpoint changes entropy."""

    name = MEASURE.name
    verb = MEASURE
    figure_file = "entropy_change.png"

    @classmethod
    def analyse(cls, ready: Any) -> Any:
        """The result at a prepared checkpoint."""
        from isentrope.verbs.measure import find_change

        return find_change(ready)

    @classmethod
    def figure(cls) -> Callable[[Any], Any]:
        """The function that draws its figure."""
        from isentrope.reports.panels.change import entropy_change_figure

        return entropy_change_figure


def measure(config: Any, *, draw: Callable[[Any], Any] | None = None) -> Any:
    """Measure every checkpoint of a configuration and write what is measured.

    Args:
        config: What to measure, a `MeasureConfig`.
        draw: Makes a figure (with `savefig`) of a result; None for no figure.

    Returns:
        The folders and the results, a `Run`.
    """
    return MeasureCommand.measure(config, draw=draw)
