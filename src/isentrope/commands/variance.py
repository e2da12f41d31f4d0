"""`isentrope variance` on the command line; `verbs.variance` does the work."""

from dataclasses import dataclass
from typing import Any

from isentrope.commands.measuring import OnCheckpoints
from isentrope.results.verbs import VARIANCE


@dataclass(frozen=True, kw_only=True)
class VarianceCommand(OnCheckpoints):
    """Compare the errors of estimators, and say how large E must be."""

    name = VARIANCE.name
    verb = VARIANCE

    @classmethod
    def analyse(cls, ready: Any) -> Any:
        """The result at a prepared checkpoint."""
        from isentrope.verbs.variance import find_variance

        return find_variance(ready)
