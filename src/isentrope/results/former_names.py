"""Former names of the change of entropy in files, which are read as those of today.

    sweep        deltaH_true → delta_h, deltaH_approx → first_order, deltaH_second → second_order
    influence    deltaH → delta_h, deltaJ → delta_j
    try          the same, with gained_ or over_random_ before it

and _se, _ci_low or _ci_high behind each. results.json has the former names too, as aliases with the
same values. Tables have those of today alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import SerializerFunctionWrapHandler, WrapSerializer

_SWEEP = {
    "deltaH_true": "delta_h",
    "deltaH_approx": "first_order",
    "deltaH_second": "second_order",
}
_CHANGES = {"deltaH": "delta_h", "deltaJ": "delta_j"}
_TODAY = _SWEEP | _CHANGES
_FORMER = re.compile("|".join(_TODAY))  # the longer ones first


def today(name: str) -> str:
    """The name that a column or key has today."""
    return _FORMER.sub(lambda found: _TODAY[found[0]], name)


def with_names_of_today(content: Any) -> Any:
    """An object of results.json without former names; anything else as it is."""
    if not isinstance(content, Mapping):
        return content
    return {today(key): value for key, value in content.items()}


def _aliases(names: Mapping[str, str]) -> WrapSerializer:
    """Writes each of these numbers under its former name too."""
    former = {new: old for old, new in names.items()}
    pattern = re.compile("|".join(former))

    def write(content: Any, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written = handler(content)
        return written | {
            pattern.sub(lambda found: former[found[0]], key): value
            for key, value in written.items()
        }

    return WrapSerializer(write)


SWEEP_ALIASES = _aliases(_SWEEP)
"""Of a row of a sweep."""
CHANGE_ALIASES = _aliases(_CHANGES)
"""Of the changes of entropy and reward by one step."""
