"""Hooks that never end a training run: the first error switches their observer off."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

Hook = Callable[..., None]


class Observer(Protocol):
    """What has such hooks.

    Attributes:
        off: Whether it has been switched off.
    """

    off: bool

    def switch_off(self, step: int, error: Exception) -> None:
        """Say why, and do nothing from that step on."""


def never_raising(hook: Hook) -> Hook:
    """A hook that switches its observer off at its first error."""

    @wraps(hook)
    def guarded(self: Observer, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.off:
            return
        try:
            hook(self, args, state, control, **kwargs)
        except Exception as error:
            self.switch_off(state.global_step + 1, error)

    return guarded
