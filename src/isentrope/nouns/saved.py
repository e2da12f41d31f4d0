"""Types of fields of dataclasses that results.json holds, where the type alone does not say how.

A result is written as its dataclasses are: a field is a key. NaN is null in the file, and null is
NaN again wherever a number is wanted (`results.result`).
"""

import math
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from pydantic import Field, GetPydanticSchema
from pydantic_core import CoreSchema, core_schema
from torch import Tensor

_T = TypeVar("_T")

Absent = Annotated[_T | None, Field(exclude_if=lambda value: value is None)]
"""A field whose key is absent from the file where its value is None."""

_Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]


def _save_as_list(_: Any, handler: Any) -> CoreSchema:
    """The schema of a tensor that is a list in the file."""
    return core_schema.no_info_after_validator_function(
        lambda numbers: torch.from_numpy(np.array([math.nan if x is None else x for x in numbers])),
        handler.generate_schema(list[_Whole] | list[float | None]),
        serialization=core_schema.plain_serializer_function_ser_schema(Tensor.tolist),
    )


Numbers = Annotated[Tensor, GetPydanticSchema(_save_as_list)]
"""(n,) numbers, a list in the file."""
