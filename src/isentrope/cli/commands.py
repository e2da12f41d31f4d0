"""The verbs, in the order of the help.

A verb is a dataclass of `isentrope.commands`, which imports what it works with when it runs, so
that `--version` and `--help` load no torch.
"""

from isentrope.cli.demo import DemoCommand
from isentrope.commands.audit import AuditCommand
from isentrope.commands.check import CheckCommand
from isentrope.commands.command import Command
from isentrope.commands.config import ShowCommand, ValidateCommand
from isentrope.commands.convert import ConvertCommand
from isentrope.commands.entropies import EntropiesCommand
from isentrope.commands.evaluate import EvaluateCommand
from isentrope.commands.influence import InfluenceCommand
from isentrope.commands.kernel import KernelCommand
from isentrope.commands.measure import MeasureCommand
from isentrope.commands.measuring import Measuring
from isentrope.commands.noise import NoiseCommand
from isentrope.commands.plan import PlanCommand
from isentrope.commands.report import ReportCommand
from isentrope.commands.sft import SftCommand
from isentrope.commands.show import ShowStoredCommand
from isentrope.commands.train import TrainCommand
from isentrope.commands.trial import TryCommand
from isentrope.commands.variance import VarianceCommand
from isentrope.commands.view import ViewCommand

MEASURING: dict[str, type[Measuring]] = {
    verb.name: verb
    for verb in (
        MeasureCommand,
        InfluenceCommand,
        KernelCommand,
        NoiseCommand,
        VarianceCommand,
        AuditCommand,
        TryCommand,
        EntropiesCommand,
    )
}
"""Verbs that put a question to checkpoints, by name."""

COMMANDS: tuple[type[Command], ...] = (
    DemoCommand,
    SftCommand,
    TrainCommand,
    EvaluateCommand,
    *MEASURING.values(),
    CheckCommand,
    PlanCommand,
    ConvertCommand,
    ShowStoredCommand,
    ReportCommand,
    ViewCommand,
)

CONFIG_COMMANDS: tuple[type[Command], ...] = (ShowCommand, ValidateCommand)
