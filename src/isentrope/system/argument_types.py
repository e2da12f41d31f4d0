"""Arguments of another class than a public function names are refused with a message."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from inspect import Parameter, signature
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

_UNDECIDED = (int, float, bool, complex, object, Any, Tensor)
"""What numbers and arrays of other libraries, or all objects, stand in for."""
_WIDER: dict[type, Any] = {Path: PathLike, dict: Mapping, tuple: Sequence}
"""What does as well as a class that is named."""
_MAKERS = {
    "Policy": "Checkpoint.policy and ise.Policy(model, ...) make one",
    "Rollouts": "ise.sample, Checkpoint.draw and ise.Rollouts.load make them",
    "Step": "Checkpoint.step and ise.optimizer_step make one",
    "Task": "ise.load_task makes one",
    "dict": "tensors by names of parameters, as step.direction",
}
"""Where the objects of a class come from."""


def refuse_other_types(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function refuse arguments of another class than its signature names.

    Numbers, literals and what else no class decides are left to the function.

    Args:
        function: A public function or method, or the `__init__` of a public class.

    Returns:
        The function, which raises TypeError then.
    """

    @cache
    def classes() -> dict[str, tuple[type, ...]]:
        annotations = get_type_hints(function)
        return {x: _classes_of(annotations[x]) for x in single if x in annotations}

    parameters = signature(function)
    several = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    single = [name for name, p in parameters.parameters.items() if p.kind not in several]

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in parameters.bind(*args, **kwargs).arguments.items():
            kinds = classes().get(name)
            if kinds and not _is_one(value, kinds):
                makes = function.__name__ == "__init__"  # a user calls the class
                called = type(args[0]).__name__ if makes else function.__name__
                raise TypeError(_refusal(called, name, value, kinds))
        return function(*args, **kwargs)

    return checked


def _classes_of(annotation: Any) -> tuple[type, ...]:
    """The classes that an annotation names; none where classes do not decide."""
    origin = get_origin(annotation) or annotation
    if origin in (Union, UnionType):
        members = [_classes_of(member) for member in get_args(annotation)]
        return tuple(kind for kinds in members for kind in kinds) if all(members) else ()
    if not isinstance(origin, type) or origin in _UNDECIDED:
        return ()
    protocol = getattr(origin, "_is_protocol", False)
    return () if protocol and not getattr(origin, "_is_runtime_protocol", False) else (origin,)


def _is_one(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a value is of one of the classes, or does as well."""
    if Sequence in kinds and isinstance(value, Iterable) and not isinstance(value, (str, Mapping)):
        return True
    return isinstance(
        value, tuple(_WIDER.get(kind, kind) for kind in kinds if kind is not Sequence)
    )


def _refusal(function: str, name: str, value: Any, kinds: tuple[type, ...]) -> str:
    """What was given, and what is needed."""
    names = [kind.__name__ for kind in kinds if kind is not NoneType]
    shown = "None" if value is None else f"an object of class {type(value).__name__}"
    makers = [_MAKERS[kind] for kind in names if kind in _MAKERS]
    cure = f" ({makers[0]})" if makers else ""
    return f"{function}: {name} is {shown}, and has to be {' or '.join(names)}{cure}."
