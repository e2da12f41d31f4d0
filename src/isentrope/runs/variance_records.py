"""What results.json of `variance` says of one estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from isentrope.runs.result_coding import OPTIONAL, Number, Value


@dataclass(frozen=True, kw_only=True)
class MethodRecord:
    """One estimator of one quantity.

    Attributes:
        estimate: On the whole of E, with its error.
        variance_ratio: Its variance over that of `prefix`, on the same responses.
        prompts_needed: Of E, for the wanted relative error; NaN where the value may be 0 or its
            weights cannot be trusted.
        design_effect: Its variance over that of as many prompts with one response each; None where
            every prompt has one.
    """

    estimate: Value
    variance_ratio: Value
    prompts_needed: Number
    design_effect: Annotated[Value | None, OPTIONAL] = None
