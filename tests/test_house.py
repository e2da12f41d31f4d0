"""What makes the code hard to follow, and how much of it is left. No bound may grow."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import isentrope as ise
from tests import house
from tests.sources import dotted, texts, trees
from tests.test_layers import FLOOR_OF, floor_name
from tests.tiny_checkpoint import make_checkpoint, settings

ROOT = Path(__file__).parents[1]

FUNCTIONS = 883
"""Functions that `measure` enters, without its comprehensions; 800 are aimed at."""
FILES = 151
"""Files that they are in; 90 are aimed at. They have 28,800 lines, and 90 files may have 27,000, so
each would be full to the last line and hold several subjects. What is imported before the libraries
of tensors also stays apart from what needs them."""
BEFORE_WEIGHTS = 242
"""Functions before any weight is loaded; 110 are aimed at. About 120 read the input and refuse what
is wrong in it before the libraries load, which takes .4 seconds in place of 5. The others find what
training recorded or another trainer left, digest the files, and compare the memory."""
RESULTS_READ = 0
"""Fresh results that are read from disk by the process that wrote them; 0 are aimed at."""
FILLERS = 0.03
"""Parameters and targets with a name that says nothing, per 1,000 lines; 3 are aimed at."""
TUPLES = 0
"""Assignments of several values at once."""
PRODUCTS = 0
"""Products with a comparison."""
PACKED = 0
"""Strings that are lists of names."""
SHARED = 0
"""Public names that several modules bind, constants and aliases included."""
UPWARD_TEXTS = 0
"""Texts that name a module of a higher floor."""
UNEXPORTED: set[str] = set()
"""Types that a public function takes or returns, and `ise` lacks."""
IMPORTED_BY_TESTS = 632
"""Names of modules that tests import."""
PROCESSES_OF = {
    *("parallel", "models", "policy"),
    *("reports.panels.kernel", "system.inert", "checkpoint.convert.verl"),
}
"""Packages that know how work is distributed; and modules that mean something else by the names."""
MATCHES = 551
"""Errors that tests know by their words."""


def count(measure):
    """How many nodes a measure finds in the library."""
    return sum(len(list(measure(tree))) for tree in trees().values())


def modules():
    """Dotted name of a module of the library → its tree."""
    return {dotted(path): tree for path, tree in trees().items()}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What `measure` entered."""
    folder = tmp_path_factory.mktemp("walk")
    make_checkpoint(folder)
    config = folder / "measure.json"
    sizes = {"batch_config": {"B_E": 24, "allow_overlap": True}}
    config.write_text(json.dumps(settings(folder, **sizes)))
    command = [sys.executable, "-m", "tests.walk", "measure", str(config)]
    done = subprocess.run(
        [*command, "--out", str(folder / "run")], cwd=ROOT, capture_output=True, text=True
    )
    walk = json.loads(done.stdout.splitlines()[-1])
    assert walk["status"] in (0, None), done.stderr[-2000:]
    return walk


def test_measure_enters_few_functions_and_reads_no_fresh_result(measured):
    assert measured["functions"] <= FUNCTIONS
    assert len(measured["files"]) <= FILES
    assert measured["before_weights"] <= BEFORE_WEIGHTS
    assert measured["results_read"] <= RESULTS_READ


def test_measure_enters_every_file_of_the_way_that_the_map_describes(measured):
    text = (ROOT / "docs" / "architecture.md").read_text()
    _, way = text.split("## The way of one number")
    steps = way.partition("`Result.load`")[0]
    named = set(re.findall(r"`src/isentrope/(\S+?\.py)`", steps))
    of_a_folder = "checkpoint/folder_settings.py"
    of_a_study = "run/study_table.py"
    assert named - {*measured["files"]} == {of_a_folder, of_a_study}


def test_names_say_what_a_value_is():
    lines = sum(map(house.code_lines, texts().values()))
    assert 1000 * count(house.filler_names) / lines <= FILLERS


def test_a_line_assigns_one_value():
    assert count(house.tuple_assignments) <= TUPLES
    assert count(house.products_with_truth) <= PRODUCTS


def test_lists_are_lists():
    assert count(house.packed_names) <= PACKED


def test_a_public_name_stands_in_one_module():
    assert len(house.shared_names(modules())) <= SHARED


def test_texts_name_no_module_of_a_higher_floor():
    upward = [
        module
        for module, tree in modules().items()
        for package in house.dotted_texts(tree, FLOOR_OF)
        if FLOOR_OF[package] > FLOOR_OF.get(floor_name(module), -1)
    ]
    assert len(upward) <= UPWARD_TEXTS


def test_the_mathematics_knows_no_processes():
    naming = {module for module, tree in modules().items() if list(house.process_names(tree))}
    inside = {module for module in naming if {module, module.partition(".")[0]} & PROCESSES_OF}
    assert naming - inside == set()
    assert {x for x in PROCESSES_OF if "." in x} <= inside, "exceptions that are needed no more"


def test_the_package_exports_what_its_functions_take_and_return():
    assert set(house.unexported_types(ise)) <= UNEXPORTED


def test_tests_know_few_names_and_few_words_of_the_inside():
    tests = house.sources(ROOT / "tests")
    assert len(house.internal_imports(tests)) <= IMPORTED_BY_TESTS
    assert house.matches_of_prose(ROOT / "tests") <= MATCHES


SAMPLE = ast.parse(
    '''
"""A module."""
FIELDS = "first_name second_name third fourth"
PLACE = "verbs.measure:find"
LONG = "a sentence that is not a list of names"
SENTENCE = "training.steps needs a number"
MESSAGE = f"max_new_tokens must be below {PLACE}"
def f(of, x):
    """one_two three four five"""
    found, y = 1, 2
    a, b = x
    for own in x:
        pass
    return x * (y > 2)
class Row:
    kept: Tensor
    rest = 3
    def whole(self):
        kept = self.kept
'''
)


def test_every_measure_finds_its_kind():
    assert sorted(house.filler_names(SAMPLE)) == ["found", "kept", "of", "own", "rest"]
    assert len(list(house.tuple_assignments(SAMPLE))) == 1
    assert len(list(house.products_with_truth(SAMPLE))) == 1
    assert [node.value.split()[0] for node in house.packed_names(SAMPLE)] == ["first_name"]
    assert list(house.dotted_texts(SAMPLE, {"verbs"})) == ["verbs"]
    assert house.shared_names({"a": SAMPLE, "b": ast.parse("FIELDS = 1\nf: int = 2\n_g = 3")}) == {
        "FIELDS": ["a", "b"],
        "f": ["a", "b"],
    }
    processes = "policy.ranks = f(ranks=Ranks())\nif batch.counted: rows_counted = world"
    assert sorted(house.process_names(ast.parse(processes))) == [
        *("Ranks", "counted", "ranks", "ranks"),
    ]
    assert house.code_lines('"""Doc."""\n# a\nx = (\n    1\n)\n') == 3
