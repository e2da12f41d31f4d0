"""What `isentrope plan` is asked for, judged before its libraries load."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from isentrope.results.verbs import COUNTED, INFLUENCE, MEASURE

AFTERWARDS = (MEASURE.name, INFLUENCE.name)
"""Verbs that are planned for the checkpoints of a training that has none yet."""


def planned_verbs(
    kind: str, path: str, verbs: Sequence[str], spread: Mapping[str, Any]
) -> Sequence[str]:
    """The verbs to plan.

    Args:
        kind: Of the configuration.
        path: Where it was read.
        verbs: Those that are asked for; none for all that can be planned.
        spread: Its section with `shard_base`, by name.

    Returns:
        Their names.

    Raises:
        ValueError: If the configuration is of another kind, a verb is not planned, or the base is
            to be spread.
    """
    if kind == "evaluate":
        raise ValueError(f"{path} evaluates, and isentrope plan plans what measures or trains.")
    planned = {MEASURE.name: COUNTED, "train": (kind, *AFTERWARDS)}.get(kind, (kind,))
    if unplanned := [verb for verb in verbs if verb not in planned]:
        near = get_close_matches(unplanned[0], planned, n=1)
        nearest = f": the nearest is {near[0]!r}" if near else ""
        raise ValueError(f"{path} is for {', '.join(planned)}, not for {unplanned[0]}{nearest}.")
    for section, values in spread.items():
        if getattr(values, "shard_base", False):
            raise ValueError(
                f"{section}.shard_base spreads the base over several processes, and a plan is of "
                "one: plan with it false, and take off what the others hold."
            )
    return verbs or planned


def bytes_of(text: str) -> int:
    """A size with its unit in bytes.

    Args:
        text: Such as "16GB" or "24 GiB".

    Returns:
        Bytes.

    Raises:
        ValueError: If it is no such size.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        size = 0
    if size < 1e6:
        raise ValueError(f"--memory {text!r} is not a size: write 16GB, 24GiB or 500MB.")
    return size
