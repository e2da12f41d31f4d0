"""A verb is named in `results.verbs`; whoever needs its name reads it there."""

import ast
from pathlib import Path

import pytest

import isentrope
from isentrope._lazy import load
from isentrope.results.results import KINDS
from isentrope.results.verbs import VERBS

SOURCES = Path(isentrope.__file__).parent

ROOMS = ("planning", "config", "results", "runs", "verbs", "reports", "cli")
"""Packages that know verbs; below them the words are columns, controls and functions."""

OTHER_MEANINGS = {
    "reports/panels/training.py": {"noise"},  # of a training run
    "reports/read_run.py": {"influence"},
    "results/columns.py": {"noise", "variance", "audit", "entropies"},  # names of tables
    "runs/study_table.py": {"influence"},
    "verbs/audit.py": {"audit"},
    "verbs/entropies.py": {"entropies"},
    "verbs/measure.py": {"influence"},
    "verbs/noise.py": {"noise"},
    "verbs/trial_steps.py": {"influence"},
    "verbs/variance.py": {"variance"},
}
"""Files where the word names a column, a control or a table."""

SECOND_PLACES = {
    "cli/options.py": {"measure"},
    "cli/running.py": {"measure"},
    "reports/panels/audit.py": {"audit"},
    "reports/panels/kernel.py": {"kernel"},
    "reports/panels/study.py": {"kernel"},
    "reports/report.py": {"kernel", "audit"},
    "verbs/kernel.py": {"kernel"},
    "verbs/kinds.py": {"measure"},
    "verbs/plan.py": {"influence", "kernel", "noise", "audit"},
}
"""Files that still name a verb a second time. This list may only become shorter."""


def named(path):
    """Names of verbs that are strings in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {x.value for x in ast.walk(tree) if isinstance(x, ast.Constant)} & VERBS.keys()


def test_a_verb_is_named_in_one_file():
    found = {
        str(path.relative_to(SOURCES)): named(path)
        for room in ROOMS
        for path in (SOURCES / room).rglob("*.py")
    }
    del found["results/verbs.py"]
    allowed = {f: OTHER_MEANINGS.get(f, set()) | SECOND_PLACES.get(f, set()) for f in found}
    assert {f: names - allowed[f] for f, names in found.items() if names - allowed[f]} == {}
    gone = {f: names - found.get(f, set()) for f, names in SECOND_PLACES.items()}
    assert {f: names for f, names in gone.items() if names} == {}, "make the list shorter"


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_what_a_verb_names_is_there(verb):
    for name in (verb.analyse, verb.printed, *(verb.figure or ())[:1]):
        assert callable(load(name))
    assert verb.name in {kind.verb for kind in KINDS}
