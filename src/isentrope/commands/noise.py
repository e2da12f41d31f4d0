"""`isentrope noise` on the command line; `verbs.noise` does the work."""

from dataclasses import dataclass
from typing import Any

from isentrope.commands.measuring import OnCheckpoints
from isentrope.results.verbs import NOISE


@dataclass(frozen=True, kw_only=True)
class NoiseCommand(OnCheckpoints):
    """Measure the noise scale of the gradient, and of entropy."""

    name = NOISE.name
    verb = NOISE

    @classmethod
    def analyse(cls, ready: Any) -> Any:
        """The result at a prepared checkpoint."""
        from isentrope.verbs.noise import find_noise

        return find_noise(ready)
