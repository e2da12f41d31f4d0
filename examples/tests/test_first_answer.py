"""The notebook runs from top to bottom, and its cells show answers."""

import ast
import json
from pathlib import Path

NOTEBOOK = Path(__file__).parents[1] / "first_answer.ipynb"
SIZES = {"E=64, U=8": "E=16, U=4"}
"""What is drawn, and what is drawn here."""


def run_cells():
    """What the code cells show, in order; None where a cell shows nothing."""
    scope = {}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"])
        for size, smaller in SIZES.items():
            source = source.replace(size, smaller)
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), scope)
        if last is not None:
            yield eval(compile(ast.Expression(last.value), "cell", "eval"), scope)


def test_the_notebook_runs_and_its_cells_show_tables_and_figures(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shown = list(run_cells())
    answers = ["Rollouts", "MeasureResult", "Figure", "DataFrame", "InfluenceResult", "Figure"]
    assert [type(x).__name__ for x in shown[-7:]] == [*answers, "DataFrame"]
    for answer in shown:
        if type(answer).__name__ in ("Rollouts", "MeasureResult", "InfluenceResult"):
            assert len(repr(answer)) <= 200
            assert answer._repr_html_().count("<tr") > 1


def test_the_notebook_is_kept_without_what_a_run_of_it_shows():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
