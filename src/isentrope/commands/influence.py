"""`isentrope influence` on the command line; `verbs.influence` does the work."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isentrope.commands.measuring import OnCheckpoints
from isentrope.results.verbs import INFLUENCE


@dataclass(frozen=True, kw_only=True)
class InfluenceCommand(OnCheckpoints):
    """Attribute a step's change of entropy to sequences and tokens."""

    name = INFLUENCE.name
    verb = INFLUENCE

    @classmethod
    def analyse(cls, ready: Any) -> Any:
        """The result at a prepared checkpoint."""
        from isentrope.verbs.influence import find_influence

        return find_influence(ready)

    @classmethod
    def printed(cls, result: Any, folder: Path) -> Iterator[Any]:
        """Its tables."""
        from isentrope.verbs.influence import printed_influence

        return printed_influence(result, folder)
