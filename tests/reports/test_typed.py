"""Reports and tables read typed results: where dictionaries of anything are left."""

from pathlib import Path

import isentrope

SOURCES = Path(isentrope.__file__).parent
ANYTHING = "dict[str, Any]"
LEFT: dict[str, int] = {}
"""How often a file says it. Lower a number when it falls; add no file."""


def test_no_report_and_no_table_reads_dictionaries_of_anything():
    files = [file for room in ("reports", "cli") for file in (SOURCES / room).rglob("*.py")]
    found = {
        str(file.relative_to(SOURCES)): count
        for file in files
        if (count := file.read_text(encoding="utf-8").count(ANYTHING))
    }
    assert found == LEFT


def test_results_json_is_named_in_one_module():
    """Others get a result from it; in docstrings and captions its name may stand."""
    readers = [
        str(file.relative_to(SOURCES))
        for file in SOURCES.rglob("*.py")
        if '= "results.json"' in file.read_text(encoding="utf-8")
        or '/ "results.json"' in file.read_text(encoding="utf-8")
    ]
    assert readers == ["results/result.py"]
