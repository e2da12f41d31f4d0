"""`isentrope plan`: what does not fit is refused with a cure, and verbs refuse it themselves."""

import json
import logging

import pytest
import yaml

from isentrope.cli.console import out
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.models import checkpoint
from isentrope.planning import memory
from isentrope.planning.plan import DoesNotFitError
from isentrope.training.models import load_trainable
from isentrope.verbs import before_work
from tests.command_line import call
from tests.tiny_checkpoint import settings
from tests.verbs import evaluating


@pytest.fixture
def config(tiny, tmp_path):
    """A configuration file of the tiny checkpoint."""
    path = tmp_path / "measure.yaml"
    path.write_text(yaml.safe_dump(settings(tiny)))
    return path


def document(*arguments):
    """The plan of a verb as JSON."""
    (content,) = json.loads(call("plan", *arguments, "--json", "--memory", "64GB").stdout)
    return content


def test_a_plan_that_fits_ends_with_0_and_names_its_parts(config, monkeypatch):
    monkeypatch.setattr(out, "_width", 80)  # which a console takes when it is imported
    done = call("plan", config, "--verb", "kernel", "--memory", "64GB", status=0)
    for word in ("drawing", "step", "UU", "held", "largest", "peak", "64.00 GB", "unknown"):
        assert word in done.stdout
    table = [line for line in done.stdout.splitlines() if "─" in line]
    assert table
    assert all(len(line) <= 80 for line in table)


def test_a_plan_reads_no_weights(config, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("weights were read")

    monkeypatch.setattr("safetensors.safe_open", refuse)
    monkeypatch.setattr("safetensors.torch.load_file", refuse)
    monkeypatch.setattr("torch.load", refuse)
    monkeypatch.setattr(checkpoint, "load_checkpoint", refuse)
    call("plan", config, "--memory", "64GB", status=0)


def test_what_does_not_fit_ends_with_1_and_names_a_change_that_fits(config):
    more = ("--verb", "kernel", "--set", "batch_config.B_U=40")
    whole = document(config, *more)
    largest = max(whole["parts"], key=lambda part: sum(part["memory"].values()))
    saved = sum(size for name, size in largest["memory"].items() if name == "activations") // 2
    limit = f"{(whole['peak'] - saved) // 1000}KB"
    done = call("plan", config, *more, "--memory", limit, status=1)
    assert "kernel of step_4 does not fit: it takes" in done.stderr
    assert f"--set {largest['setting']}=" in done.stderr


def test_the_memory_of_an_update_does_not_depend_on_the_size_of_E(config):
    steps = [
        next(part for part in plan["parts"] if part["name"] == "step")
        for plan in (
            document(config, "--verb", "kernel", "--set", f"batch_config.B_E={n}")
            for n in (20, 600)
        )
    ]
    assert steps[0] == steps[1]


def test_a_device_that_is_not_here_is_planned_too(config):
    done = call("plan", config, "--set", "checkpoint.device_map=cuda", "--verb", "noise", status=0)
    assert "gradients of prompts" in done.stdout


def test_a_gpu_reads_no_more_tokens_at_a_time_than_half_of_its_memory_holds(config):
    more = ("--verb", "measure", "--json", "--set", "checkpoint.device_map=cuda")
    more = (*more, "--set", "batch_config.B_E=4000", "--set", "sampling.max_tokens=100000")

    def tokens(memory):
        (planned,) = json.loads(call("plan", config, *more, "--memory", memory).stdout)
        return next(part["value"] for part in planned["parts"] if part["name"] == "sweep")

    assert tokens("530MB") < tokens("64GB") / 4


def test_seconds_are_those_of_an_earlier_run_and_scale_with_responses(config, tmp_path):
    run = tmp_path / "run"
    more = ("--verb", "variance", "--set", f"output.directory={run}")
    assert document(config, *more)["seconds"] == {}
    named = "--set output.directory=RUN"
    assert named in call("plan", config, *more, "--memory", "64GB", status=0).stdout
    assert call("variance", config, "--out", run).exit_code == 0
    timing = json.loads(next(run.glob("measurements/*/results.json")).read_text())["timing"]
    same = document(config, *more)
    twice = document(config, *more, "--set", "batch_config.B_E=24")
    assert str(run) in same["measured_by"]
    for stage in ("derivatives", "moved", "control_variate"):
        assert same["seconds"][stage] == pytest.approx(timing[stage])
        assert twice["seconds"][stage] == pytest.approx(2 * timing[stage])
    assert document(config, *more, "--set", "precision.runtime_dtype=float32")["seconds"] == {}
    assert named not in call("plan", config, *more, "--memory", "64GB", status=0).stdout
    assert document(config, "--verb", "noise", *more[2:])["seconds"] == {}


def test_sizes_and_verbs_that_are_not_understood_are_refused(config):
    done = call("plan", config, "--memory", "lots", status=1)
    assert "is not a size" in done.stderr
    done = call("plan", config, "--set", "checkpoint.shard_base=true", status=1)
    assert "a plan is of one" in " ".join(done.stderr.split())
    done = call("plan", config, "--verb", "evaluate", status=1)
    assert (
        "is for measure, influence, kernel, noise, variance, audit, not for evaluate"
        in " ".join(done.stderr.split())
    )


def test_a_verb_refuses_before_any_work_what_cannot_fit(config, monkeypatch, tmp_path):
    monkeypatch.setattr(before_work, "memory_of", lambda *_: 10**6)
    done = call("influence", config, "--out", tmp_path / "run", status=1)
    sentence = " ".join(done.stderr.split())
    assert "influence of step_4 does not fit: it holds" in sentence
    assert "isentrope plan names the smallest change" in sentence
    assert not (tmp_path / "run" / "measurements").exists()


@pytest.fixture
def cramped(monkeypatch):
    """Leave a machine as much memory as is given, beside the libraries."""

    def leave(size):
        monkeypatch.setattr(before_work, "memory_of", lambda *_: int(size))
        monkeypatch.setattr(before_work, "libraries_bytes", lambda *_: 0)
        monkeypatch.setattr("isentrope.verbs.part_memory.libraries_bytes", lambda *_: 0)

    return leave


def test_a_verb_warns_before_its_work_of_passes_that_may_not_fit(config, cramped, tmp_path):
    planned = document(config, "--verb", "kernel")
    held = sum(term["size"] for term in planned["held"])
    largest = max(planned["parts"], key=lambda part: sum(part["memory"].values()))
    cramped(held + sum(largest["memory"].values()) // 2)
    done = call("kernel", config, "--out", tmp_path / "run", status=0)
    sentence = " ".join(done.stderr.split())
    assert f"kernel of step_4 may not fit: with its part '{largest['name']}'" in sentence
    assert "would fit." in sentence


def test_what_fits_by_a_coarse_count_is_not_planned(config, cramped, monkeypatch, tmp_path):
    monkeypatch.setattr(before_work, "plan_verb", None)
    cramped(1e12)
    done = call("kernel", config, "--out", tmp_path / "run", status=0)
    assert "may not fit" not in done.stderr


def test_an_evaluation_refuses_weights_and_warns_of_passes(tiny, cramped, caplog):
    config = load_config(evaluating.settings(tiny), root=EvaluateConfig)
    arguments = ("step_4", tiny / "step_4", config)
    cramped(1e4)
    with pytest.raises(DoesNotFitError) as refusal:
        before_work.require_memory_to_evaluate(*arguments)
    assert "evaluate of step_4 does not fit: it holds" in str(refusal.value)
    cramped(4e5)
    with caplog.at_level(logging.WARNING):
        before_work.require_memory_to_evaluate(*arguments)
    (record,) = caplog.records
    assert "evaluate of step_4 may not fit" in record.message


def test_a_training_warns_of_an_update_that_may_not_fit(cramped, caplog):
    config = load_config({"model": {"path": "toy", "lora_rank": 0}}, root=TrainConfig)
    model, _ = load_trainable("toy", lora_rank=0, lora_alpha=1)
    cramped(sum(memory.held_in_training(model).values()) + 10**6)
    with caplog.at_level(logging.WARNING):
        before_work.warn_of_training(config, "train", model, "cpu")
    (record,) = caplog.records
    assert "train of toy may not fit" in record.message
