"""Training over a frozen base that is spread over processes: the run of a whole one."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

from isentrope import Policy
from isentrope.config import trl
from isentrope.config.io import ConfigError, load_config
from isentrope.config.train import ModelConfig, TrainConfig
from isentrope.config.trl import require_spreadable
from isentrope.control import requirements
from isentrope.policy.token_statistics import NotFiniteError
from isentrope.probe.guard import SharedPassError, never_raising, on_every_process
from isentrope.verbs.train import train
from tests.torchrun import torchrun
from tests.training import runs

TASK = f"{Path(__file__).with_name('digit_first.py')}:digit_first"
TRAINING = {"steps": 4, "prompts_per_step": 8, "micro_batch": 16, "save_every": 2}
PROBE = {"every": 2, "size": 5, "second_order": True, "log_every": 1, "fresh": True}


def settings(folder, name, **sections):
    sampling = {"max_new_tokens": 6, "batch_size": 5}  # responses of many lengths, in many batches
    made = runs.settings(folder, training=TRAINING, entropy_probe=PROBE, sampling=sampling)
    made["data"]["dataset_name"] = TASK
    made["model"]["shard_base"] = name.startswith("sharded")
    made["trainer"] = {"gradient_checkpointing": True}
    return made | {"output": made["output"] | {"directory": str(folder / name)}} | sections


def written(asked):
    """The file of a configuration."""
    file = Path(asked["output"]["directory"]).with_suffix(".yaml")
    file.write_text(yaml.safe_dump(asked))
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of two processes in whole/, and with the base spread over them in sharded/."""
    made = tmp_path_factory.mktemp("sharded_base")
    for name in ("whole", "sharded"):
        torchrun(2, "isentrope", "train", written(settings(made, name)))
    return made


@pytest.mark.slow
def test_the_run_is_that_of_a_whole_base(folder):
    lengths = pd.read_parquet(folder / "whole/logs/rollouts/step_1.parquet").response_ids.map(len)
    assert lengths.nunique() > 2
    assert runs.relative(*(runs.parameters(folder / n, 4) for n in ("sharded", "whole"))) < 1e-6
    whole, sharded = (runs.lines(folder / n) for n in ("whole", "sharded"))
    assert "probe/second_order" in whole[0]
    for one, two in zip(whole, sharded, strict=True):
        assert set(one) == set(two)
        for name, value in one.items():
            if isinstance(value, int | float):
                value = pytest.approx(value, rel=1e-5, abs=1e-9)
            assert two[name] == value, name


@pytest.mark.slow
def test_it_resumes_to_the_bit(folder):
    parts = settings(folder, "sharded_parts")
    torchrun(2, "isentrope", "train", written(parts), "--set", "training.steps=2")
    torchrun(
        2,
        "isentrope",
        "train",
        "--resume",
        folder / "sharded_parts",
        "--set",
        "training.steps=4",
    )
    for name in ("training_state/step_4/adapter_model.safetensors", "logs/metrics.jsonl"):
        parts, whole = (folder / run / name for run in ("sharded_parts", "sharded"))
        assert parts.read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_fine_tuning_of_a_spread_base_makes_the_model_of_a_whole_one(folder):
    models = {}
    for name in ("whole_tuned", "sharded_tuned"):
        asked = settings(folder, name)
        tuning = {"steps": 4, "batch_size": 6, "learning_rate": 1e-2, "warmup_steps": 1}
        data = {"dataset_name": "addition"}
        sections = {"model": asked["model"], "data": data, "output": asked["output"]}
        torchrun(2, "isentrope", "sft", written(sections | {"fine_tuning": tuning}))
        models[name] = Policy.from_checkpoint(folder / name / "model", precision="float32").theta
    assert runs.relative(models["sharded_tuned"], models["whole_tuned"]) < 1e-6


def test_what_cannot_be_spread_is_refused(tmp_path, monkeypatch):
    asked = settings(tmp_path, "sharded")
    with pytest.raises(ValueError, match=r"there is one: .*torchrun"):
        train(load_config(asked, root=TrainConfig))
    monkeypatch.setattr(trl, "world_size", lambda: 2)
    for fields, rank, said in (
        ({}, 0, "adapter"),
        ({"fsdp": "full_shard"}, 2, "FSDP"),
        ({"use_vllm": True}, 2, "use_vllm"),
    ):
        model = ModelConfig(path="base", lora_rank=rank, shard_base=True)
        with pytest.raises(ConfigError, match=said):
            require_spreadable(model, fields)
    require_spreadable(ModelConfig(path="base", shard_base=True), {})


def test_controls_with_passes_of_their_own_are_refused_over_a_spread_base(monkeypatch):
    monkeypatch.setattr(requirements, "is_spread", lambda _: True)
    trainer = SimpleNamespace(is_fsdp_enabled=False, is_deepspeed_enabled=False, model=None)
    requirements.require_controllable(trainer, None)
    with pytest.raises(ValueError, match=r"kept_mass .*shard_base"):
        requirements.require_controllable(trainer, "kept_mass")


def test_an_error_in_a_shared_pass_ends_training():
    class Observer:
        off = False

        @never_raising
        def hook(self, args, state, control, shared, error):
            on_every_process(shared, lambda: fail(error))

        def switch_off(self, step, error):
            self.off = True

    def fail(error):
        raise error("made to fail")

    observer, state = Observer(), SimpleNamespace(global_step=3)
    with pytest.raises(SharedPassError, match="made to fail"):
        observer.hook(None, state, None, shared=True, error=RuntimeError)
    for shared, error in ((False, RuntimeError), (True, NotFiniteError)):
        observer.off = False
        observer.hook(None, state, None, shared=shared, error=error)
        assert observer.off
