"""The tiny checkpoint, one that says how it was trained, and runs with a value of a key."""

import json
import shutil
from functools import cache

import pytest

from isentrope.cli.commands import MEASURING
from isentrope.config.io import load_config
from isentrope.verbs.loop import run_verb
from tests.tiny_checkpoint import own, recorded, settings, tiny

__all__ = ["own", "recorded", "tiny"]


@pytest.fixture
def trained(tiny, tmp_path):
    """A checkpoint with a contract, its data beside it."""
    from tests.verbs.as_trained import contract

    folder = shutil.copytree(tiny, tmp_path / "trained")
    contract(folder)
    return folder


@pytest.fixture(scope="module")
def once(tiny, tmp_path_factory):
    """Run a verb, once for all tests of a module that ask for the same; they only read it."""

    @cache
    def ran(verb, *overrides, of=tiny):
        where = f"output.directory={tmp_path_factory.mktemp('once') / 'run'}"
        done = run_verb(MEASURING[verb], load_config(settings(of), [where, *overrides]))
        (folder, *_) = done.measurements.values()
        return folder, json.loads((folder / "results.json").read_text())

    return ran


@pytest.fixture(scope="module")
def reference():
    """Runs to compare with, by their settings."""
    return {}


@pytest.fixture
def before(run, reference):
    """Observe the run without the value of a key, once for all keys of a module."""

    def observed(given, until=None):
        if (given, until) not in reference:
            reference[given, until] = run(given, until=until)
        return reference[given, until]

    return observed


@pytest.fixture
def pair(run, before):
    """Observe the run without the value of a key, and the run with it."""

    def observed(given, *more, until=None):
        return before(given, until), run(given, *more, until=until)

    return observed
