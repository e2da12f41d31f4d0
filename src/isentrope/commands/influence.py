"""`isentrope influence` on the command line; `verbs.influence` does the work."""

from dataclasses import dataclass
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
