"""What results.json of `isentrope entropies` says of one definition on one batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from isentrope.results.result import Result
from isentrope.results.result_coding import OPTIONAL, Value


@dataclass(frozen=True, kw_only=True)
class EntropyRecord:
    """One definition of entropy on one batch.

    Attributes:
        batch: "E" or "U".
        definition: A key of `cli.entropies_table.WORDS`.
        value: Over the responses of the batch.
        difference: The value minus the exact one, which is `per_token` on E; None where its unit
            is another.
        agrees: Whether the logged value is this one within errors; None where none is known.
    """

    batch: str
    definition: str
    value: Value
    difference: Annotated[Value | None, OPTIONAL] = None
    agrees: Annotated[bool | None, OPTIONAL] = None


@dataclass(frozen=True, kw_only=True)
class EntropiesResult(Result):
    """Every definition of entropy at one checkpoint. Table: entropies.

    Attributes:
        logged: What the trainer logged; None where it is not known.
        logged_from: Where that was found.
        rows: One per batch and definition.
    """

    verb: ClassVar[str] = "entropies"

    logged: float | None
    logged_from: str | None
    rows: tuple[EntropyRecord, ...]
