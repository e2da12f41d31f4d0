"""`isentrope plan`: what does not fit is refused with a cure, and verbs refuse it themselves."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from isentrope.cli.main import app
from isentrope.policy.language_model import Policy
from isentrope.verbs import plan as pipeline
from isentrope.verbs.dry_run import Batch, batches_of
from isentrope.verbs.kinds import load_any
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
    for word in ("load", "sampling", "update", "kernel", "held", "peak", "64.00 GB"):
        assert word in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if "│" in line or "─" in line)


def test_what_does_not_fit_ends_with_1_and_names_a_cure(asked):
    plan = ("plan", asked, "--verb", "kernel", "--json")
    plan = (*plan, "--set", "sampling.max_new_tokens=12", "--set", "batch_config.B_U=40")
    whole = json.loads(call(*plan, "--memory", "64GB").stdout)[0]
    stage = max(whole["stages"], key=lambda stage: stage["peak"])
    limit = f"{(whole['libraries'] + (stage['peak'] + stage['fixed']) // 2) // 1000}KB"
    done = call(*plan, "--memory", limit)
    assert done.exit_code == 1
    assert "kernel of step_4 does not fit: it takes" in done.stderr


def test_the_memory_of_an_update_does_not_depend_on_the_size_of_E(asked):
    plan = ("plan", asked, "--verb", "kernel", "--json", "--set", "sampling.max_new_tokens=24")
    few, many = (
        json.loads(
            call(*plan, "--set", "batch_config.B_U=40", "--set", f"batch_config.B_E={n}").stdout
        )
        for n in (20, 600)
    )
    peaks = [s["peak"] for of in (few, many) for s in of[0]["stages"] if s["name"] == "update"]
    assert peaks[1] == pytest.approx(peaks[0], rel=0.1), peaks


def test_what_cannot_be_run_here_is_planned_by_what_it_holds(asked):
    done = call("plan", asked, "--set", "checkpoint.device_map=cuda", "--verb", "noise")
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    assert "held without any pass" in said
    assert "This is not all: no pass is in it, since there is no CUDA device here." in said


def test_sizes_and_verbs_that_are_not_understood_are_refused(asked):
    done = call("plan", asked, "--memory", "lots")
    assert done.exit_code == 1
    assert "is not a size" in done.stderr
    done = call("plan", asked, "--set", "checkpoint.shard_base=true")
    assert done.exit_code == 1
    assert "a plan runs in one" in " ".join(done.stderr.split())
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


def test_responses_given_as_ids_are_as_long_as_they_are(asked, tiny, tmp_path):
    file = tmp_path / "U.jsonl"
    rows = [{"prompt_ids": [2, 3, 4], "response_ids": list(range(2, 2 + n))} for n in (5, 7)]
    file.write_text("\n".join(map(json.dumps, rows)))
    given = [f"batch_config.{name}_file={file}" for name in "EU"]
    policy = Policy.from_checkpoint(tiny / "step_4")
    for batch in batches_of(load_any(asked, given), policy):
        assert sorted(batch.lengths) == [(3, 5), (3, 7)]
        assert not batch.drawn


def test_a_share_of_a_batch_has_its_longest_sequence():
    whole = Batch([(10, 100)] * 3 + [(10, 20)] * 1021, 4, True)
    small, large = whole.shares(4)
    assert large.group == small.group == 2
    assert len(small.lengths) == len(large.lengths)
    assert 4 * small.tokens == pytest.approx(large.tokens, rel=0.1)
    assert large.lengths[0][1] > 90
    alone = Batch([(16, 984)] * 2, 1, False).shares(16)[1]
    assert alone.tokens == pytest.approx(100, abs=4)
