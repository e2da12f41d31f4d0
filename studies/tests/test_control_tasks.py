"""The check of the tasks passes and fails where it should."""

import json

import pytest

from studies import control_tasks


def point(step, **numbers):
    usual = {"pass_1": 0.4, "pass_64": 1.0, "coverage": 0.8, "long": 0.05, "entropy": 0.5}
    return {"step": step, **usual, **numbers}


def cell(*points):
    return {"points": list(points), "ended": "steps", "seconds": 1.0}


@pytest.mark.parametrize(
    ("rate", "coverage", "passed"), [(0.9, 0.3, True), (0.9, 0.5, False), (0.3, 0.3, False)]
)
def test_many_answers_must_be_lost_while_pass_at_1_rises(rate, coverage, passed):
    end = point(120, pass_1=rate, coverage=coverage, forbidden={"pass_1": 0.1})
    rows, found = control_tasks.many_answers("split", [cell(point(0), end)] * 2)
    assert found == passed
    assert f"| split | 120 | 2 | {rate:.3f} [{rate:.3f}, {rate:.3f}] |" in rows[1]


@pytest.mark.parametrize(("short", "passed"), [(2, False), (3, True), (8, True), (9, False)])
def test_the_shortcut_must_be_missed_by_some_runs_and_found_by_some(short, passed):
    cells = [cell(point(0), point(240, long=0.1 if i < short else 0.9)) for i in range(10)]
    row, found = control_tasks.shortcut_row(cells)
    assert found == passed
    assert f"| 10 | 0.050 | {short} | {short / 10:.2f} [" in row


@pytest.mark.parametrize("slower", [20, 120])
def test_phase_2_must_be_slower_after_a_long_phase_1(slower):
    rates = {s: 0.2 if s == slower else 0.4 for s in (20, 120)}
    groups = {s: [cell(point(0, pass_1=0.05), point(120, pass_1=r))] * 2 for s, r in rates.items()}
    rows, passed = control_tasks.relay_rows(groups)
    assert passed == (slower == 120)
    assert len(rows) == 4


def test_the_page_is_of_the_files_that_are_there(tmp_path):
    assert "## Relay" not in control_tasks.page(tmp_path)
    files = {"split_0": cell(point(0), point(120, pass_1=0.9, coverage=0.2))}
    files |= {f"relay_{s}_0": cell(point(0), point(120)) for s in (20, 120)}
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    text = control_tasks.page(tmp_path)
    assert "split passes" in text
    assert "## Relay" in text
    assert "## Shortcut" not in text
    assert "countdown |" not in text


def test_cells_go_seed_by_seed():
    names = list(control_tasks.cells(["split", "relay"], 2))
    assert names == [f"{n}_{s}" for s in range(2) for n in ("split", "relay_20", "relay_120")]
