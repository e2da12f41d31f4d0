"""The jackknife written out: a statistic without each prompt in turn."""

import numpy as np


def errors_of_dropping(prompts, statistic):
    """Errors of a statistic, given which sequences are kept."""
    values = np.array([statistic(prompts != p) for p in prompts.unique()])
    n = len(values)
    return ((n - 1) / n * ((values - values.mean(0)) ** 2).sum(0)) ** 0.5
