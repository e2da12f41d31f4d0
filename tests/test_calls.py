"""Programs that no default test runs call isentrope as its signatures say."""

from pathlib import Path

import pytest

from tests.calls import refused

ROOT = Path(__file__).parents[1]
ROOMS = ("benchmarks", "docs", "examples", "studies", "tests", "validation")


@pytest.mark.parametrize("room", ROOMS)
def test_every_call_fits_its_signature(room):
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    assert [f"{p}: {call}" for p in files for call in refused(p.read_text("utf-8"))] == []


def test_a_name_that_is_gone_is_found():
    imported = "from isentrope.system import manifest\n"
    assert refused(imported + "manifest._known.clear()") == []
    assert len(refused(imported + "manifest._gone.clear()")) == 1


def test_a_call_that_does_not_fit_is_found():
    imported = "from isentrope.control.feedback import Target\n"
    assert refused(imported + 'Target(kind="hold")') == []
    assert len(refused(imported + 'Target("hold")')) == 1
    assert len(refused("import isentrope as ise\nise.EntropyProbe()")) == 1
    assert refused(imported + "Target(**given)") == []
    assert len(refused("import isentrope as ise\nise.EntropyProbe([], seed=1)")) == 1
