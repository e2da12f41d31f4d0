"""Two processes on one machine: torchrun, gloo."""

import pandas as pd
import pytest
import torch
import yaml

from isentrope import Policy
from isentrope.checkpoint.record.next_update import read_next_update
from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.nouns.vectors import norm
from isentrope.policy.gradient import weighted_gradient
from isentrope.probe.online_noise_scale import micro_batch_moments
from isentrope.update.objective import token_weights
from isentrope.verbs.train import resume, train
from tests.torchrun import torchrun
from tests.training import runs
from tests.training.test_trainer import replayed

TRAINING = {"steps": 10, "prompts_per_step": 8, "micro_batch": 16, "save_every": 1}
PROBE = {"every": 1, "size": 5}


def settings(folder, name):
    made = runs.settings(folder, training=TRAINING, entropy_probe=PROBE)
    return made | {"output": made["output"] | {"directory": str(folder / name)}}


def train_by_two(*arguments):
    return torchrun(2, "isentrope", "train", *arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of two processes in two/, the same run of one process in one/."""
    made = tmp_path_factory.mktemp("two_processes")
    (made / "two.yaml").write_text(yaml.safe_dump(settings(made, "two")))
    train_by_two(str(made / "two.yaml"))
    train(load_config(settings(made, "one"), root=TrainConfig))
    return made


@pytest.mark.slow
def test_every_step_is_rebuilt_from_its_contract(folder):
    for step in range(1, 10):
        assert runs.relative(*replayed(folder / "two", step)) < 1e-5


@pytest.mark.slow
def test_no_prompt_is_drawn_twice_in_a_step_and_batch_and_gradient_are_those_of_one(folder):
    for step, (one, two) in enumerate(
        zip(runs.lines(folder / "one"), runs.lines(folder / "two"), strict=True), start=1
    ):
        table = {
            name: pd.read_parquet(folder / name / "logs" / "rollouts" / f"step_{step}.parquet")
            for name in ("one", "two")
        }
        assert table["two"].groupby("prompt_key").prompt_index.nunique().max() == 1
        assert list(table["one"].response) == list(table["two"].response)
        assert two["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-5)
        assert two["drawn"] == one["drawn"]
    last = [runs.parameters(folder / name, 10) for name in ("two", "one")]
    assert runs.relative(*last) < 1e-5


@pytest.mark.slow
def test_the_probe_does_not_depend_on_the_number_of_processes(folder):
    for a, b in zip(runs.lines(folder / "one"), runs.lines(folder / "two"), strict=True):
        for name in ("first_order", "first_order_se", "change", "momentum", "ess"):
            assert b[f"probe/{name}"] == pytest.approx(a[f"probe/{name}"], rel=1e-3, abs=1e-9)


@pytest.mark.slow
def test_the_noise_scale_is_that_of_the_micro_batches_seen_alone(folder):
    here = folder / "two" / "training_state" / "step_9"
    policy, (U, _) = Policy.from_checkpoint(here, precision="float64"), read_next_update(here)
    weights = token_weights(U, "recorded")

    def gradient(rows):
        return weighted_gradient(policy, U.select(rows), weights[list(rows)])

    # 8 groups of 8: each process has two micro-batches of 2 groups, and sees its first one alone
    alone = [4 * norm(gradient(rows)) for rows in (range(16), range(32, 48))]
    mean_square = sum(x**2 for x in alone) / 2
    trace, _ = micro_batch_moments(mean_square, norm(gradient(range(64))) ** 2, 4, 2)
    sums = [
        line["noise_scale/trace"] * (1 - 0.95 ** line["step"]) / 0.05
        for line in runs.lines(folder / "two")[-2:]
    ]
    assert sums[1] - 0.95 * sums[0] == pytest.approx(trace, rel=1e-3)


@pytest.mark.slow
def test_a_step_control_does_not_depend_on_the_number_of_processes(folder):
    name = "budget"
    control = {"name": name, "target": {"kind": "hold"}, "options": {"size": 32, "average": 3}}
    for n in ("one", "two"):
        made = settings(folder, f"{name}_{n}") | {"control": control}
        if n == "one":
            train(load_config(made, root=TrainConfig))
        else:
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(made))
            train_by_two(str(folder / f"{name}.yaml"))
    one, two = (runs.lines(folder / f"{name}_{n}") for n in ("one", "two"))
    assert any(line["control/lambda"] for line in one)
    for a, b in zip(one, two, strict=True):
        for key in ("entropy", "predicted", "gain", "gain_se", "lambda", "step_share"):
            assert b[f"control/{key}"] == pytest.approx(a[f"control/{key}"], rel=1e-3, abs=1e-9)
    last = [runs.parameters(folder / f"{name}_{n}", 10) for n in ("two", "one")]
    assert runs.relative(*last) < 1e-4


@pytest.mark.slow
def test_two_processes_resume_to_the_bit_and_one_is_refused(folder):
    (folder / "parts.yaml").write_text(yaml.safe_dump(settings(folder, "parts")))
    train_by_two(str(folder / "parts.yaml"), "--set", "training.steps=6")
    with pytest.raises(ValueError, match=r"world_size=2, and has world_size=1"):
        resume(folder / "parts", ["training.steps=10"])
    train_by_two("--resume", str(folder / "parts"), "--set", "training.steps=10")
    for name in ("training_state/step_10/adapter_model.safetensors", "logs/metrics.jsonl"):
        assert (folder / "parts" / name).read_bytes() == (folder / "two" / name).read_bytes()


@pytest.mark.slow
def test_two_processes_record_an_entropy_bonus(tmp_path):
    made = settings(tmp_path, "bonus") | {"trainer": {"entropy_coef": 2.0}}
    (tmp_path / "bonus.yaml").write_text(yaml.safe_dump(made))
    train_by_two(str(tmp_path / "bonus.yaml"), "--set", "training.steps=3")
    for step in (1, 2):
        assert runs.relative(*replayed(tmp_path / "bonus", step)) < 1e-5
    U, _ = read_next_update(tmp_path / "bonus" / "training_state" / "step_1")
    # a mean over the tokens of each of the four micro-batches of 2 groups of 8
    for i in range(4):
        here = U.select(range(16 * i, 16 * i + 16))
        weights = torch.cat(here.entropy_weights)
        expected = torch.full_like(weights, 2.0 / (4 * len(weights)))
        torch.testing.assert_close(weights, expected, rtol=1e-5, atol=0)
