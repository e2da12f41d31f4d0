"""The notebook runs from top to bottom, and its cells show answers."""

import json
import subprocess
import sys
from pathlib import Path

NOTEBOOK = Path(__file__).parents[1] / "first_answer.ipynb"

RUN = """
import ast, json, sys

import matplotlib

matplotlib.use("Agg")
scope = {}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] != "code":
        continue
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), scope)
    if last is not None:
        shown = eval(compile(ast.Expression(last.value), "cell", "eval"), scope)
        page = getattr(shown, "_repr_html_", lambda: "")() or ""
        print("cell", json.dumps([type(shown).__name__, len(repr(shown)), page.count("<tr")]))
"""


def test_the_notebook_runs_and_its_cells_show_tables_and_figures(tmp_path):
    command = [sys.executable, "-c", RUN, str(NOTEBOOK)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [
        line.removeprefix("cell ") for line in done.stdout.splitlines() if line.startswith("cell ")
    ]
    cells = [json.loads(line) for line in lines]
    kinds = [kind for kind, _, _ in cells]
    answers = ["Rollouts", "MeasureResult", "Figure", "DataFrame", "InfluenceResult", "Figure"]
    assert kinds[-7:] == [*answers, "DataFrame"]
    for kind, length, rows in cells:
        if kind.endswith("Result") or kind == "Rollouts":
            assert length <= 200
            assert rows > 1


def test_the_notebook_is_kept_without_what_a_run_of_it_shows():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
