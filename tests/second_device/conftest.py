"""Marked tests run where the second device is loaded (`launch.py`); those of verbs on a GPU too."""

import os

import pytest
import torch

from tests.second_device.launch import LIBRARY

collect_ignore = ["site"]


def pytest_collection_modifyitems(items):
    if LIBRARY in os.environ:
        return
    skip = pytest.mark.skip(reason="there is no second device in this process: make second-device")
    for item in items:
        marked = item.get_closest_marker("second_device")
        if marked and not (torch.cuda.is_available() and item.get_closest_marker("gpu")):
            item.add_marker(skip)
