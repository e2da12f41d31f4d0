"""What results.json of `variance` says of one estimator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from isentrope.nouns.estimate import Estimate
from isentrope.results.result_coding import OPTIONAL, Value


def _with_its_interval(content: Any) -> Any:
    """A bare number, as files had it before it had an interval, has none."""
    if content is not None and not isinstance(content, int | float):
        return content
    value = math.nan if content is None else float(content)
    return Estimate(value, math.nan, math.nan, math.nan, 0, "prompts", "")


@dataclass(frozen=True, kw_only=True)
class MethodRecord:
    """One estimator of one quantity.

    Attributes:
        estimate: On the whole of E, with its error.
        variance_ratio: Its variance over that of `prefix`, on the same responses.
        prompts_needed: Of E, for the wanted relative error; its value is NaN where the estimate is
            within four errors of 0 or its weights cannot be trusted.
        design_effect: Its variance over that of as many prompts with one response each; None where
            every prompt has one.
    """

    estimate: Value
    variance_ratio: Value
    prompts_needed: Annotated[Value, BeforeValidator(_with_its_interval)]
    design_effect: Annotated[Value | None, OPTIONAL] = None
