"""TRL's scripts as they come: a few of those that differ most; the others are slow."""

import pytest

pytest.importorskip("trl")
from validation import trl_script_table, trl_scripts

FAST = ("GRPOConfig's defaults", "aLoRA", "AdamW with a step of its own", "VeRA")
SCRIPTS = {script.name: script for script in trl_script_table.SCRIPTS}


def require_as_expected(name):
    (outcome,) = trl_scripts.run([SCRIPTS[name]])
    assert "WRONG" not in outcome.verdict, trl_scripts.table_row(outcome)


@pytest.mark.filterwarnings("ignore")  # TRL's and torch's own
@pytest.mark.parametrize("name", FAST)
def test_a_script_is_followed_or_refused_by_name(name):
    require_as_expected(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(set(SCRIPTS) - set(FAST)))
def test_every_other_script_is_followed_or_refused_by_name(name):
    require_as_expected(name)
