"""`isentrope entropies` on the command line; `verbs.entropies` does the work."""

from dataclasses import dataclass
from typing import Annotated, Any

from typer import Option

from isentrope.commands.command import Changeable, Command, Sets
from isentrope.commands.measuring import Measuring, OnFolder, Study
from isentrope.results.verbs import ENTROPIES


@dataclass(frozen=True, kw_only=True)
class WithLoggedEntropy(Command):
    """A verb that compares with a number in a log."""

    logged: Annotated[
        float | None,
        Option(help="Entropy that the trainer logged, nats per token."),
        Sets("entropies.logged"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class EntropiesCommand(Measuring, OnFolder, Study, WithLoggedEntropy, Changeable):
    """Find out which definition of entropy a trainer logged."""

    name = ENTROPIES.name
    verb = ENTROPIES

    @classmethod
    def analyse(cls, ready: Any) -> Any:
        """The result at a prepared checkpoint."""
        from isentrope.verbs.entropies import find_entropies

        return find_entropies(ready)
