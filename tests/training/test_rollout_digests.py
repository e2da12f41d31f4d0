"""A table of rollouts that is not as it was written is named, by resuming and by the report."""

import re
import shutil

import pytest

from isentrope.reports.read_run import read_run
from isentrope.training.rollout_digests import rollout_faults
from isentrope.training.run_files import RunFiles
from isentrope.verbs.train import branch, resume
from tests.training import runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    training = {"steps": 3, "save_every": 1}
    return runs.trained(tmp_path_factory.mktemp("run"), training=training, **runs.UNPROBED)


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def table(run, step):
    return run / "logs" / "rollouts" / f"step_{step}.parquet"


def cut(run):
    table(run, 2).write_bytes(table(run, 2).read_bytes()[:-9])


def zeroed(run):
    table(run, 2).write_bytes(bytes(table(run, 2).stat().st_size))


DAMAGE = {
    "cut": (cut, r"step_2\.parquet was changed"),
    "zeroed": (zeroed, r"step_2\.parquet was changed"),
    "replaced": (lambda run: table(run, 2).write_text("text"), r"step_2\.parquet was changed"),
    "removed": (lambda run: table(run, 2).unlink(), r"step_2\.parquet is missing"),
    "exchanged": (
        lambda run: shutil.copy(table(run, 1), table(run, 2)),
        r"step_2\.parquet holds the table of step 1",
    ),
    "without a digest": (
        lambda run: (run / "logs" / "rollouts.jsonl").unlink(),
        r"3 tables in .* have no digest in rollouts\.jsonl, so it is not known",
    ),
    "a damaged line": (
        lambda run: (run / "logs" / "rollouts.jsonl").write_text("{\n"),
        r"have no digest in rollouts\.jsonl \(line 1 of .* is damaged\)",
    ),
}


def test_tables_as_they_were_written_are_not_spoken_of(run, caplog):
    assert not list(rollout_faults(RunFiles(run)))
    resume(run, ["training.steps=4"])
    assert "rollouts" not in caplog.text
    assert not list(rollout_faults(RunFiles(run)))


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_table_that_is_not_as_it_was_written_is_named(run, kind):
    damage, words = DAMAGE[kind]
    damage(run)
    assert any(re.search(words, sentence) for sentence in read_run(run).missing)


def test_a_run_goes_on_and_says_which_of_its_tables_is_not_as_it_was_written(run, caplog):
    cut(run)
    resume(run, ["training.steps=4"])
    assert re.search(r"step_2\.parquet was changed", caplog.text)
    assert table(run, 4).is_file()


def test_a_run_that_goes_back_writes_each_table_and_its_digest_once(run):
    digests = (run / "logs" / "rollouts.jsonl").read_bytes()
    shutil.rmtree(run / "training_state" / "step_3")
    resume(run)
    assert (run / "logs" / "rollouts.jsonl").read_bytes() == digests


def test_a_branch_has_digests_of_its_own_tables_alone(run, tmp_path):
    new = branch(run / "training_state" / "step_2", [f"output.directory={tmp_path / 'new'}"])
    assert not list(rollout_faults(RunFiles(new)))
    assert not table(new, 2).exists()
