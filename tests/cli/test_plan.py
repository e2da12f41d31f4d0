"""`isentrope plan`: what does not fit is refused with a cure, and verbs refuse it themselves."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from isentrope.cli.main import app
from isentrope.config.measure import BatchConfig, CheckpointConfig
from isentrope.config.sizes import Lengths
from isentrope.verbs import plan as pipeline
from tests.tiny_checkpoint import settings


@pytest.fixture
def asked(tiny, tmp_path):
    """A configuration file of the tiny checkpoint."""
    path = tmp_path / "asked.yaml"
    path.write_text(yaml.safe_dump(settings(tiny)))
    return path


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "80"})


def test_a_plan_that_fits_ends_with_0_and_names_its_stages(asked):
    done = call("plan", asked, "--verb", "kernel", "--memory", "64GB")
    assert done.exit_code == 0, done.output
    for word in ("load", "sampling", "update", "kernel UU", "peak", "64.00 GB"):
        assert word in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if "│" in line or "─" in line)


def test_what_does_not_fit_ends_with_1_and_names_a_cure_that_fits(asked):
    plan = ("plan", asked, "--verb", "kernel", "--prompt-tokens", 400, "--json")
    plan = (*plan, "--set", "sampling.max_new_tokens=200", "--set", "batch_config.B_U=40")
    whole = json.loads(call(*plan, "--memory", "64GB").stdout)[0]
    largest = max(stage["peak"] for stage in whole["stages"])
    limit = f"{(whole['libraries'] + largest * 3 // 4) // 1000}KB"
    done = call(*plan, "--memory", limit)
    assert done.exit_code == 1
    assert "kernel of step_4 does not fit: it takes" in done.stderr
    assert "--set sampling.max_tokens=4096 would fit." in " ".join(done.stderr.split())


def test_several_processes_share_time_and_a_spread_base(asked):
    def planned(*more):
        plan = ("plan", asked, "--verb", "kernel", "--memory", "64GB", "--json", *more)
        return json.loads(call(*plan).stdout)[0]["stages"]

    def weights(stage):
        return next(term["size"] for term in stage["terms"] if term["name"] == "weights")

    spread = ("--processes", 2, "--set", "checkpoint.shard_base=true")
    one, two, sharded = planned(), planned("--processes", 2), planned(*spread)
    for alone, shared in zip(one, two, strict=True):
        assert shared["work"]["flops"] == alone["work"]["flops"] / 2
        assert shared["peak"] <= alone["peak"]
    assert all(weights(a) < 0.7 * weights(b) for a, b in zip(sharded, two, strict=True))
    done = call("plan", asked, "--set", "checkpoint.shard_base=true")
    assert done.exit_code == 1
    assert "--processes" in done.stderr


def test_sizes_and_verbs_that_are_not_understood_are_refused(asked):
    done = call("plan", asked, "--memory", "lots")
    assert done.exit_code == 1
    assert "is not a size" in done.stderr
    done = call("plan", asked, "--verb", "evaluate")
    assert done.exit_code == 1
    assert (
        "is for measure, influence, kernel, noise, variance, audit, not for evaluate"
        in " ".join(done.stderr.split())
    )


def test_a_verb_refuses_before_any_work_what_cannot_fit(asked, monkeypatch, tmp_path):
    monkeypatch.setattr(pipeline, "memory_of", lambda *_: 10**6)
    done = call("influence", asked, "--out", tmp_path / "run")
    assert done.exit_code == 1
    sentence = " ".join(done.stderr.split())
    assert "influence of step_4 does not fit: it holds" in sentence
    assert "isentrope plan names the smallest change" in sentence
    assert not (tmp_path / "run" / "measurements").exists()


def test_responses_given_as_ids_are_as_long_as_they_are(tiny, tmp_path):
    file = tmp_path / "U.jsonl"
    rows = [{"prompt_ids": [2, 3, 4], "response_ids": list(range(2, 2 + n))} for n in (5, 7)]
    file.write_text("\n".join(map(json.dumps, rows)))
    shapes = pipeline.checkpoint_shapes(tiny / "step_4", CheckpointConfig(checkpoint_path="step_4"))
    data = BatchConfig(dataset_name="prompts", U_file=str(file), E_file=str(file))
    for batch in pipeline.batch_lengths(data, shapes, None):
        assert batch == Lengths(2, 3, 7)
