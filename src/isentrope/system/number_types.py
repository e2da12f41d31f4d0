"""Ranges of numbers in options and records, as types that pydantic checks."""

from typing import Annotated

from pydantic import Field

LARGEST_COUNT = 2**31 - 1
LARGEST_REAL = 1e12

Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Positive = Annotated[float, Field(gt=0, le=LARGEST_REAL)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST_REAL)]
