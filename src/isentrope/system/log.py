"""The library's logger, and the warnings of other libraries that its users can do nothing about."""

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager

log = logging.getLogger("isentrope")


def hide_library_notes() -> None:
    """Show no FutureWarning with which transformers, PEFT and torch address each other."""
    warnings.filterwarnings(
        "ignore", category=FutureWarning, module=r"(transformers|peft|torch\.jit)\b"
    )


@contextmanager
def quiet_libraries() -> Generator[None]:
    """A block without those warnings; afterwards they are shown as before.

    Yields:
        Nothing.
    """
    with warnings.catch_warnings():
        hide_library_notes()
        yield
