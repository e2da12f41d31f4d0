"""One runner for every verb that leaves a folder per checkpoint: what is there stays.

    plan     the items of a configuration, once the run folder is locked
    earlier  what an earlier run left of an item; compared with what would be made now
    make     what is not there yet
    join     tables over all items

A run that was stopped is run again: what is done with the same settings and from the same files is
read, once, and the rest is made. What this process makes is not read back.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from isentrope.checkpoint.checkpoint import StoredCheckpoint
from isentrope.results.result import item_name
from isentrope.run.identity import Identity, require_same
from isentrope.run.lock import noted_if_interrupted, one_writer
from isentrope.system.log import log

_Settings = TypeVar("_Settings")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Item(Generic[_Settings]):
    """One checkpoint, with one update batch where a verb draws them: one folder of results.

    Attributes:
        checkpoint: The checkpoint.
        settings: What to do for this item alone.
        target: The folder of its results.
        identity: What they are made with.
        repeat: Which update batch, from 0.
    """

    checkpoint: StoredCheckpoint
    settings: _Settings
    target: Path
    identity: Identity
    repeat: int = 0

    @property
    def name(self) -> str:
        """step_40, or step_40_repeat_2."""
        return item_name(self.checkpoint.name, self.repeat)


@dataclass(frozen=True)
class Earlier(Generic[_Result]):
    """What an earlier run left in the folder of an item.

    Attributes:
        identity: What it was made with.
        result: None where the item was not finished.
    """

    identity: Identity
    result: _Result | None


@dataclass(frozen=True)
class Run(Generic[_Result]):
    """What a run of a verb made, or found made.

    Attributes:
        folder: The run folder.
        measurements: Name of each item → the folder of its results.
        results: In that order.
    """

    folder: Path
    measurements: dict[str, Path]
    results: list[_Result]


class Runner(ABC, Generic[_Settings, _Result]):
    """Makes the results of a configuration that are not there yet.

    Attributes:
        folder: The run folder.
    """

    def __init__(self, folder: Path, inputs: Iterable[str | Path]) -> None:
        """Nothing is read or written yet.

        Args:
            folder: The run folder.
            inputs: What is read, which the folder must be apart from.
        """
        self.folder = folder
        self._inputs = list(inputs)

    @abstractmethod
    def plan(self) -> list[Item[_Settings]]:
        """The items, in the order in which they are made; nobody else writes meanwhile."""

    @abstractmethod
    def earlier(self, item: Item[_Settings]) -> Earlier[_Result] | None:
        """What an earlier run left of an item; None where there is nothing."""

    @abstractmethod
    def make(self, item: Item[_Settings]) -> _Result:
        """Make an item and write it."""

    @abstractmethod
    def join(self, items: list[Item[_Settings]], results: list[_Result]) -> None:
        """Write the tables over all items; called with those that are done, after each."""

    def compare(self, item: Item[_Settings], earlier: Earlier[_Result]) -> None:
        """Refuse an earlier run that had other settings or other files."""
        require_same(item.target, earlier.identity, item.identity)

    def how_to_go_on(self, items: list[Item[_Settings]]) -> str | None:
        """A sentence for those who stop the run; None for that of the command."""
        return None

    def run(self) -> Run[_Result]:
        """Make what is not there.

        Returns:
            The folders and the results of all items.
        """
        with one_writer(self.folder, self._inputs):
            items = self.plan()
            finished: dict[Path, _Result] = {}
            for item in items:
                earlier = self.earlier(item)
                if earlier is None:
                    continue
                self.compare(item, earlier)
                if earlier.result is not None:
                    finished[item.target] = earlier.result
            if finished:
                log.info("%d of %d are done already", len(finished), len(items))
            results: list[_Result] = []
            with noted_if_interrupted(lambda: self.how_to_go_on(items)):
                for item in items:
                    is_finished = item.target in finished
                    results.append(finished[item.target] if is_finished else self.make(item))
                    self.join(items[: len(results)], results)
        measurements = {item.name: item.target for item in items}
        return Run(self.folder, measurements, results)
