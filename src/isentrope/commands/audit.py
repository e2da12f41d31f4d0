"""`isentrope audit` on the command line; `verbs.audit` does the work."""

from dataclasses import dataclass
from typing import Any

from isentrope.commands.measuring import OnCheckpoints
from isentrope.results.verbs import AUDIT


@dataclass(frozen=True, kw_only=True)
class AuditCommand(OnCheckpoints):
    """Compare published proxies with the measured influence."""

    name = AUDIT.name
    verb = AUDIT

    @classmethod
    def analyse(cls, ready: Any) -> Any:
        """The result at a prepared checkpoint."""
        from isentrope.verbs.audit import find_audit

        return find_audit(ready)
