from dataclasses import replace
from math import inf, nan

import numpy as np
import pandas as pd
import pytest

from isentrope import Estimate
from isentrope.reports.panel import Panel, Source, difference, differences
from isentrope.results.answers.blocks import with_interval
from isentrope.results.header import Provenance
from tests.reports import made_up


def estimate(*args, **more):
    content = made_up.estimate(*args, **more)
    return Estimate(**{k: nan if v is None else v for k, v in content.items()})


def test_no_interval_is_said_and_not_left_out():
    assert with_interval(estimate(2.0, 0.1)) == "2 [1.8,\u00a02.2]"
    assert "no interval" in with_interval(estimate(2.0, 0.1, interval=False))
    assert with_interval(None) == "–"


def test_the_difference_of_two_runs_covers_the_truth():
    draw, covered, trials, n = np.random.default_rng(0), 0, 2000, 10
    for _ in range(trials):
        one, two = draw.normal(size=n), draw.normal(size=n, scale=3)
        both = [estimate(x.mean(), x.std(ddof=1) / np.sqrt(n), n) for x in (one, two)]
        covered += difference(*both).covers(0.0)
    assert 0.93 < covered / trials < 0.97


def test_without_an_interval_there_is_no_difference():
    known = estimate(1.0, 0.1)
    assert difference(known, estimate(1.0, 0.1, interval=False)) is None
    assert difference(known, replace(known, n=0)) is None
    assert difference(known, replace(known, ci_high=inf)) is None


def test_the_difference_of_two_ratios_keeps_the_shape_of_their_intervals():
    """A ± t SE of a ratio covers nothing; Fieller's ends are used as they are."""
    one, two = (Estimate(x, nan, x / 2, 4 * x, 16, "η", "Fieller") for x in (1.0, 8.0))
    found = difference(one, two)
    assert (found.ci_low, found.ci_high) == pytest.approx((7 - 5, 7 + np.hypot(24, 0.5)))


def panel(rng, shift, key, noise):
    """A number that is the mean over prompts of a part of theirs and one of the run's."""
    own = shift + np.random.default_rng(key).normal(size=40) + noise * rng.normal(size=40)
    influences = pd.Series((own - own.mean()) / 40, [f"{key}/{i}" for i in range(40)])
    found = estimate(own.mean(), own.std(ddof=1) / np.sqrt(40), 40)
    source = Source("", "", Provenance(seeds={"E": key}))
    numbers, series = {"x": found}, {"x": influences}
    return Panel(source, "", "", "", numbers=numbers, influences=series)


def test_runs_that_share_their_prompts_are_compared_in_pairs():
    rng, held, lengths = np.random.default_rng(0), 0, []
    for trial in range(300):
        both = panel(rng, 0.0, trial, 0.3), panel(rng, 0.2, trial, 0.3)
        ((apart, sentence),) = differences(*both)
        held += apart.covers(0.2)
        lengths.append(apart.ci_high - apart.ci_low)
        assert "paired by prompt" in sentence
    assert 276 <= held <= 297  # .92 to .99; independent intervals are three times as long
    assert np.mean(lengths) == pytest.approx(2 * 2.02 * 0.3 * np.sqrt(2 / 40), rel=0.1)


def test_runs_of_one_seed_that_cannot_be_paired_say_so():
    one, two = (panel(np.random.default_rng(k), 0.0, 5, 1.0) for k in range(2))
    ((_, sentence),) = differences(replace(one, influences={}), two)
    assert "share their seeds" in sentence
    ((_, sentence),) = differences(one, panel(np.random.default_rng(2), 0.0, 6, 1.0))
    assert "as if" not in sentence


def test_runs_of_one_policy_are_seldom_said_to_differ_however_many_numbers_a_page_has():
    rng = np.random.default_rng(1)
    numbers = 40
    claimed = [0, 0]
    for _ in range(100):
        # the numbers of one batch are correlated
        both = rng.normal(size=(2, 64, 1)) + 2 * rng.normal(size=(2, 64, numbers))
        panels = [
            Panel(
                Source("", ""), "", "", "",
                numbers={str(k): Estimate.from_influences(
                    x.mean(), (x - x.mean()) / 64, unit="", method=""
                ) for k, x in enumerate(run.T)},
            )
            for run in both
        ]  # fmt: skip
        for k, among in enumerate((1, numbers)):
            sentences = [sentence for _, sentence in differences(*panels, among=among)]
            claimed[k] += any("in B." in sentence for sentence in sentences)
    assert claimed[1] <= 8  # of 100
    assert claimed[0] > 40


def test_an_interval_without_an_end_says_so():
    half = Estimate(2.0, 1.0, 1.0, nan, 8, "", "")
    assert with_interval(half) == "2 [1,\u00a0∞)"
