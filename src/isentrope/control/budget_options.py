"""Options of an entropy budget."""

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from isentrope.control.base import Count, Positive, options
from isentrope.nouns.choices import Per, PerOption, require_per
from isentrope.system.one_line import changed_fields, one_line

GROUPS_PER_SAMPLE = 4
"""Groups of prompts per sample of a single correction, over which errors are computed."""


@options
class BudgetOptions(PerOption):
    """Options of an entropy budget.

    Attributes:
        strength: Share of the predicted change of entropy that is cancelled, s.
        largest: Bound on ‖λu‖ as a multiple of ‖v‖, in the norm √<x, P⁻¹x>.
        range: Bound on |ηλc|, the change of entropy by the correction, beyond the step's own change
            ηv, as a share of the entropy.
        per: "sequence", nats per response, or "token": a ratio, which shorter responses hold too;
            `functional` in files, per_sequence or per_token.
        where: The class of positions whose entropy counts: "first token", "high entropy", "solved
            prompt", "unsolved prompt", or a regular expression between slashes that the response
            so far ends in; None for all.
        size: Responses of a step that serve for gradients; the level is that of all.
        every: Steps from one reading of gradients to the next; between them the effects of the
            step and of u are those last read, and the level is new.
        average: Readings over which the entropy gradient of u is averaged; 1 for the last.
    """

    targetable: ClassVar[bool] = True
    multiples: ClassVar[tuple[float, ...]] = (0.25, 0.5, 1.0)

    strength: Positive = 1.0
    largest: Positive = 1.0
    range: Positive = 0.2
    per: Annotated[Per, BeforeValidator(require_per)] = "sequence"
    where: Annotated[str, Field(min_length=1)] | None = None
    size: Annotated[int, Field(ge=4 * GROUPS_PER_SAMPLE)] = 64
    every: Count = 2
    average: Count = 8

    def __repr__(self) -> str:
        return one_line(self, *changed_fields(self))
