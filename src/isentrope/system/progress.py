"""Progress: one protocol, bars on a terminal, a line every ten seconds elsewhere; and timing.

Where output is no terminal, a verb logs what it does and for how long, whenever ten seconds passed
without a line: in a job's log, silent work looks like work that hangs.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from isentrope.system.formatting import TERMINAL
from isentrope.system.log import log
from isentrope.system.processes import speaks

if TYPE_CHECKING:
    from rich.console import Console


NUMBERS = 36
"""Columns for a bar, the count and the time that is left."""

SILENCE = 10.0
"""Seconds without a line, where output is no terminal, after which there is one."""


class ProgressCallback(Protocol):
    """The callback through which long functions report their progress."""

    def __call__(self, done: int, total: int, stage: str = "", /) -> object:
        """Report progress.

        Args:
            done: Finished pieces of the work.
            total: All pieces of the work.
            stage: Name of the piece that begins, if pieces have names.
        """


def silent(done: int, total: int, stage: str = "", /) -> None:
    """A `ProgressCallback` without output."""


class Progress:
    """Bars for the stages of a measurement; each erases itself when its stage ends.

    As a context manager it is what `progress` gives in its block, and erases the bar of a training
    that stopped early. In the block of a console that is no terminal, it logs a line every ten
    seconds.

    Attributes:
        console: Where they are drawn; None draws nothing.
    """

    def __init__(
        self,
        console: Console | None = None,
        work: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        shown = console is not None and console.is_terminal and speaks()
        self.console = console if shown else None
        self.logs = console is not None and not console.is_terminal and speaks()
        self.work = work
        self._clock = clock
        self._start = clock()
        self._last_line = self._start
        self._last_message = -math.inf
        self._stages: list[str] = []
        self._lines = ExitStack()

    def __enter__(self) -> Progress:
        self._before = _CURRENT.set(self)
        if self.logs:
            self._lines.enter_context(_repeated(self.log_if_silent))
        return self

    def __exit__(self, *error: object) -> None:
        _CURRENT.reset(self._before)
        self.end_lines()

    def end_lines(self) -> None:
        """Log no more lines: the work is done, and what follows waits for others."""
        self._lines.close()

    def log_if_silent(self) -> None:
        """Log what is being done, if the last line was logged ten seconds ago or more."""
        now = self._clock()
        if now - self._last_line < SILENCE:
            return
        self._last_line = now
        parts = [self.work, *self._stages, f"{now - self._start:.0f} s"]
        log.info(" · ".join(part for part in parts if part))

    @contextmanager
    def _stage(self, work: str) -> Iterator[ProgressCallback]:
        """A stage of the lines that are logged, within those that are under way."""
        depth = len(self._stages)
        self._stages.append(work)

        def report(done: int, total: int, stage: str = "", /) -> None:
            self._stages[depth] = f"{_words(work, stage)} {done}/{total}"

        try:
            yield report
        finally:
            del self._stages[depth:]

    @contextmanager
    def bar(self, work: str) -> Iterator[ProgressCallback]:
        """A bar for the duration of a block.

        Args:
            work: A few words on the work; the stage's name is added to them.

        Yields:
            The `ProgressCallback` of the bar.
        """
        if self.logs:
            with self._stage(work) as log_stage:
                yield log_stage
            return
        if self.console is None:
            yield silent
            return
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars
        from rich.table import Column

        columns = (
            TextColumn("{task.description}"),
            BarColumn(10),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
        )
        with Bars(*columns, console=self.console, transient=True) as bars:
            task = bars.add_task(work, total=None)

            def report(done: int, total: int, stage: str = "", /) -> None:
                bars.update(task, completed=done, total=total, description=_words(work, stage))

            yield report

    def log_running(self, message: str, *values: object) -> None:
        """Log a line on work that goes on, unless another was logged less than ten seconds ago.

        Args:
            message: With the placeholders of `logging`.
            values: What stands in their places.
        """
        now = self._clock()
        if now - self._last_message >= SILENCE:
            self._last_message = now
            self._last_line = now
            log.info(message, *values)

    def training(self, steps: int) -> Callable[[dict[str, float]], None]:
        """A line for a training run: reward, entropy, the last reading, tokens per second.

        A reading is ηδH₁, or ΔH where nothing was predicted.

        Returns:
            Called with the metrics of each step.
        """
        reading = ""

        def words(metrics: dict[str, float]) -> list[str]:
            nonlocal reading
            name = "first_order" if "probe/first_order" in metrics else "change"
            if f"probe/{name}" in metrics:
                value, error = (metrics[f"probe/{name}{end}"] for end in ("", "_se"))
                symbol = "ηδH₁" if name == "first_order" else "ΔH"
                reading = (
                    f"{symbol} {TERMINAL.with_error(value, error)} (step {metrics['step']:.0f})"
                )
            parts = "reward {reward:.3f}", "entropy {entropy:.3f}", reading
            speed = "{tokens_per_second:.0f} tokens/s"
            return [part.format(**metrics) for part in (*parts, speed) if part]

        return self._line(steps, words)

    def fine_tuning(self, steps: int) -> Callable[[dict[str, float]], None]:
        """A line for supervised fine-tuning: its loss.

        Returns:
            Called with the metrics of each step.
        """
        return self._line(steps, lambda metrics: [f"loss {metrics['loss']:.3f} nats per token"])

    def _line(
        self, steps: int, words: Callable[[dict[str, float]], list[str]]
    ) -> Callable[[dict[str, float]], None]:
        """A bar that closes itself after the last step; without a console, a line to the log."""
        report: ProgressCallback | None = None

        def observe(metrics: dict[str, float]) -> None:
            nonlocal report
            step = int(metrics["step"])
            parts = words(metrics)
            if self.console is None:
                line = " · ".join(parts)
                log.info("step %d/%d · %s", step, steps, line)
                self._last_line = self._clock()
                return
            if report is None:
                report = self._lines.enter_context(self.bar(""))
            while len(line := " · ".join(parts)) > self.console.width - NUMBERS and parts[1:]:
                parts.pop()
            report(step, steps, line)
            if step >= steps:
                self._lines.close()

        return observe


def _words(work: str, stage: str) -> str:
    """The work, and the piece of it that has begun."""
    return ": ".join(part for part in (work, stage) if part)


@contextmanager
def _repeated(action: Callable[[], None], seconds: float = 1.0) -> Iterator[None]:
    """A block beside which an action is repeated by a thread, so that no work has to call it."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            action()

    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


_CURRENT = ContextVar("progress", default=Progress())  # noqa: B039  outside of a block, no bars


def progress() -> Progress:
    """That of the innermost block `with Progress(…)`; the one without bars where there is none."""
    return _CURRENT.get()


class Clock:
    """Seconds spent in named stages.

    Attributes:
        seconds: By stage, in the order they were entered, and "total".
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block; times of one name add up."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
            self.seconds["total"] = time.perf_counter() - self._start
