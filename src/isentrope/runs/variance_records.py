"""What results.json of `variance` says of one estimator."""

from __future__ import annotations

from dataclasses import dataclass

from isentrope.runs.result_coding import Number, Value


@dataclass(frozen=True, kw_only=True)
class MethodRecord:
    """One estimator of one quantity.

    Attributes:
        estimate: On the whole of E, with its error.
        variance_ratio: Its variance over that of `prefix`, on the same responses.
        prompts_needed: Of E, for the wanted relative error; NaN where the value may be 0 or its
            weights cannot be trusted.
    """

    estimate: Value
    variance_ratio: Value
    prompts_needed: Number
