"""What modules hold beside their weights, put back after passes of this library.

A module may assign in its forward pass: a cache of rotary angles, a counter, indices moved to a
device. In a pass of forward mode what it assigns has a tangent, and outside of the pass nothing
can be done with it, saving the model included. So attributes and buffers are put back after each
pass, whether or not it succeeds, and in training the values of buffers too.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import operator
from collections.abc import Generator
from contextlib import contextmanager
from itertools import chain
from types import FunctionType, MethodType, ModuleType
from typing import Any, Self

import torch
from torch import Tensor, nn

from isentrope.parallel.sharded import is_sharded

_OF_TORCH = frozenset(vars(nn.Module()))
"""What every module has: its mode, hooks, parameters, buffers and parts."""

_TABLES = ("_parameters", "_buffers", "_modules")

_NO_STATE = (type, FunctionType, MethodType, ModuleType, nn.Module, Tensor, torch.dtype)

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
"""Types of what holds nothing else, which most attributes are."""

Saved = list[tuple[Any, Any]]
"""Containers, each with a copy of what it held; the attributes of an object are a dictionary."""


class KeptAttributes:
    """A block after which modules have the attributes, buffers and parts that they had before.

    Lists, dictionaries, sets and objects of the model's own code that they hold are put back as
    well. Tensors are not copied. The block may be entered again and again, which costs a fifth of
    making it: what modules have after each is what they had when it was made.
    """

    def __init__(self, model: nn.Module) -> None:
        """Look at what modules have.

        Args:
            model: Any model.
        """
        modules = list_modules(model)
        packages = {type(module).__module__.partition(".")[0] for module in modules}
        packages = packages - {"torch"} | {"types"}
        saved: Saved = []
        visited: set[int] = set()
        unread: list[Any] = []
        for module in modules:
            attributes = {k: x for k, x in vars(module).items() if k not in _OF_TORCH}
            saved.append((module, attributes))
            unread += attributes.values()
            tables: list[dict[str, Any]] = [vars(module)[name] for name in _TABLES]
            # FSDP replaces the parameters of a layer itself, when it gathers and when it drops them
            if any(map(is_sharded, tables[0].values())):
                del tables[0]
            saved += [(x, dict(x)) for x in tables]
        while unread:
            container = unread.pop()
            if (
                type(container) in _PLAIN
                or id(container) in visited
                or isinstance(container, _NO_STATE)
            ):
                continue
            content = _copy_content(container, packages)
            if content is None:
                continue
            visited.add(id(container))
            if not isinstance(container, tuple):
                saved.append((container, content))
            unread += content.values() if isinstance(content, dict) else content
        self._saved = saved  # each container once, with a shallow copy
        self._tables = [x if isinstance(x, (dict, list, set)) else vars(x) for x, _ in saved]
        self._before = _identify_contents(self._tables)

    def __enter__(self) -> Self:
        """Begin a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Put back what differs."""
        # comparing container by container takes as long as the pass of a layer
        if _identify_contents(self._tables) != self._before:
            for container, content in self._saved:
                _put_back(container, content)


@contextmanager
def buffers_kept(model: nn.Module) -> Generator[None]:
    """A block after which buffers have the values that they had before.

    Args:
        model: Any model.

    Yields:
        Nothing.
    """
    saved = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, values in saved:
                if buffer.shape == values.shape and not torch.equal(buffer, values):
                    buffer.copy_(values)


def list_modules(model: nn.Module) -> list[nn.Module]:
    """A module and all its parts, each once: torch's own walk takes as long as a layer's pass."""
    modules = [model]
    visited = {id(model)}
    for module in modules:
        for part in vars(module)["_modules"].values():
            if part is not None and id(part) not in visited:
                visited.add(id(part))
                modules.append(part)
    return modules


def shares_trained_parameters(model: nn.Module) -> bool:
    """Whether two modules hold one parameter that is trained, such as a tied output embedding."""
    tables = [vars(module)["_parameters"].values() for module in list_modules(model)]
    trained = [id(p) for p in chain.from_iterable(tables) if p is not None and p.requires_grad]
    return len(set(trained)) < len(trained)


def _copy_content(container: Any, packages: set[str]) -> Any:
    """A shallow copy of what a container holds; None of what is no container."""
    if isinstance(container, dict):
        return dict(container)
    if isinstance(container, (list, set, tuple)):
        return list(container)
    of_model = type(container).__module__.partition(".")[0] in packages
    return dict(vars(container)) if of_model and hasattr(container, "__dict__") else None


def _identify_contents(tables: list[Any]) -> tuple[list[int], list[int]]:
    """How many things each container holds, and which: the copies keep these, and so their ids."""
    # one view at a time: a list of them makes the collector of garbage look through the process
    values = (table.values() for table in tables if isinstance(table, dict))
    contents = chain(chain.from_iterable(tables), chain.from_iterable(values))
    return [*map(len, tables)], [*map(id, contents)]


def _put_back(container: Any, content: Any) -> None:
    """Give a container what it held, where it holds something else."""
    if isinstance(container, (dict, nn.Module)) or isinstance(content, dict):
        table: dict[str, Any] = container if isinstance(container, dict) else vars(container)
        free = _OF_TORCH if isinstance(container, nn.Module) else frozenset[str]()
        for key in [k for k in table if k not in content and k not in free]:
            del table[key]
        if any(key not in table or table[key] is not x for key, x in content.items()):
            table.update(content)
    elif isinstance(container, set):
        if container != set(content):
            container.clear()
            container.update(content)
    elif len(container) != len(content) or any(map(operator.is_not, container, content)):
        container[:] = content
