"""Every control has its name and its row on the page."""

import dataclasses
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from isentrope import control
from isentrope.control import controls
from isentrope.control.base import TokenRule
from isentrope.control.trainer_fields import TrainerFields

PAGE = (Path(__file__).parents[2] / "docs" / "control.md").read_text(encoding="utf-8")


def subclasses(kind):
    """Subclasses in the package, of any depth."""
    for module in pkgutil.iter_modules(control.__path__):
        importlib.import_module(f"{control.__name__}.{module.name}")
    for one in kind.__subclasses__():
        if one.__module__.startswith(control.__name__):
            yield one
        yield from subclasses(one)


def test_every_control_is_in_its_table():
    found = {*subclasses(TokenRule), *subclasses(TrainerFields)}
    assert found == {*controls.TOKEN_CONTROLS.values(), *controls.FIELD_CONTROLS.values()}


@pytest.mark.parametrize("name", controls.NAMED_CONTROLS)
def test_a_control_has_a_row_on_the_page(name):
    bare = name.removesuffix("_reward_neutral")  # a variant, in the section of the plain one
    assert re.search(rf"^\| `{bare}` \|", PAGE, re.M) or f"`{name}`" in PAGE


def test_every_name_of_the_page_is_a_control():
    tables = re.findall(r"^\| name \|.*?\n\n", PAGE, re.M | re.S)
    named = {name for table in tables for name in re.findall(r"^\| `(\w+)` \|", table, re.M)}
    assert named
    assert named <= set(controls.NAMED_CONTROLS)


@pytest.mark.parametrize("name", [*controls.TOKEN_CONTROLS, *controls.FIELD_CONTROLS])
def test_the_docstring_of_a_control_has_every_option(name):
    kind = type(controls.build(name))
    documented = set(re.findall(r"^\s+(\w+): ", str(kind.__doc__), re.M))
    assert {field.name for field in dataclasses.fields(kind)} <= documented
