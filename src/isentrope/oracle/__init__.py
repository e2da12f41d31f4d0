"""Exact answers by enumeration, against which every estimator is checked (T12)."""

from isentrope.oracle.enumerate import ExactPolicy, enumerate_policy
from isentrope.oracle.tabular import TabularPolicy

__all__ = ["ExactPolicy", "TabularPolicy", "enumerate_policy"]
