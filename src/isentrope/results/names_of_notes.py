"""Names that the notes have for numbers of results.json, which calls them otherwise.

The file has their names beside ours, and files of the first version have them alone.
"""

from dataclasses import dataclass
from typing import Any

OF_THE_NOTES = {
    "deltaH_true": "delta_h",
    "deltaH_approx": "first_order",
    "deltaH_second": "second_order",
    "deltaH": "delta_h",
    "deltaJ": "delta_j",
}
"""Our names of what the notes call otherwise; the longer ones first."""


def our_name(name: str) -> str:
    """The name that a column or key of the notes has here."""
    for theirs, ours in OF_THE_NOTES.items():
        name = name.replace(theirs, ours)
    return name


def with_our_names(content: Any) -> Any:
    """Plain content in which keys have our names; a number that has both is ours."""
    if isinstance(content, list):
        return [*map(with_our_names, content)]
    if not isinstance(content, dict):
        return content
    renamed: dict[str, Any] = {}
    for key, part in content.items():
        name = our_name(key)
        if name == key or name not in content:
            renamed[name] = with_our_names(part)
    return renamed


@dataclass(frozen=True)
class AlsoAs:
    """Mark of a type whose numbers are written under names of the notes too.

    Attributes:
        names: Those names.
    """

    names: tuple[str, ...]
