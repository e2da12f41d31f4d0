"""What every test session begins with."""

import gc


def pytest_collection_finish():
    """Set aside what collecting has imported.

    Trainers collect garbage at every start, and would look through all of torch each time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
