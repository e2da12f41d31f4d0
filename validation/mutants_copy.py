"""A copy of the repository in which mutants are tested, each in a child of this process."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validation.mutations import Mutant, mutants

PRELOADED = ("torch", "transformers", "peft", "pandas", "pyarrow.parquet", "scipy.stats", "pytest")
PRELOADING_WARNS = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
QUIET = ("-q", "--no-header", "-p", "no:cacheprovider", "-W", PRELOADING_WARNS)
MEMORY = 12 * 2**30
"""Bytes of data a mutant may hold: some of them ask for more than there is."""


def source_root(room: str) -> Path:
    """The sources of a room, in the repository."""
    return Path("src/isentrope", room)


@dataclass(eq=False)
class Noted:
    """A pytest plugin: how long tests took, and the first one that failed."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    failed: str = ""

    def pytest_collectreport(self, report: Any) -> None:
        """A module that cannot be imported fails all of its tests."""
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid} (import)"

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add up setup, call and teardown."""
        self.seconds[report.nodeid] += report.duration
        if report.failed and not self.failed:
            self.failed = report.nodeid


class Copy:
    """A copy of the repository, in which tests run in children of this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True)
        for name in filter(None, listed.stdout.decode().split("\0")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(name, folder / name)

    def modules(self, room: str) -> list[Path]:
        """Modules of a room that hold code."""
        found = sorted((self.folder / source_root(room)).rglob("*.py"))
        return [p.relative_to(self.folder) for p in found if p.name != "__init__.py"]

    def sample(self, path: Path, share: float, seed: int) -> list[Mutant]:
        """A random share of the mutants of a module, at least one, in the order of its lines."""
        every = mutants((self.folder / path).read_bytes())
        chosen = random.Random(f"{seed} {path}").sample(every, math.ceil(share * len(every)))
        return sorted(chosen, key=lambda mutant: mutant.start)

    def test(self, arguments: Sequence[str], seconds: float) -> dict[str, Any] | None:
        """Run pytest in a child; None if it took too long, or died.

        Args:
            arguments: Of pytest.
            seconds: Limit.

        Returns:
            Its status, the test that failed first, and seconds by test.
        """
        answer = self.folder / "answer.json"
        answer.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            self._in_child(arguments, answer)
        end = time.monotonic() + seconds
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None
            time.sleep(0.02)
        return json.loads(answer.read_text()) if answer.exists() else None

    def _in_child(self, arguments: Sequence[str], answer: Path) -> None:
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            log = os.open(self.folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(log, stream)
            os.chdir(self.folder)
            os.environ["PYTHONPATH"] = f"{self.folder / 'src'}:{self.folder}"
            sys.path[:0] = [str(self.folder / "src"), str(self.folder)]
            for name in [n for n in sys.modules if n.partition(".")[0] == "validation"]:
                del sys.modules[name]
            noted = Noted()
            status = int(sys.modules["pytest"].main([*QUIET, *arguments], [noted]))
            found = {"status": status, "failed": noted.failed, "seconds": noted.seconds}
            where = Path(importlib.import_module("isentrope").__file__ or "")
            if self.folder in where.parents:  # and not of the repository itself
                answer.write_text(json.dumps(found))
        except BaseException:  # a mutant may raise anything; the log says what
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def mutated(self, path: Path, mutant: Mutant, test: Callable[[], Any]) -> Any:
        """What a test finds while a module has a mistake."""
        here = self.folder / path
        whole = here.read_bytes()
        compiled = Path(importlib.util.cache_from_source(str(here)))
        try:
            here.write_bytes(mutant.apply(whole))
            compiled.unlink(missing_ok=True)  # two writes in one second look the same to Python
            return test()
        finally:
            here.write_bytes(whole)
            compiled.unlink(missing_ok=True)
