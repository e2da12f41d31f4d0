"""Python on the pages compiles and names what exists; the gallery's scripts make figures."""

import ast
import importlib
import runpy

import matplotlib.pyplot as plt
import pytest

import isentrope
from tests.axis_labels import lacks_unit, told_by_hue, written_labels
from tests.calls import refused
from tests.docs.pages import PAGES, ROOT, blocks

SNIPPETS = [
    pytest.param(text, id=f"{page.relative_to(ROOT)}:{k}")
    for page in PAGES
    for k, text in enumerate(blocks(page, "python", "py"))
]
SCRIPTS = sorted((ROOT / "docs" / "gallery").glob("[0-9]*.py"))
FAST = {"07_kernel", "08_spectrum", "11_pass_at_k"}


def unknown(code: str) -> list[str]:
    """Names that the code takes from isentrope and that are not there."""
    missing = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("isentrope"):
            module = importlib.import_module(node.module or "")
            missing += [a.name for a in node.names if not hasattr(module, a.name)]
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "ise"
            and not hasattr(isentrope, node.attr)
        ):
            missing.append(f"ise.{node.attr}")
    return missing


@pytest.mark.parametrize("code", SNIPPETS)
def test_a_snippet_compiles_and_its_names_exist(code):
    assert unknown(code) == []


@pytest.mark.parametrize("code", SNIPPETS)
def test_the_calls_of_a_snippet_fit_their_signatures(code):
    assert refused(code) == []


def test_a_name_that_does_not_exist_is_found():
    assert unknown("import isentrope as ise\nise.entropi(1)") == ["ise.entropi"]
    assert unknown("from isentrope.nouns.vectors import dott") == ["dott"]


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
@pytest.mark.parametrize(
    "script",
    [pytest.param(s, marks=() if s.stem in FAST else pytest.mark.slow, id=s.stem) for s in SCRIPTS],
)
def test_a_script_of_the_gallery_makes_one_figure(script, monkeypatch):
    monkeypatch.syspath_prepend(str(script.parent))
    with plt.rc_context(), plt.ion():
        plt.switch_backend("agg")
        plt.close("all")
        runpy.run_path(str(script))
        (number,) = plt.get_fignums()
        figure = plt.figure(number)
        assert all(axes.has_data() for axes in figure.axes)
        assert list(told_by_hue(figure)) == []
        plt.close("all")


@pytest.mark.parametrize("folder", ["docs/gallery", "studies", "validation", "benchmarks"])
def test_an_axis_that_a_script_labels_has_its_unit(folder):
    labels = {
        label
        for script in sorted((ROOT / folder).glob("*.py"))
        for label in written_labels(script.read_text(encoding="utf-8"))
    }
    assert labels or folder == "benchmarks"
    assert list(filter(lacks_unit, labels)) == []


def test_the_gallery_lists_every_script_and_no_other():
    (page,) = [p for p in PAGES if p.parent.name == "gallery"]
    listed = page.read_text(encoding="utf-8")
    assert all(f"({script.name})" in listed for script in SCRIPTS)
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(f"gallery/{script.stem}.md" in nav for script in SCRIPTS)


def test_the_reference_has_every_room():
    command_line = {"cli", "commands"}  # described by its help
    rooms = {p.parent.name for p in (ROOT / "src" / "isentrope").glob("*/__init__.py")}
    pages = {page.stem for page in (ROOT / "docs" / "reference").glob("*.md")}
    assert pages == rooms - command_line | {"index"}
