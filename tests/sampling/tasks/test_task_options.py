"""Options of a task come from the configuration, and only to the task they are for."""

import pytest

from isentrope.config.measure import BatchConfig
from isentrope.config.stages import TaskConfig
from isentrope.sampling.tasks import load_task
from isentrope.sampling.tasks.relay import Relay


def test_a_phase_is_chosen_by_the_configuration():
    config = TaskConfig(dataset_name="relay", dataset_options={"phase": 2})
    task = config.load_task(config.dataset_name, "train", None, None)
    assert task.prompts == Relay(phase=2).prompts != Relay(phase=1).prompts


def test_another_data_set_of_the_update_does_not_get_the_options():
    config = BatchConfig(
        dataset_name="relay", U_dataset_name="addition", dataset_options={"phase": 2}
    )
    E = config.load_task("relay", "test", None, None)
    U = config.load_task("addition", "train", None, None)
    assert any("c" in prompt.text for prompt in E.prompts)
    assert U.prompts == load_task("addition").prompts


def test_an_unknown_option_is_refused_with_those_that_exist():
    config = TaskConfig(dataset_name="relay", dataset_options={"phases": 2})
    with pytest.raises(ValueError, match=r"'relay' .*'phases': .*phase"):
        config.load_task("relay", "train", None, None)
    with pytest.raises(ValueError, match=r"'prompts' .*'seed'"):
        load_task("prompts", path="x.jsonl", seed=1)
    with pytest.raises(ValueError, match=r"mine\.py:f .*seed"):
        load_task("mine.py:f", seed=1)
