"""The table of an audit: a row per proxy and statistic, which declares its columns."""

from dataclasses import dataclass
from typing import Annotated

from isentrope.nouns.columns import WITH_WARNINGS, Column
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import Absent


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """Agreement of a proxy with the measured influence.

    Attributes:
        proxy: Its name.
        statistic: What is compared.
        top: The share of items that an overlap is of; NaN elsewhere.
        items: Their number.
        estimate: The agreement.
        unit: Whether items are "tokens" or "sequences", where a table has both.
    """

    proxy: Annotated[str, Column()]
    statistic: Annotated[str, Column()]
    top: Annotated[float, Column()]
    items: Annotated[int, Column()]
    estimate: Annotated[Estimate, Column(key="", parts=WITH_WARNINGS)]
    unit: Annotated[Absent[str], Column(key="of")] = None
