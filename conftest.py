"""What every test session begins with, wherever its tests lie."""

import gc
import logging

import pytest


@pytest.fixture(autouse=True)
def library_log():
    """Every test begins with the library's own log: configurations and scripts change it."""
    log = logging.getLogger("isentrope")
    log.setLevel(logging.NOTSET)
    log.propagate = True


def pytest_collection_finish():
    """Set aside what collecting has imported.

    Trainers collect garbage at every start, and would look through all of torch each time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
