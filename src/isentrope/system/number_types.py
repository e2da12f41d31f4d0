"""Ranges of numbers in options and records, as types that pydantic checks.

They are used in strict mode: true and "3" are not numbers, and 3.0 is not a count.
"""

from typing import Annotated

from pydantic import ConfigDict, Field

OPTIONS = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""Options are numbers and strings of the stated type; unknown options are refused."""

LARGEST_COUNT = 2**31 - 1
LARGEST_SEED = 2**32 - 1
LARGEST_REAL = 1e12
MOST_TIMES = 10**6
MOST_REPEATS = 1000

Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
"""A size, or a limit to one."""
Whole = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Times = Annotated[int, Field(ge=1, le=MOST_TIMES)]
"""How often something is done: each one is work."""
NoneOrMore = Annotated[int, Field(ge=0, le=MOST_TIMES)]
Several = Annotated[int, Field(ge=2, le=MOST_TIMES)]
Repeats = Annotated[int, Field(ge=1, le=MOST_REPEATS)]
"""Whole measurements; more are made from another `first_repeat`."""
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]

Real = Annotated[float, Field(ge=-LARGEST_REAL, le=LARGEST_REAL)]
Positive = Annotated[float, Field(gt=0, le=LARGEST_REAL)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST_REAL)]
Rate = Annotated[float, Field(gt=0, le=1e9)]
"""A learning rate."""
Temperature = Annotated[float, Field(ge=1e-6, le=1e6)]

Share = Annotated[float, Field(ge=0, le=1)]
Part = Annotated[float, Field(gt=0, le=1)]
"""A share that is not 0."""
OpenShare = Annotated[float, Field(gt=0, lt=1)]
"""A share that is neither 0 nor 1."""
Decay = Annotated[float, Field(ge=0, lt=1)]
"""A share that is not 1."""
Signed = Annotated[float, Field(ge=-1, le=1)]
