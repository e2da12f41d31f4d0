"""Checks that a checkpoint, its sampler and its scorer can be measured, with advice if not."""

from isentrope.checks.checkpoint import Finding, check_adapter, check_optimizer, check_rates
from isentrope.checks.instrument import check_instrument
from isentrope.checks.sampler import check_sampler

__all__ = [
    "Finding",
    "check_adapter",
    "check_instrument",
    "check_optimizer",
    "check_rates",
    "check_sampler",
]
