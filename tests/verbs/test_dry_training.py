"""A training that is planned: its own trainer for two steps, and nothing is left of it."""

import pytest
import yaml

from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.planning.plan import Stage
from isentrope.verbs import dry_training
from isentrope.verbs import plan as planning
from isentrope.verbs.dry_training import Counts, small_training, small_tuning
from isentrope.verbs.plan import plan
from tests.training import runs

pytest.importorskip("trl")


@pytest.fixture
def asked(tmp_path):
    training = {"steps": 30, "micro_batch": 1, "save_every": 10}
    sections = {"training": training, "entropy_probe": {"every": 8, "size": 6}}
    file = tmp_path / "train.yaml"
    file.write_text(yaml.safe_dump(runs.settings(tmp_path, **sections)))
    return file


def test_a_run_is_counted_by_its_settings(asked):
    config = load_config(asked, root=TrainConfig)
    sections, counts = small_training(config.training, config.entropy_probe, 3)
    assert counts == Counts(30, 4, "training.micro_batch", 1, readings=4, probed=6, draws=10)
    assert sections["training"].prompts_per_step == sections["training"].micro_batch == 1
    assert sections["training"].steps == 30  # of which schedules are made
    assert sections["entropy_probe"].every == 1


def test_a_training_is_planned_by_two_steps_of_its_own_trainer(asked, monkeypatch, tmp_path):
    steps, seen = [], dry_training.stages_of_training

    def stages(trainer, counts):
        found = seen(trainer, counts)
        steps.append(trainer.state.global_step)
        return found

    monkeypatch.setattr(dry_training, "stages_of_training", stages)
    before = sorted(tmp_path.rglob("*"))
    (found,) = plan(str(asked), verbs=["train"], memory="64GB")
    assert steps == [2]
    assert sorted(tmp_path.rglob("*")) == before
    assert found.not_run is None
    assert found.fits
    assert [stage.name for stage in found.stages] == ["load", "sampling", "update", "probe"]
    by_name = {stage.name: stage for stage in found.stages}
    assert by_name["update"].peak > by_name["update"].fixed > by_name["load"].peak
    assert found.seconds == pytest.approx(sum(stage.seconds for stage in found.stages))


def test_more_steps_and_passes_take_more_in_proportion(monkeypatch):
    class First:
        def __init__(self, trainer):
            self.before, self.held = 100, 150
            self.gauged = type("M", (), {"peaks": {"update": 300, "probe": 200}})
            self.timed = type("C", (), {"seconds": {"step": 10.0, "update": 4.0, "probe": 5.0}})
            self.alive = type("A", (), {"resident": lambda _, of: (of(1), of(0))})()

    monkeypatch.setattr(dry_training, "FirstSteps", First)
    trainer = type("T", (), {"train": lambda _: None})()
    trainer.callback_handler = type("H", (), {"callbacks": []})
    counts = Counts(20, 3, "s", 8, readings=2, probed=6, longer=1.5)
    update, probe = dry_training.stages_of_training(trainer, counts)
    assert update == Stage("update", 20 * (3 * 4.0 + 1.0), 150 + 300, 150, "s", 8)
    assert probe == Stage("probe", 10.0, 250, 150, "entropy_probe.size", 6)


def test_a_fine_tuning_is_planned_by_two_steps(tmp_path):
    file = tmp_path / "sft.yaml"
    tuning = {"steps": 50, "batch_size": 8, "micro_batch": 4}
    sections = {"model": {"path": "toy", "lora_rank": 0}, "fine_tuning": tuning}
    file.write_text(yaml.safe_dump(sections | {"data": {"dataset_name": "addition"}}))
    (found,) = plan(str(file), memory="64GB")
    assert [stage.name for stage in found.stages] == ["load", "update"]
    assert found.stages[1].setting == "fine_tuning.micro_batch"
    assert list(tmp_path.iterdir()) == [file]
    config = load_config(file, root=type(load_any(file)))
    assert small_tuning(config.fine_tuning)[1].passes == 2


@pytest.mark.parametrize("verb", ["train", "sft"])
def test_a_run_of_one_step_is_planned_by_two_and_counted_once(asked, tmp_path, verb):
    settings = ["training.steps=1"]
    if verb == "sft":
        asked = tmp_path / "sft.yaml"
        sections = {"model": {"path": "toy", "lora_rank": 0}, "fine_tuning": {"batch_size": 4}}
        sections["data"] = {"dataset_name": "addition"}
        asked.write_text(yaml.safe_dump(sections))
        settings = ["fine_tuning.steps=1"]
    (found,) = plan(str(asked), settings, verbs=[verb], memory="64GB")
    assert {"load", "update"} <= {stage.name for stage in found.stages}
    config = load_config(asked, settings, root=type(load_any(asked)))
    if verb == "train":
        counts = small_training(config.training, config.entropy_probe, 1)[1]
    else:
        counts = small_tuning(config.fine_tuning)[1]
    assert counts.steps == 1


def test_a_training_with_a_budget_is_planned_without_it(asked):
    (found,) = plan(str(asked), ["control.name=budget"], verbs=["train"], memory="64GB")
    assert found.stages
    assert found.checkpoint.endswith(", without control.name=budget")


def test_draws_hold_the_moments_of_the_optimizer(asked):
    settings = ["model.lora_rank=0", "entropy_probe.enabled=false"]
    (found,) = plan(str(asked), settings, verbs=["train"], memory="64GB")
    load, sampling, _ = found.stages
    assert sampling.fixed - load.fixed >= found.held["moments of Adam"]


@pytest.mark.parametrize("why", ["full in its dry run", "holds more than this machine has"])
def test_memory_that_is_too_small_for_two_steps_leaves_shapes(asked, monkeypatch, why):
    def full(*_):
        raise MemoryError

    if why.startswith("full"):
        monkeypatch.setattr(dry_training, "stages_of_training", full)
    else:
        monkeypatch.setattr(planning, "memory_of", lambda _: 1000)
    (found,) = plan(str(asked), verbs=["train"], memory="64GB")
    assert why in found.not_run
    assert [stage.name for stage in found.stages] == ["sampling", "update"]
    assert found.seconds is None


def load_any(file):
    from isentrope.verbs.kinds import load_any as load

    return load(file)


def test_what_is_not_planned_is_refused_by_name(asked, tmp_path):
    with pytest.raises(ValueError, match="is for train, measure, influence, not for sft"):
        plan(str(asked), verbs=["sft"])
    with pytest.raises(FileNotFoundError, match=r"plan with --set model\.path="):
        plan(str(asked), ["model.path=runs/none/model"])
    with pytest.raises(ValueError, match=r"model\.shard_base spreads"):
        plan(str(asked), ["model.shard_base=true"])
    (found,) = plan(str(asked), ["trainer.use_vllm=true"], verbs=["train"], memory="64GB")
    assert found.not_run == "vLLM is to sample"
