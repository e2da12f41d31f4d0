"""One run of a verb, observed: its numbers, its files, and its calls of the rooms below."""

import json
import logging
import shutil
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow.parquet as pq
import torch

from isentrope import GradientOptions, Precision
from isentrope.attribution.gradients.storage_plan import Storage
from isentrope.checkpoint import facts
from isentrope.cli.commands import MEASURING
from isentrope.config.io import load_config
from isentrope.sampling.batches import Groups
from isentrope.sampling.tasks import load as loaded_tasks
from isentrope.verbs import batches, kernel_block
from isentrope.verbs import prepare as preparation
from isentrope.verbs.loop import run_verb
from tests.tiny_checkpoint import settings

CALLED = {  # and where each is called from
    "from_checkpoint": [facts.Policy],
    "load_task": [loaded_tasks],
    "update_batch": [batches],
    "respond": [batches],
    "at_precision": [batches, preparation],
    "fisher_kernel": [kernel_block],
    "setLevel": [logging.getLogger("isentrope")],
}
ECHOES = ("policy", "timing", "seconds", "provenance", "estimator", "settings")


class ReachedError(BaseException):
    """The call that a test waits for; no handler of errors takes it for one."""


@dataclass(frozen=True)
class Observed:
    """What a run left behind.

    Attributes:
        numbers: Every number of results.json that is not an echo of the settings, by its place.
        files: Places and names without times; of JSON files their keys, of tables their columns.
        calls: Names and settings of the calls of `CALLED`.
    """

    numbers: dict[str, float]
    files: list[list[str]]
    calls: list[tuple[str, str]]

    def differences(self, other):
        """Names of the fields in which another run differs, numbers by more than rounding."""
        names = [f.name for f in fields(self) if f.name != "numbers"]
        found = {name for name in names if getattr(self, name) != getattr(other, name)}
        return found | ({"numbers"} if other_numbers(self.numbers, other.numbers) else set())


def other_numbers(one, other, rounding=1e-5):
    """Places of numbers that one has alone, or that differ by more than rounding."""
    both = one.keys() & other.keys()
    apart = {x for x in both if abs(one[x] - other[x]) > rounding * max(abs(one[x]), 1e-3)}
    return apart | (one.keys() ^ other.keys())


def observe(tiny, folder, overrides, monkeypatch, *, verb="measure", until=None):
    """Run a verb in a fresh folder, to its end or until a function is called."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    calls = []
    try:
        with monkeypatch.context() as patch:
            spy(patch, calls, CALLED, until)
            config = load_config(settings(tiny), [o.replace("@", str(tiny)) for o in overrides])
            run_verb(MEASURING[verb], config)
        assert until is None, f"the run ended without a call of {until}"
    except ReachedError:
        pass
    found = sorted((*written(folder), *written(tiny / "elsewhere")))
    shutil.rmtree(tiny / "elsewhere", ignore_errors=True)
    results = {} if until else dict(numbers_of(folder))
    return Observed(results, found, calls)


def numbers_of(folder):
    """(place, number) of all results.json of a run."""
    for path in sorted(folder.rglob("results.json")):
        content = json.loads(path.read_text())
        kept = {k: v for k, v in content.items() if k not in ECHOES}
        yield from leaves(kept, path.parent.name)


def leaves(content, place):
    """(place, number) of a nested content."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from leaves(value, f"{place}/{key}")
    elif isinstance(content, list):
        for i, value in enumerate(content):
            yield from leaves(value, f"{place}/{i}")
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield place, float(content)


def written(folder):
    for path in folder.rglob("*"):
        if path.is_file():
            where = [part.split("_20")[0] for part in path.relative_to(folder.parent).parts[1:]]
            elsewhere = [folder.name] if folder.name == "elsewhere" else []
            yield [*elsewhere, *where, *kept_in(path)]


def kept_in(path: Path):
    """Keys of a JSON file, columns of a table."""
    if path.suffix == ".json":
        return sorted(json.loads(path.read_text()))
    return pq.read_schema(path).names if path.suffix == ".parquet" else []


def spy(patch, calls, called, until):
    """Note the calls of functions, {name: where each is called from}, and end at one of them."""
    for name, owners in called.items():
        for owner in owners:
            patch.setattr(owner, name, noted(calls, name, getattr(owner, name), name == until))


def noted(calls, name, original, last):
    def wrapper(*args, **kwargs):
        calls.append((name, json.dumps([args, kwargs], default=plain)))
        if last:
            raise ReachedError
        return original(*args, **kwargs)

    return wrapper


def plain(value):
    """A setting as it is; any other object by its kind."""
    if isinstance(value, Groups | Precision | GradientOptions | Storage):
        return vars(value)
    if isinstance(value, torch.Generator):
        return value.initial_seed()
    return str(value) if isinstance(value, Path) else type(value).__name__
