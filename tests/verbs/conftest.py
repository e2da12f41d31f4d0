"""The tiny checkpoint, and runs without and with a value of a key."""

import pytest

from tests.tiny_checkpoint import tiny

__all__ = ["tiny"]


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
