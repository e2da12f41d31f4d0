"""`isentrope kernel` on the command line; `verbs.kernel` does the work."""

from dataclasses import dataclass
from typing import Any

from isentrope.commands.measuring import OnCheckpoints
from isentrope.results.verbs import KERNEL


@dataclass(frozen=True, kw_only=True)
class KernelCommand(OnCheckpoints):
    """Compute the Fisher kernel: how a response moves other responses."""

    name = KERNEL.name
    verb = KERNEL

    @classmethod
    def analyse(cls, ready: Any) -> Any:
        """The result at a prepared checkpoint."""
        from isentrope.verbs.kernel import find_kernel

        return find_kernel(ready)
