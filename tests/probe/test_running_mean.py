import json

import numpy as np
import pytest

from isentrope.probe.kept_gradient import RunningMean


def test_it_is_the_weighted_mean_and_its_error():
    x, se, beta = [1.0, 3.0, -2.0], [0.1, 0.5, 0.2], 0.7
    mean = RunningMean(beta)
    for pair in zip(x, se, strict=True):
        mean.update(*pair)
    w = beta ** np.arange(2, -1, -1)
    assert mean.value == pytest.approx(w @ x / w.sum())
    assert mean.se == pytest.approx(np.sqrt((w**2) @ np.square(se)) / w.sum())


def test_its_error_covers_as_stated():
    rng, covered = np.random.default_rng(0), 0
    for _ in range(2000):
        mean = RunningMean(0.8)
        for se in rng.uniform(0.5, 2, 30):
            mean.update(4.0 + se * rng.normal(), se)
        covered += abs(mean.value - 4.0) < 1.96 * mean.se
    assert 0.935 < covered / 2000 < 0.965


def test_a_restored_mean_goes_on_to_the_bit():
    mean, again = RunningMean(), RunningMean()
    mean.update(0.1, 0.3)
    again.load_state_dict(json.loads(json.dumps(mean.state_dict())))
    for one in (mean, again):
        one.update(0.7, 0.2)
    assert (again.value, again.se) == (mean.value, mean.se)
