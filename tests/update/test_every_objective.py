"""Every objective has its weights, its advantages and its line in the list of formulas."""

import ast
import re
from pathlib import Path

from isentrope import Rollouts, with_advantages
from isentrope.nouns.choices import ADVANTAGES_OF, OBJECTIVES, RECORDED, SFT
from isentrope.update import objective as module

TESTS = Path(__file__).parents[1]
WITHOUT_TRL = {"rloo", "dr_grpo_longest"}
"""The loss of another trainer, and ours: their gradients are tested where they are made."""


def test_every_objective_has_advantages_that_go_with_it():
    assert set(ADVANTAGES_OF) == {*OBJECTIVES, SFT, RECORDED}
    rollouts = Rollouts([[2]], [[3]] * 2, [0, 0]).with_columns(rewards=[0.0, 1.0])
    for name in set(ADVANTAGES_OF.values()):
        assert with_advantages(rollouts, name).advantages is not None


def test_every_objective_has_its_formula():
    formulas = re.findall(r"^    (\w+)  +(?:w_i|as|any)", str(module.__doc__), re.M)
    assert set(formulas) == {*OBJECTIVES, SFT, RECORDED}


def named(file):
    """Texts in a file of tests."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}


def test_every_objective_is_compared_with_its_source():
    assert set(OBJECTIVES) <= named("update/test_objective.py")
    assert set(OBJECTIVES) - WITHOUT_TRL <= named("training/test_trl_contract.py")
