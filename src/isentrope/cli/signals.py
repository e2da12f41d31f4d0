"""Signals that stop a verb: Ctrl-C, SIGTERM and SIGHUP.

The verb cleans up, says what is kept, and ends with status 128 + n. The command line alone installs
these handlers; the library leaves signals as they are. A second signal ends the process at once.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAMES = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP"}


class Interrupted(KeyboardInterrupt):
    """A signal has asked the verb to stop.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status that shells expect."""
        return 128 + self.number

    @property
    def cause(self) -> str:
        """The name of the signal, as a user knows it."""
        return _NAMES[signal.Signals(self.number).name]


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise `Interrupted` in this block when a signal asks to stop; ignored signals stay so.

    Yields:
        Nothing.

    Raises:
        Interrupted: In the main thread, at the next step of Python.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    replaced = [n for n in numbers if before[n] not in (signal.SIG_IGN, None)]

    def stop(number: int, frame: Any) -> None:
        for each in replaced:
            signal.signal(each, signal.SIG_DFL)
        raise Interrupted(number)

    for number in replaced:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, before[number])
