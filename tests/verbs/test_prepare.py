"""What several verbs of one configuration share."""

import pytest

from isentrope.cli.commands import MEASURING
from isentrope.config.io import load_config
from isentrope.verbs import influence, prepare
from isentrope.verbs.loop import run_verb
from tests.tiny_checkpoint import settings
from tests.verbs.observing import numbers_of, other_numbers

CHAPTERS = ("measure", "influence", "kernel", "audit")


@pytest.fixture
def counted(monkeypatch):
    """How often a checkpoint was prepared, and its tokens attributed."""
    calls = []

    def count(module, name):
        of = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **k: calls.append(name) or of(*a, **k))

    count(prepare, "prepare_checkpoint")
    count(influence, "influence")
    return calls


def test_verbs_that_share_a_checkpoint_find_what_each_finds_alone(tiny, tmp_path, counted):
    once, found = prepare.PreparedOnce(), {}
    for prepared in (lambda *given: prepare.prepare_checkpoint(*given), once):
        counted.clear()
        where = tmp_path / str(len(found))
        changes = (
            *(f"output.directory={where}", "analysis.overlap=independent"),
            *("batch_config.allow_overlap=true", "analysis.draws=10", "estimator.order=1"),
            *("estimator.eta_list=[1e-3]", "detailed_logging.enabled=false"),
        )
        for verb in CHAPTERS:
            run_verb(MEASURING[verb], load_config(settings(tiny), changes), prepare=prepared)
        found[prepared is once] = dict(numbers_of(where)), counted.copy()
    assert other_numbers(found[False][0], found[True][0]) == set()
    assert found[False][1].count("prepare_checkpoint") == len(CHAPTERS)
    assert found[True][1] == ["prepare_checkpoint", "influence"]
