"""A verb is named in `results.verbs`; whoever needs its name reads it there."""

import ast
from pathlib import Path

import isentrope
from isentrope.results.verbs import VERBS

SOURCES = Path(isentrope.__file__).parent

ROOMS = ("planning", "config", "results", "run", "verbs", "reports", "commands", "cli")
"""Packages that know verbs; below them the words are columns, controls and functions."""

OTHER_MEANINGS = {
    "config/contract.py": {"influence"},
    "config/control_fields.py": {"influence"},
    "config/io.py": {"measure"},  # the kind of a configuration
    "reports/panels/curves.py": {"noise"},  # of a training run
    "reports/saved_result.py": {"influence"},
    "results/tables.py": {"audit", "entropies", "noise", "variance"},
    "run/study_table.py": {"influence"},
    "commands/config.py": {"measure"},  # the kind of a configuration
    "verbs/detailed_log.py": {"entropies"},
    "verbs/measure.py": {"influence"},
    "verbs/before_work.py": {"audit"},
    "verbs/part_memory.py": {"kernel", "measure", "noise"},
    "verbs/passes.py": {"audit", "influence", "kernel", "measure", "noise"},
    "verbs/trial_steps.py": {"influence"},
}
"""Files where the word names a column, a control or a table of another verb."""


def named(path):
    """Names of verbs that are strings in a file; its own may be that of its table."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    words = {x.value for x in ast.walk(tree) if isinstance(x, ast.Constant)}
    return words & (VERBS.keys() - {path.stem})


def test_a_verb_is_named_in_one_file():
    found = {
        str(path.relative_to(SOURCES)): named(path)
        for room in ROOMS
        for path in (SOURCES / room).rglob("*.py")
    }
    del found["results/verbs.py"]
    cure = "read the name from results.verbs; another meaning of the word is in OTHER_MEANINGS"
    assert {f: names for f, names in found.items() if names} == OTHER_MEANINGS, cure
