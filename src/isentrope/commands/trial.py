"""`isentrope try` on the command line; `verbs.trial` does the work."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from typer import Argument, Option

from isentrope.commands.command import Changeable, Command, Sets
from isentrope.commands.completion import complete_controls
from isentrope.commands.measuring import Measuring, OnFolder, Study
from isentrope.results.verbs import TRY


@dataclass(frozen=True, kw_only=True)
class Controlled(Command):
    """A verb that takes names of controls."""

    control: Annotated[
        str,
        Argument(
            metavar="CONTROL",
            help="Name of a control, several with commas, or all that act.",
            autocompletion=complete_controls,
        ),
        Sets("trial.controls", names=True),
    ]


@dataclass(frozen=True, kw_only=True)
class Strength(Command):
    """A verb whose controls have a strength."""

    strength: Annotated[
        list[float] | None,
        Option(help="Multiple of the default strength; repeatable."),
        Sets("trial.strengths"),
    ] = None
    change: Annotated[
        float | None,
        Option(help="Look for the strength that changes entropy by this a step."),
        Sets("trial.change"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TryCommand(Measuring, Controlled, OnFolder, Study, Strength, Changeable):
    """Try controls on the next step: what they gain and what they cost."""

    name = TRY.name
    verb = TRY
    figure_file = "trial.png"
    named_objective = True

    @classmethod
    def analyse(cls, ready: Any) -> Any:
        """The result at a prepared checkpoint."""
        from isentrope.verbs.trial import find_trial

        return find_trial(ready)

    @classmethod
    def figure(cls) -> Callable[[Any], Any]:
        """The function that draws its figure."""
        from isentrope.reports.panels.change import trial_figure

        return trial_figure
