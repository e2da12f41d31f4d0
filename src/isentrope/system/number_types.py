"""Ranges of numbers in options and records, as types that pydantic checks."""

from typing import Annotated

from pydantic import ConfigDict, Field

LARGEST_COUNT = 2**31 - 1
LARGEST_REAL = 1e12

Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Positive = Annotated[float, Field(gt=0, le=LARGEST_REAL)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST_REAL)]

OPTIONS = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""Options are numbers and strings of the stated type; unknown options are refused."""
