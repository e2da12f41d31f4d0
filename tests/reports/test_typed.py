"""Reports and tables read typed results: where dictionaries of anything are left."""

from tests.sources import texts

ANYTHING = "dict[str, Any]"
LEFT: dict[str, int] = {}
"""How often a file says it. Lower a number when it falls; add no file."""


def test_no_report_and_no_table_reads_dictionaries_of_anything():
    found = {
        path: count
        for path, text in texts().items()
        if path.startswith(("reports/", "cli/")) and (count := text.count(ANYTHING))
    }
    assert found == LEFT


def test_results_json_is_named_in_one_module():
    """Others get a result from it; in docstrings and captions its name may stand."""
    readers = [
        path
        for path, text in texts().items()
        if '= "results.json"' in text or '/ "results.json"' in text
    ]
    assert readers == ["results/verbs.py"]
