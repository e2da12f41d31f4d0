"""What every test session begins with."""

import gc
import logging

import pytest


@pytest.fixture(autouse=True)
def log_level():
    """Every test begins with the library's own level: configurations of other tests set it."""
    logging.getLogger("isentrope").setLevel(logging.NOTSET)


def pytest_collection_finish():
    """Set aside what collecting has imported.

    Trainers collect garbage at every start, and would look through all of torch each time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
