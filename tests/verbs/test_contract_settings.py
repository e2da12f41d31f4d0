"""What contract.json says of training fills keys that are not set and is held against others."""

import pytest

import isentrope as ise
from isentrope.checkpoint.in_force import Origin
from isentrope.checkpoint.settle import settle
from isentrope.cli.commands import MEASURING
from isentrope.config.io import ConfigError, load_config
from isentrope.verbs.loop import run_verb
from tests.tiny_checkpoint import settings
from tests.verbs.as_trained import CONTRACT, contract, refused, settled


def test_keys_that_are_not_set_are_those_of_training(trained):
    config, found = settled(trained)
    assert config.sampling.temperature == 0.7
    assert config.sampling.max_new_tokens == 2
    assert config.estimator.max_grad_norm is None
    assert config.estimator.objective == "dr_grpo_longest"
    assert config.batch_config.G == 3
    assert found.obstacles == ()
    assert found.origins["sampling.temperature"] == Origin(0.7, "contract.json", 0.7)
    assert found.origins["estimator.clip"].source == "default"


@pytest.mark.parametrize(
    ("key", "value", "was"),
    [
        ("sampling.temperature", "1.0", "0.7"),
        ("sampling.max_new_tokens", "5", "2"),
        ("estimator.max_grad_norm", "1.0", "None"),
        ("estimator.objective", "dr_grpo", "'dr_grpo_longest'"),
        ("batch_config.G", "4", "3"),
    ],
)
def test_a_key_that_differs_is_refused_with_both_values_and_a_way_out(trained, key, value, was):
    message = refused(trained, f"{key}={value}")
    assert f"{key} is " in message
    assert f"training had {was} (contract.json)" in message
    assert f"ignore_training_settings: [{key}]" in message
    ignore = f"estimator.ignore_training_settings=[{key}]"
    assert refused(trained, f"{key}={value}", ignore) == ""
    (warning,) = settled(trained, f"{key}={value}", ignore)[1].warnings
    assert warning.startswith("NOT TRAINING'S STEP")
    assert key in warning


def test_a_key_that_is_set_as_in_training_is_fine(trained):
    _, found = settled(trained, "sampling.temperature=0.7", "estimator.max_grad_norm=null")
    assert found.obstacles == ()
    assert found.origins["sampling.temperature"].source == "configuration"


def test_an_unknown_name_among_the_ignored_is_an_error(trained):
    with pytest.raises(ConfigError, match=r"'temprature' .*'sampling.temperature'"):
        settled(trained, "estimator.ignore_training_settings=[temprature]")


def test_a_run_that_cannot_be_replayed_is_refused_whatever_the_objective(trained, tmp_path):
    contract(trained, replayable=False)
    assert "contract.json says that its steps cannot be replayed" in refused(trained)
    recorded = ("estimator.objective=recorded", f"batch_config.U_file={tmp_path}/U.jsonl")
    assert "cannot be replayed" in refused(trained, *recorded)
    assert refused(trained, "estimator.ignore_training_settings=[replayable]") == ""


@pytest.mark.parametrize("objective", ["recorded", "sft"])
def test_an_objective_that_needs_a_file_says_so(trained, tmp_path, objective):
    contract(trained, objective=objective)
    assert "needs batch_config.U_file" in refused(trained)
    config, found = settled(trained, f"batch_config.U_file={tmp_path}/U.jsonl")
    assert (config.estimator.objective, found.obstacles) == (objective, ())


def test_a_fresh_batch_of_a_controlled_run_has_the_objective_without_control(trained, tmp_path):
    """And training's own batch the recorded one."""
    control = {"control": {"name": "stare"}, "plain_objective": "dr_grpo"}
    contract(trained, objective="recorded", **control)
    for overrides in ((), ("estimator.objective=dr_grpo",)):
        config, found = settled(trained, *overrides)
        assert found.obstacles == ()
        assert config.estimator.objective == "dr_grpo"
        assert config.estimator.max_response_length == CONTRACT["max_new_tokens"]
        assert "objective dr_grpo without the token weights of the control" in found.warnings[0]
    batch = f"batch_config.U_file={tmp_path}/U.jsonl"
    config, found = settled(trained, batch)
    assert (config.estimator.objective, found.warnings) == ("recorded", ())
    config, found = settled(trained, batch, "estimator.objective=dr_grpo")
    assert (config.estimator.objective, found.obstacles) == ("dr_grpo", ())
    assert "estimator.objective is 'grpo'" in refused(trained, "estimator.objective=grpo")
    contract(trained, objective="recorded", plain_objective="recorded", control={"name": "stare"})
    assert "needs batch_config.U_file" in refused(trained)


def test_every_verb_refuses_and_every_result_says_where_settings_came_from(trained, tmp_path):
    content = settings(trained, batch_config={"G": 3}, sampling={"max_new_tokens": 2})
    quick = ["estimator.eta_list=[1e-3]", "estimator.order=1", "analysis.tokens=false"]
    for verb in ("measure", "influence"):
        with pytest.raises(ValueError, match=r"temperature .*1\.0, .*0\.7"):
            run_verb(MEASURING[verb], load_config(content, [*quick, "sampling.temperature=1.0"]))
        out = tmp_path / verb
        where = f"output.directory={out}"
        (result,) = run_verb(MEASURING[verb], load_config(content, [*quick, where])).results
        assert result.settings.keys["sampling.temperature"].source == "contract.json"
        assert result.policy.temperature == 0.7
        assert "temperature" not in (out / "config.yaml").read_text().split("sampling:")[1]
        again = load_config(out / "config.yaml")
        assert settle(ise.Checkpoint(trained / "step_4"), again).config.sampling.temperature == 0.7


def test_settings_that_no_file_says_are_named_in_one_line(tiny):
    _, found = settled(tiny)
    (line,) = found.warnings
    for key in ("objective=dr_grpo", "advantages=dr_grpo", "max_grad_norm=1.0", "temperature=1.0"):
        assert key in line
    assert "max_new_tokens=150" in line
    every = (
        *("estimator.objective=dapo", "estimator.advantages=grpo", "estimator.max_grad_norm=1.0"),
        *("sampling.temperature=1.0", "sampling.max_new_tokens=3"),
    )
    assert settled(tiny, *every)[1].warnings == ()
