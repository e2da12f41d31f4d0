"""Cells of the study on `compose` restart, and its page says what is there."""

import json
import math
from collections import Counter
from dataclasses import replace

import pytest
from scipy import stats

from studies import compose_gates, compose_study
from studies import compose_page as page
from studies.compose_arms import ARMS
from studies.compose_base import Dials
from studies.compose_outcomes import Outcome, Paired, Share, compare, holm, outcome
from studies.compose_run import Settings
from studies.compose_study import Cell, Plan, cells, load, study

PLAN = Plan(
    Dials(skill_steps=1, style_steps=1, batch=8),
    Settings(steps=2, every=1, held_out=4, prompts=4, composed=2, responses=2),
)


@pytest.fixture
def any_base(monkeypatch):
    """Bases that no step of fine-tuning could bring to the P('>') of the dials."""
    monkeypatch.setattr("studies.compose_base.TOLERANCE", math.inf)


def made(arm, seed, discovery=None, steps=200, entropy=None):
    """P('>') falls by a factor of 20 over 40 steps."""
    last = steps if discovery is None else discovery - 10
    return Outcome(
        arm=arm,
        base=seed % 6,
        seed=seed,
        steps=steps,
        solved=discovery is not None,
        discovery=discovery,
        start={"greedy": 0.01, "pass_256": 0.85 + 0.01 * (seed % 6)},
        end={"single_greedy": 0.9, "single": 0.8, "composed_cold": 0.5},
        strategy=[(s, 0.02 * 1.01**seed / 20 ** min(s / 40, 1)) for s in range(0, last + 1, 10)],
        entropy=entropy or (1.0, 0.1 + 0.01 * seed, 0.1),
        tokens=4.5,
        seconds=5.0,
    )


def fabricated(n=24):
    """Vanilla solves every third run, bonus none, repo_r all, demonstrations all that are late."""
    runs = []
    for seed in range(n):
        runs.append(made("vanilla", seed, 100 + 10 * (seed % 2) if seed % 3 == 0 else None))
        runs.append(made("bonus_.03", seed))
        runs.append(made("repo_r", seed, 120))
        runs.append(made("demonstrations", seed, 80 if seed % 3 else 50))
    return runs


def test_pairs_come_one_after_the_other_with_all_arms_of_each():
    todo = cells(["vanilla", "repo_r"], 14)
    assert len({c.name for c in todo}) == len(todo) == 28
    assert [c.arm for c in todo[:4]] == ["vanilla", "repo_r"] * 2
    assert [c.seed for c in todo] == sorted(c.seed for c in todo)
    assert Counter(c.base for c in todo if c.arm == "vanilla") == dict(
        zip(compose_study.BASES, (3, 3, 2, 2, 2, 2), strict=True)
    )
    with pytest.raises(ValueError, match="Unknown arm 'x'; there are vanilla"):
        cells(["x"], 1)


def test_calibration_and_study_share_no_seed():
    own = cells([*ARMS], compose_study.PAIRS)
    assert max(c.seed for c in own) < compose_study.CALIBRATION
    assert compose_study.PAIRS >= page.FEWEST_PAIRS
    assert len(set(compose_study.BASES)) >= 6


def test_a_study_continues_where_it_was_stopped(tmp_path, monkeypatch, any_base):
    todo, original, begun = cells(["vanilla", "bonus_.01"], 2, bases=[0]), compose_study.train, []

    def stopped(*args):
        begun.append(args[2])
        if len(begun) == 3:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(compose_study, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        study(todo, tmp_path, PLAN)
    assert len(load(todo, tmp_path, PLAN)) == 2
    assert study(todo, tmp_path, PLAN) == 2
    assert begun == [0, 0, 1, 1, 1]
    assert study(todo, tmp_path, PLAN) == 0
    assert study(cells(["vanilla", "repo_r"], 2, bases=[0]), tmp_path, PLAN) == 2
    assert sorted(p.suffix for p in (tmp_path / "cells").iterdir()) == [".json"] * 6


def test_a_cell_that_is_run_again_is_the_same(tmp_path, any_base):
    (cell,) = cells(["adaptive"], 1)
    contents = []
    for folder in ("a", "b"):
        study([cell], tmp_path / folder, PLAN)
        content = json.loads((tmp_path / folder / "cells" / f"{cell.name}.json").read_text())
        contents.append({k: v for k, v in content.items() if k != "seconds"})
    assert contents[0] == contents[1]
    assert contents[0]["plan"]["settings"]["rate"] == 3e-4


def test_cells_and_bases_of_another_plan_are_refused(tmp_path, any_base):
    todo = [Cell("vanilla", 0, 0)]
    study(todo, tmp_path, PLAN)
    faster = replace(PLAN, settings=replace(PLAN.settings, rate=1.0))
    with pytest.raises(ValueError, match=r"vanilla_0_0\.json was made with rate = 0\.0003, and"):
        load(todo, tmp_path, faster)
    other = replace(PLAN, dials=replace(PLAN.dials, junk=0.5))
    with pytest.raises(ValueError, match=r"0\.pt was made with junk = 0\.04, and now it is 0\.5"):
        study([Cell("vanilla", 0, 1)], tmp_path, other)


def test_cells_of_the_calibration_do_not_enter_the_study(tmp_path, any_base):
    own = cells(["vanilla"], 1)
    other = cells(["vanilla"], 1, first_seed=compose_study.CALIBRATION)
    study(own + other, tmp_path, PLAN)
    assert [run.seed for run in load(own, tmp_path, PLAN)] == [0]
    assert [run.seed for run in load(other, tmp_path, PLAN)] == [compose_study.CALIBRATION]


def test_the_outcome_of_a_cell():
    greedy = [0.0, 0.2, 0.7, 0.4, 0.6]
    readings = [
        {"step": 20 * i, "greedy": g, "strategy_unsolved": None if g > 0.5 else 0.1 / (i + 1)}
        for i, g in enumerate(greedy)
    ]
    readings[3] |= {"first": 0.9, "composed": 0.01}
    steps = {"entropy_response": [*map(float, range(80))], "length": [4.0, 5.0]}
    found = outcome(
        {"arm": "x", "base": 1, "seed": 7, "seconds": 1.0, "readings": readings, "steps": steps}
    )
    assert (found.solved, found.discovery, found.steps) == (True, 40, 80)
    assert found.solved_before_rescue
    assert found.entropy == (4.5, 54.5, 74.5)
    assert found.strategy == [(0, 0.1), (20, 0.05), (60, 0.025)]
    assert found.strategy_at(20) == 0.05
    assert found.strategy_at(40) is None
    assert found.tokens == 4.5
    assert found.end == {"greedy": 0.6, "strategy_unsolved": None}
    assert found.away is None
    assert found.unsolved == (0.9, 0.01)


def test_the_distance_from_a_target_is_of_the_later_steps():
    """At the target up to step 60; then above it by a half, and below by a fifth."""
    drawn = [2.0] * 60 + [3.0, 1.6] * 10
    steps = {"entropy_response": [1.0] * 80, "length": [4.0], "entropy_drawn": drawn}
    readings = [{"step": s, "greedy": 0.0, "strategy_unsolved": 0.1} for s in (0, 80)]
    content = {"arm": "x", "base": 1, "seed": 7, "seconds": 1.0, "readings": readings}
    found = outcome(content | {"steps": steps | {"target": [2.0] * 80}})
    assert found.away == pytest.approx(((0.5 + 0.2) / 2, (0.5 - 0.2) / 2))


def test_runs_are_paired_by_base_and_seed():
    first = [made("a", s, 50 if s in (0, 1, 9) else None) for s in range(10)]
    second = [made("b", s, 50 if s in (1, 2, 3, 4) else None) for s in range(1, 12)]
    found = compare(first, second)
    assert found == Paired(both=1, first=1, second=3, neither=4)
    assert found.difference == pytest.approx((2 - 4) / 9)
    assert found.p == pytest.approx(2 * (0.5**4 + 4 * 0.5**4))
    assert Paired(3, 0, 0, 3).p == 1.0


def coverage(probabilities, n=24):
    """Exact coverage of Newcombe's interval over all tables of n pairs."""
    truth = probabilities[1] - probabilities[2]
    total = 0.0
    tables = [
        (a, b, c, n - a - b - c)
        for a in range(n + 1)
        for b in range(n + 1 - a)
        for c in range(n + 1 - a - b)
    ]
    weights = stats.multinomial.pmf(tables, n, probabilities)
    for counts, weight in zip(tables, weights, strict=True):
        if weight > 1e-7:
            low, high = Paired(*counts).interval
            total += weight * (low <= truth <= high)
    return total


@pytest.mark.parametrize("probabilities", [(0.3, 0.1, 0.1, 0.5), (0.15, 0.45, 0.15, 0.25)])
def test_the_interval_of_a_paired_difference_covers_it(probabilities):
    assert 0.94 <= coverage(probabilities) <= 0.99


def test_the_interval_is_that_of_unpaired_shares_where_nothing_correlates():
    found = Paired(both=6, first=6, second=6, neither=6)
    (low, high) = Share(12, 24).interval
    half = math.hypot(0.5 - low, high - 0.5)
    assert found.interval == pytest.approx((-half, half))


def test_holm_adjusts_in_order():
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.9})
    assert found == pytest.approx({"a": 0.04, "c": 0.09, "b": 0.09, "d": 0.9})


def test_gates_read_the_runs():
    found = {
        g.words.split()[0] + g.name: g
        for g in compose_gates.gates(compose_gates.by_arm(fabricated(48)))
    }
    greedy, coverage_, share, rescue, fall = found.values()
    assert (greedy.value, greedy.n, greedy.verdict) == (0.01, 6, "holds")
    assert coverage_.value == pytest.approx(0.875)
    assert coverage_.verdict == "holds"
    assert (share.value, share.n, share.verdict) == (16 / 48, 48, "holds")
    assert (rescue.value, rescue.n) == (1.0, 32)
    assert rescue.verdict == "holds, undecided by its interval"  # 32 of 32 are not enough
    assert fall.value == pytest.approx(20.0)
    assert fall.verdict == "holds"


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [
        (0.4, 0.3, 0.5, "holds"),
        (0.4, 0.1, 0.7, "holds, undecided by its interval"),
        (0.1, 0.0, 0.3, "FAILS, undecided by its interval"),
        (0.1, 0.0, 0.15, "FAILS"),
        (0.9, math.nan, math.nan, "too few for an interval"),
    ],
)
def test_a_gate_says_whether_its_interval_decides(value, low, high, verdict):
    assert compose_gates.Gate("g", "", value, low, high, 0.2, 0.6, n=5).verdict == verdict


def test_the_fall_counts_up_to_the_median_discovery_or_the_own():
    late, early = made("vanilla", 0, 100), made("vanilla", 1, 20)
    found = compose_gates.falls([late, late, early])  # the median is 100
    expected = (2 * math.log(20) + math.log(20) / 4) / 3  # a quarter of the way at step 10
    assert found.value == pytest.approx(expected)


def test_the_page_says_first_what_went_against_us(tmp_path):
    text = page.write_page(fabricated(), tmp_path)
    assert text == (tmp_path / "compose.md").read_text()
    kept = json.loads((tmp_path / "compose.json").read_text())
    assert {len(run) for run in kept["runs"]} == {len(kept["of run"])}
    assert Counter(run[0] for run in kept["runs"]) == dict.fromkeys(
        ("vanilla", "bonus_.03", "repo_r", "demonstrations"), 24
    )
    flat = " ".join(text.split())
    assert "Worse than vanilla: bonus_.03 (-0.33 [" in flat
    assert "Better than vanilla: repo_r (+0.67 [" in flat
    assert "Upper bounds, beside vanilla and outside the family: demonstrations (+0.67" in flat
    assert flat.index("Worse than vanilla") < flat.index("| g1 |") < flat.index("| vanilla |")
    assert "| g2 | vanilla solves 20–60 % | 0.333 [0.18, 0.533] | 24 |" in text
    assert "| bonus_.03 | 0/24 = 0.00 [0.00, 0.14] | 0, 8 |" in text
    (line,) = [x for x in text.splitlines() if x.startswith("| demonstrations | 24/24")]
    assert line.endswith("| – |")  # outside the family of tests
    rows = {r.arm: r for r in page.rows(compose_gates.by_arm(fabricated()))}
    assert rows["bonus_.03"].adjusted == pytest.approx(2**-7)
    assert rows["repo_r"].adjusted == pytest.approx(2 * 2**-15)


def test_a_page_of_few_pairs_judges_no_arm(tmp_path):
    text = " ".join(page.write_page(fabricated(8), tmp_path).split())
    assert "Fewer than 24 pairs, so nothing is said of them: vanilla (8), bonus_.03 (8)" in text
    assert "There is no answer yet" in text
    assert "than vanilla:" not in text
    with pytest.raises(ValueError, match="no run of vanilla"):
        page.write_page([made("repo_r", 0)], tmp_path)


def test_means_of_too_few_runs_are_not_shown(tmp_path):
    text = page.write_page(fabricated(2), tmp_path)
    assert f"| vanilla |{' – |' * len(page.SECOND)}" in text
    (fall,) = [line for line in text.splitlines() if line.startswith("| g4 |")]
    assert fall.endswith("| – | 2 | too few for an interval |")


def test_a_gate_that_is_not_met_is_said_first(tmp_path):
    runs = [replace(r, solved=True, discovery=20) for r in fabricated() if r.arm == "vanilla"]
    text = " ".join(page.write_page(runs, tmp_path).split())
    assert "Gate g2 FAILS (vanilla solves 20–60 %: 1 [0.862, 1])." in text


def test_later_discoveries_are_compared_within_their_arm():
    """Solved runs have .49 nats less, on average, and P('>') of one seed more; arms differ by 7."""
    runs = {
        arm: [
            made(arm, s, 100 if s % 2 else None, entropy=(1, own - 0.5 * (s % 2) + 0.01 * s, 0))
            for s in range(10)
        ]
        for arm, own in (("vanilla", 1.0), ("bonus_.03", 8.0))
    }
    found = " ".join(page.later_discoveries(runs).split())
    assert found.startswith("Of 20 runs without a solution at step 60, 10 are solved at the end.")
    # of .01 times 0, 2, … 8, twice, and of the odd seeds: standard deviation .0298, 18 degrees
    half = 2.1009 * 0.01 * math.sqrt(80 / 9) * math.sqrt(2 / 10)
    assert f"-0.49 [{-0.49 - half:+.2f}, {-0.49 + half:+.2f}] nats per response" in found
    assert "+0.00 [-0.01, +0.02] in log10 P('>')" in found
    early = {"vanilla": [made("vanilla", s, 50) for s in range(9)]}
    assert page.later_discoveries(early) == ""
