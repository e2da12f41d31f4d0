"""Damage to nested dictionaries and lists, as JSON and YAML hold them."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any


def _spots(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything below a value."""
    pairs = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in pairs:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from _spots(value, (*path, key))


def _at(content: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        content = content[key]
    return content


def tree_scaled(content: Any, rng: random.Random) -> Any:
    """A number is another one."""
    return _changed(content, rng, (int, float), lambda x: x * rng.choice((-1, 0, 0.5, 2, 1e6, 10)))


def tree_retyped(content: Any, rng: random.Random) -> Any:
    """A value has another type."""

    def other(value: Any) -> Any:
        every = (str(value), [value], {"value": value}, None, True, 0, 1.5, "")
        return rng.choice([x for x in every if type(x) is not type(value)])

    return _changed(content, rng, object, other)


def tree_renamed(content: Any, rng: random.Random) -> Any:
    """A key has another name."""

    def other(value: dict[str, Any]) -> dict[str, Any]:
        old = rng.choice([*value])
        return {(f"{k}_" if k == old else k): v for k, v in value.items()}

    return _changed({"root": content}, rng, dict, other, filled=True)


def tree_deleted(content: Any, rng: random.Random) -> Any:
    """A key or an item is missing."""

    def other(value: Any) -> Any:
        old = rng.choice([*value]) if isinstance(value, dict) else rng.randrange(len(value))
        if isinstance(value, dict):
            return {k: v for k, v in value.items() if k != old}
        return value[:old] + value[old + 1 :]

    return _changed({"root": content}, rng, (dict, list), other, filled=True)


def tree_permuted(content: Any, rng: random.Random) -> Any:
    """The items of a list are in another order."""

    def other(value: list[Any]) -> list[Any]:
        return value[::-1] if len(value) == 2 else rng.sample(value, len(value))

    return _changed({"root": content}, rng, list, other, filled=True)


def tree_swapped(content: Any, rng: random.Random) -> Any:
    """Two keys of an object have each other's value."""

    def other(value: dict[str, Any]) -> dict[str, Any]:
        first, second = rng.choice([*value]), rng.choice([*value])
        return value | {first: value[second], second: value[first]}

    return _changed({"root": content}, rng, dict, other, filled=True)


def _changed(content: Any, rng: random.Random, kind: Any, other: Any, filled: bool = False) -> Any:
    """A copy in which one value of a kind is another one; None if there is none."""
    content = copy.deepcopy(content)
    if not isinstance(content, (dict, list)):
        return None
    spots = []
    for spot in _spots(content):
        value = _at(content, spot)
        number = not isinstance(value, bool) or kind is object
        if isinstance(value, kind) and number and (value or not filled):
            spots.append(spot)
    if not spots:
        return None
    *above, last = rng.choice(spots)
    place = _at(content, tuple(above))
    place[last] = other(place[last])
    return content["root"] if [*content] == ["root"] else content


TREES = (tree_scaled, tree_retyped, tree_renamed, tree_deleted, tree_permuted, tree_swapped)
