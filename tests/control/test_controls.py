"""Controls by name, what all of them keep, and what is refused."""

import dataclasses

import pytest

from isentrope.control import controls
from tests.control.promises import PROMISES, require_any_order, require_frozen_value


@pytest.mark.parametrize("name", controls.TOKEN_CONTROLS)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_every_control_keeps_the_promise(promise, name):
    if promise is require_any_order and name == "clip_cov":
        pytest.skip("it draws tokens by their place")
    promise(name, {})


@pytest.mark.parametrize("name", [*controls.FIELD_CONTROLS, *controls.STEP_CONTROLS])
def test_every_other_control_is_a_frozen_value(name):
    require_frozen_value(name, {})


@pytest.mark.parametrize("name", controls.FIELD_CONTROLS)
def test_fields_are_those_of_trl(name):
    trl = pytest.importorskip("trl")
    of_trl = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    assert set(controls.build(name).fields()) <= of_trl


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("clipcov",), "Unknown control 'clipcov': the nearest is 'clip_cov'"),
        (("repo_r", None, {"zeta": 1}), "'repo_r' has no option 'zeta': it has none"),
        (("bonus", None, {"per": "token"}), "no option 'per': it has baseline, functional, mode"),
        (
            ("budget", None, {"functional": "token"}),
            "functional: Input should be 'per_sequence' or",
        ),
        (("kl_cov", None, {"mo": 1}), "no option 'mo': it has share"),
        (("kl_cov", None, {"strength": 1}), "no option 'strength': it has share"),
        (("kl_cov", None, {"share": "2"}), "share: Input should be a valid number, got '2'"),
        (("clip_cov", 1.5), "strength: Input should be less than or equal to 1, got 1.5"),
        (("repo_r", float("nan")), "strength: Input should be a finite number"),
        (("cispo", 1.0), "'cispo': strength"),
        (("bonus", None, {"mode": "full"}), "'pathwise' or 'complete', got 'full'"),
        (("clip_cov", None, {"lower": 0.9, "upper": 0.2}), "cannot go from 0.9 to 0.2"),
        (("clip_cov", None, {"upper": 5.0}), "bounds=quantile cannot go from 0.98 to 5.0"),
        (("pass_at_k",), "name it examples/controls/pass_at_k.py:PassAtK"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match="control") as error:
        controls.build(*arguments)
    assert message in str(error.value)


USER_CONTROLS = """
from typing import ClassVar

from isentrope.control.base import Rewritten, TokenRule, options


@options
class Halved(TokenRule):
    strength: float = 0.5

    def apply(self, tokens, strength):
        return Rewritten(tokens.weights * strength)


@options
class NoOption(Halved):
    needs: ClassVar[str | None] = "influence"


class NoDataclass(TokenRule):
    pass


number = 3
"""


@pytest.fixture
def user_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(USER_CONTROLS)
    return file


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_a_control_of_a_file_keeps_the_promise(promise, user_file):
    promise(f"{user_file}:Halved", {})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("number", "is not a token control"),
        ("NoDataclass", "is not a token control"),
        ("missing", "defines no 'missing'"),
        ("NoOption", "option 'size'"),
    ],
)
def test_an_object_of_a_file_that_is_no_control_is_refused(name, message, user_file):
    with pytest.raises(ValueError, match=message):
        controls.build(f"{user_file}:{name}")
