"""Every example of a control loads as a user's own file, and keeps what controls promise."""

import dataclasses
import re
from pathlib import Path

import pytest

from isentrope.control import controls
from isentrope.control.names import EXAMPLES
from tests.control.promises import PROMISES, require_any_order

FOLDER = Path(__file__).parents[2] / "examples" / "controls"
PAGE = (FOLDER.parents[1] / "docs" / "control.md").read_text(encoding="utf-8")
OPTIONS = {"clip_b": {"mu": 1.0}, "lp_reg": {"share": 0.3}, "pass_at_k": {"k": 2}}
"""What makes a control act on the batch of the promises."""
BY_PLACE = ("random_mask",)
"""Controls that draw tokens by their place."""


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_every_example_keeps_the_promise(promise, name):
    if promise is require_any_order and name in BY_PLACE:
        pytest.skip("it draws tokens by their place")
    promise(str(FOLDER / EXAMPLES[name]), OPTIONS.get(name, {}))


def test_every_file_of_the_folder_is_in_the_table():
    files = {value.partition(":")[0] for value in EXAMPLES.values()}
    cure = "EXAMPLES of src/isentrope/control/names.py"
    assert files == {file.name for file in FOLDER.glob("*.py")}, cure


@pytest.mark.parametrize("place", EXAMPLES.values())
def test_an_example_documents_its_options_and_has_a_row_on_the_page(place):
    kind = controls.control_class(str(FOLDER / place))
    documented = set(re.findall(r"^\s+(\w+): ", str(kind.__doc__), re.M))
    undocumented = {field.name for field in dataclasses.fields(kind)} - documented
    assert undocumented == set(), "Attributes of the docstring of the class"
    assert f"`{place}`" in PAGE, "a row of docs/control.md"
