"""Limits on what a pass holds at once beside its micro-batch, in one place for dry runs.

A dry run reads a small share of a micro-batch. Its limits are the same share of what they are, so
that what it holds is in proportion to what the whole micro-batch would.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_SHARE: ContextVar[float] = ContextVar("_SHARE", default=1.0)


def at_once(limit: int) -> int:
    """A limit on numbers held at once: in a dry run a share of it."""
    return max(1, int(limit * _SHARE.get()))


@contextmanager
def share_of_limits(share: float) -> Generator[None]:
    """A block of a dry run.

    Args:
        share: Of the real micro-batch that its own has.

    Yields:
        Nothing.
    """
    token = _SHARE.set(share)
    try:
        yield
    finally:
        _SHARE.reset(token)
