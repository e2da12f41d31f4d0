"""What results.json of `influence`, `audit` and `try` says of one quantity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field

from isentrope.nouns.estimate import Estimate
from isentrope.results.former_names import CHANGE_ALIASES, with_names_of_today
from isentrope.results.result_coding import OPTIONAL, Number, Value

IN_FILE = {"itself": "self"}
"""Names in the file of fields that Python cannot name so."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """δ of one quantity per unit η, by the parts of the step.

    Attributes:
        momentum: Decided by earlier batches.
        decay: Of the weights.
        baseline: Both together.
        gradient: Of this batch.
        total: Of the whole step.
        closure: The parts less the total: rounding, and nothing else.
        unit: Of all of them.
    """

    momentum: Value
    decay: Value
    baseline: Value
    gradient: Value
    total: Value
    closure: Number
    unit: str


@dataclass(frozen=True, kw_only=True)
class SharesRecord:
    """The gradient's part of δH₁ on other responses, by how two responses are related.

    Attributes:
        measured_on: Those responses.
        itself: Of a response on itself.
        same_prompt: Of responses to the same prompt.
        other_prompt: Of responses to other prompts.
        gradient: The sum.
    """

    measured_on: str
    itself: Annotated[Value | None, OPTIONAL, Field(alias=IN_FILE["itself"])] = None
    same_prompt: Annotated[Value | None, OPTIONAL] = None
    other_prompt: Annotated[Value | None, OPTIONAL] = None
    gradient: Value


@dataclass(frozen=True)
class ProxyRecord:
    """Proxies against the measured influence.

    Attributes:
        items: Tokens or sequences.
        proxies: Statistics by proxy; those of "measured" are of the influence itself.
    """

    items: int
    proxies: dict[str, dict[str, Value]]


Changes = Annotated[dict[str, Value], BeforeValidator(with_names_of_today), CHANGE_ALIASES]
"""Changes of entropy (delta_h) and reward (delta_j), written with their former names too."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A control at a strength.

    Attributes:
        control: Its name.
        strength: How hard it acts.
        predicted: ηδH₁ of the step, where the strength was looked for.
        did: What it did to the batch.
        step: ΔH and ΔJ of the whole step, and what it gains.
        gradient: The same of the gradient part alone.
        did_gradient: What it did for that part, where it is not the same.
        reasons: Why a correction is missing or cut, by part.
    """

    control: str
    strength: float
    predicted: float | None
    did: dict[str, Number]
    step: Changes
    gradient: Changes
    did_gradient: Annotated[dict[str, Number] | None, OPTIONAL] = None
    reasons: Annotated[dict[str, str] | None, OPTIONAL] = None

    def part(self, name: str) -> dict[str, Estimate]:
        """What was measured of a part of the step."""
        return {"step": self.step, "gradient": self.gradient}[name]
