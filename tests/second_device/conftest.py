"""Tests of this folder that are marked run where the second device is loaded (`launch.py`)."""

import os

import pytest

from tests.second_device.launch import LIBRARY

collect_ignore = ["site"]


def pytest_collection_modifyitems(items):
    if LIBRARY in os.environ:
        return
    reason = "there is no second device in this process: make second-device"
    for item in items:
        if item.get_closest_marker("second_device"):
            item.add_marker(pytest.mark.skip(reason=reason))
