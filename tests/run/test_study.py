"""Studies: several checkpoints, several update batches, stopped and gone on with."""

import json
import math

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import isentrope as ise
from isentrope import Estimate, Rollouts
from isentrope.commands.measure import measure
from isentrope.config.io import load_config
from isentrope.results import numbers
from isentrope.run.study import require_one_contract, require_one_model
from isentrope.verbs import measure as measure_module
from tests.tiny_checkpoint import settings

STUDY = [
    "batch_config.repeats=2",
    "batch_config.save_batches=true",
    "estimator.eta_list=[1e-3]",
    "estimator.order=1",
]


@pytest.fixture
def ask(tiny, tmp_path):
    """The configuration of a study of both tiny checkpoints, in a folder of its own."""

    def asked(*more, name="study"):
        both = json.dumps([str(tiny / "step_4"), str(tiny / "checkpoint-8")])
        where = [f"checkpoint.checkpoint_path={both}", f"output.directory={tmp_path / name}"]
        return load_config(settings(tiny), [*STUDY, *where, *more])

    return asked


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """A whole study of both; tests only read it."""
    both = json.dumps([str(tiny / "step_4"), str(tiny / "checkpoint-8")])
    folder = tmp_path_factory.mktemp("whole") / "study"
    where = [f"checkpoint.checkpoint_path={both}", f"output.directory={folder}"]
    return measure(load_config(settings(tiny), [*STUDY, *where]))


def batches(run, name):
    return [Rollouts.load(folder / f"{name}.parquet") for folder in run.measurements.values()]


def csv(run):
    return (run.folder / "measurements" / "measure_study.csv").read_bytes()


def test_all_items_share_the_prompts_of_E_and_repeats_differ_in_U(whole):
    run = whole
    assert list(run.measurements) == ["step_4", "step_4_repeat_1", "step_8", "step_8_repeat_1"]
    assert len({tuple(E.prompt_keys) for E in batches(run, "E")}) == 1
    E, U = ([b.fingerprint for b in batches(run, name)] for name in "EU")
    for first, second in ((0, 1), (2, 3)):
        assert E[first] == E[second]
        assert U[first] != U[second]


def test_the_tidy_table_has_every_repeat_and_their_mean(whole):
    run = whole
    table = pd.read_csv(run.folder / "measurements" / "measure_study.csv")
    first = table[table.quantity == "first_order"].set_index(["checkpoint", "repeat"])
    values = [result.first_order.value for result in run.results]
    assert first.value[("step_4", "mean")] == pytest.approx((values[0] + values[1]) / 2)
    assert first.se_update[("step_8", "mean")] == pytest.approx(abs(values[2] - values[3]) / 2)
    assert set(table.step) == {4, 8}
    assert {"entropy.per_token", "budget.momentum", "sweep[0.001].delta_h"} < set(table.quantity)


def test_a_study_that_was_stopped_goes_on_to_the_same_table(ask, whole, monkeypatch):
    expected = csv(whole)
    real, made = measure_module.measure_checkpoint, []

    def stops(ready, *rest):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(ready.checkpoint.name)
        return real(ready, *rest)

    monkeypatch.setattr(measure_module, "measure_checkpoint", stops)
    with pytest.raises(KeyboardInterrupt):
        measure(ask())
    made.clear()
    assert csv(measure(ask())) == expected
    assert made == ["step_8", "step_8"]
    assert csv(measure(ask())) == expected
    assert len(made) == 2


@pytest.mark.slow
def test_more_repeats_later_leave_the_first_ones(ask):
    first = measure(ask("batch_config.repeats=1")).measurements["step_4"] / "results.json"
    made = first.stat().st_mtime_ns
    run = measure(ask())
    assert first.stat().st_mtime_ns == made
    assert csv(run) == csv(measure(ask(name="at_once")))


@pytest.mark.slow
def test_an_item_run_by_itself_is_the_same_item(ask, tmp_path):
    run = measure(ask())
    config = load_config(run.measurements["step_8_repeat_1"] / "config.yaml")
    alone = measure(load_config(config.model_dump(), [f"output.directory={tmp_path / 'alone'}"]))
    assert list(alone.measurements) == ["step_8_repeat_1"]
    assert alone.results[0].to_dict()["sweep"] == run.results[3].to_dict()["sweep"]


def contract(folder, **changes):
    """A checkpoint's contract, as far as it makes the measured step."""
    folder.mkdir()
    group = {"lr": 1e-3, "initial_lr": 1e-3, "weight_decay": 0.0}
    content = {"objective": "dr_grpo", "temperature": 1.0, "seed": 0, "param_groups": [group]}
    (folder / "contract.json").write_text(json.dumps(content | changes))
    return ise.Checkpoint(folder)


def test_checkpoints_of_runs_that_trained_alike_are_one_study(tmp_path):
    later = {"lr": 1e-4, "initial_lr": 1e-3, "weight_decay": 0.0}
    one = contract(tmp_path / "one", config={"trainer": {"lr_scheduler_type": "linear"}})
    two = contract(tmp_path / "two", seed=1, param_groups=[later], config={"trainer": {}})
    (tmp_path / "foreign").mkdir()
    require_one_contract([one, ise.Checkpoint(tmp_path / "foreign"), two])


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "grpo"},
        {"param_groups": [{"lr": 1e-3, "weight_decay": 0.1}]},
        {"config": {"trainer": {"beta": 0.1}}},
    ],
)
def test_checkpoints_of_runs_that_trained_differently_are_refused(tmp_path, changes):
    one = contract(tmp_path / "one", config={"trainer": {}})
    two = contract(tmp_path / "two", **changes)
    key = "trainer" if "config" in changes else next(iter(changes))
    with pytest.raises(ValueError, match=rf"one .*two .*{key} was .*checkpoint\.allow_mixed"):
        require_one_contract([one, two])


def test_an_adapter_whose_base_is_not_here_is_of_no_model_that_is_known(tmp_path):
    whole, adapter, later = (tmp_path / name for name in ("whole", "adapter", "later"))
    whole.mkdir()
    (whole / "config.json").write_text('{"model_type": "qwen2"}')
    for folder in (adapter, later):
        folder.mkdir()
        settings = {"peft_type": "LORA", "base_model_name_or_path": "someone/model"}
        (folder / "adapter_config.json").write_text(json.dumps(settings))
        save_file({"a.lora_A.weight": torch.ones(2, 2)}, folder / "adapter_model.safetensors")
    require_one_model([ise.Checkpoint(f) for f in (adapter, later)], None)
    require_one_model([ise.Checkpoint(f) for f in (whole, whole)], None)
    with pytest.raises(ValueError, match=r"whole .*adapter .*whose base model is not here"):
        require_one_model([ise.Checkpoint(f) for f in (whole, adapter)], None)


def test_one_update_batch_cannot_be_repeated(ask):
    with pytest.raises(ValueError, match="U_file"):
        ask("batch_config.U_file=some.parquet")


def test_only_numbers_with_an_error_are_in_the_table():
    estimate = Estimate.from_standard_error(1.0, 0.1, 8, unit="", method="")
    content = {"a": estimate, "b": 2.0, "c": 3.0, "c_se": 0.3}
    assert [name for name, *_ in numbers.numbers_in({"x": content})] == ["x.a", "x.c"]


def test_the_influences_of_the_prompts_are_those_of_every_error(whole):
    """An error over E's prompts follows from the influences.

    Numbers of θ itself have none in the table, and neither have the parts of a price and
    the ratio of the first order to the change.
    """
    result = whole.results[0]
    influences = result.tables["influences"].groupby("quantity")["influence"]
    own = {name: math.sqrt(len(x) / (len(x) - 1) * float(x @ x)) for name, x in influences}
    for name, estimate, _ in numbers.numbers_in(vars(result)):
        without = name.startswith(("entropy.", "price.")) or name == "reward.at_theta"
        without = without or name.endswith("first_over_change")
        if not without and not math.isnan(estimate.se):
            assert own[name] == pytest.approx(estimate.se, rel=1e-9, abs=1e-15), name
