"""Policies crossed with what an entropy is per."""

import pytest

from tests import cases


def by_turns(names):
    """(name, per): each name with one of the two in turn; its other pair is a slow test."""
    return [
        (name, per) if i % 2 == k else pytest.param(name, per, marks=pytest.mark.slow)
        for i, name in enumerate(names)
        for k, per in enumerate(cases.PERS)
    ]
