"""The measuring verbs under torchrun: the numbers of one process, and what a failure leaves."""

import os
import re
import subprocess
import sys

import pandas as pd
import pytest
import torch
import yaml

from isentrope.system.processes import join_processes
from tests.golden.compare import differences
from tests.golden.record import record
from tests.tiny_checkpoint import make_full_checkpoint, settings
from tests.torchrun import torchrun
from tests.verbs import evaluating, sharing, sharing_full

PORT = 29571


def unlike(expected, found, *expected_to_differ):
    """Differences beyond rounding, but for what is rounding, or magnifies it.

    The spread of two equal values is the root of rounding. A correlation with predictions and the
    degrees of freedom of a ratio magnify it: to some 1e-7, and to 2e-5 where the ratio is that of
    regressions over two prompts. They are compared to 1e-4.
    """
    apart = differences(expected, found, relative=1e-8, absolute=1e-10)
    clearly = differences(expected, found, relative=1e-4, absolute=1e-10)
    in_float32 = ("/stages/", ".parquet/sampler_")
    magnified = (".predictions.", "/degrees_of_freedom")
    return [
        d
        for d in apart
        if not any(word in d for word in (".spread/", *expected_to_differ))
        and (not any(word in d for word in magnified) or d in clearly)
        and not all(word in d for word in in_float32)
    ]


@pytest.fixture(scope="module")
def one(tiny, tmp_path_factory):
    """The results of one process."""
    out = tmp_path_factory.mktemp("one")
    sharing.main(tiny, out)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_every_verb_finds_the_same_by_any_number_of_processes(tiny, one, tmp_path, processes):
    torchrun(processes, "tests.verbs.sharing", tiny, tmp_path)
    expected, found = (record(out, {str(out): "<run>"}) for out in (one, tmp_path))
    assert unlike(expected, found) == []
    assert (one / "check.json").read_text() == (tmp_path / "check.json").read_text()


@pytest.mark.slow
def test_a_base_that_is_spread_over_processes_gives_the_same_numbers(tiny, one, tmp_path):
    torchrun(2, "tests.verbs.sharing", tiny, tmp_path, "sharded")
    expected, found = (record(out, {str(out): "<run>"}) for out in (one, tmp_path))
    assert unlike(expected, found, "shard_base", "second_order") == []


@pytest.mark.slow
def test_trained_weights_that_are_spread_give_the_same_numbers(tmp_path):
    full, one, two = (tmp_path / name for name in ("full", "one", "two"))
    for folder in (full, one, two):
        folder.mkdir()
    make_full_checkpoint(full)
    sharing.main(full, one)
    torchrun(2, "tests.verbs.sharing", full, two, "sharded")
    expected, found = (record(out, {str(out): "<run>"}) for out in (one, two))
    of_null_space = ("participation", "leading_carriers")
    apart = unlike(expected, found, "shard_base", "second_order", *of_null_space)
    assert [d for d in apart if "/quantised/" not in d] == []  # blocks of int8 begin elsewhere


@pytest.mark.slow
def test_what_full_fine_tuning_adds_is_the_same_where_weights_are_spread(tmp_path):
    made, one, two = (tmp_path / name for name in ("made", "one", "two"))
    for folder in (made, one, two):
        folder.mkdir()
    sharing_full.make(made)
    sharing_full.main(made, one)
    torchrun(2, "tests.verbs.sharing_full", made, two, "sharded")
    expected, found = (record(out, {str(out): "<run>"}) for out in (one, two))
    assert unlike(expected, found, "shard_base") == []


@pytest.mark.slow
def test_two_machines_find_what_one_process_finds(tiny, one, tmp_path):
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{PORT}"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", *rendezvous]
    command += ["--nproc_per_node", "1", "-m", "tests.verbs.sharing", str(tiny), str(tmp_path)]
    machines = [
        subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}) for _ in range(2)
    ]
    assert [machine.wait(timeout=300) for machine in machines] == [0, 0]
    expected, found = (record(out, {str(out): "<run>"}) for out in (one, tmp_path))
    assert unlike(expected, found) == []


@pytest.mark.slow
def test_more_processes_than_prompts(tiny, tmp_path):
    few = settings(tiny, batch_config={"B_E": 2, "B_U": 1, "G": 4})
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(few))
    verb = ("isentrope", "measure", tmp_path / "few.yaml", "--out", tmp_path / "run")
    done = torchrun(5, *verb)
    assert done.stdout.count("Wrote") == 1


@pytest.mark.slow
def test_a_sharded_base_is_evaluated_as_a_whole_one(tiny, tmp_path):
    asked = evaluating.settings(tiny)
    (tmp_path / "asked.yaml").write_text(yaml.safe_dump(asked))
    tables = []
    for name, value in (("whole", "false"), ("sharded", "true")):
        setting = ("--set", f"checkpoint.shard_base={value}")
        verb = ("isentrope", "evaluate", tmp_path / "asked.yaml", *setting)
        torchrun(2, *verb, "--out", tmp_path / name)
        (table,) = (tmp_path / name).glob("*.csv")
        tables.append(pd.read_csv(table))
    pd.testing.assert_frame_equal(*tables)


@pytest.mark.slow
def test_a_failed_process_ends_all_and_says_why(tiny, tmp_path):
    (tmp_path / "asked.yaml").write_text(yaml.safe_dump(settings(tiny)))
    arguments = ("influence", tmp_path / "asked.yaml", "--out", tmp_path / "run")
    done = torchrun(2, "tests.verbs.failing", *arguments, succeeds=False, FAILS="1")
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if "Error:" in line]
    assert any(re.search("Process 1: Error: .*made to fail", line) for line in said), done.stderr
    assert not (tmp_path / "run" / "measurements").exists()


def test_processes_that_do_not_find_each_other(monkeypatch):
    def alone(**options):
        raise torch.distributed.DistStoreError("1/2 clients joined")

    monkeypatch.setattr("accelerate.PartialState", alone)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "there"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=r"Process 1 of 2 .* there:"):
        join_processes()
