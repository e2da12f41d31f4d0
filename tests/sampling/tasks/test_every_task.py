"""Every task has a name and a row on the page, and keeps what tasks promise."""

import importlib
import inspect
import json
import math
import pkgutil
from pathlib import Path

import pytest

from isentrope import Task, load_task
from isentrope.config.measure import BatchConfig
from isentrope.sampling import tasks
from isentrope.sampling.tasks.names import TASKS
from isentrope.sampling.tasks.rewarded import RewardedPrompts
from isentrope.sampling.tasks.task import Conversations, Demonstrator

DOCS = Path(__file__).parents[3] / "docs"
OF_OTHERS = {Task, Conversations, RewardedPrompts}
"""The protocol, what wraps a task, and a user's own function."""
FILES = ("gsm8k", "gsm8k_r1_template", "prompts")
GENERATED = [name for name in TASKS if name not in FILES]


@pytest.fixture
def load(tmp_path):
    """Load a task by name, whatever it is made from."""

    def make(name, split="train"):
        own = {"prompt": "1+1=", "reference": "2"}
        row = own if name == "prompts" else {"question": "1+1?", "answer": "#### 2"}
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps(row))
        return load_task(name, split, path if name in FILES else None)

    return make


def classes():
    """The classes with a reward that the package defines."""
    for module in pkgutil.iter_modules(tasks.__path__):
        path = f"{tasks.__name__}.{module.name}"
        for kind in vars(importlib.import_module(path)).values():
            if inspect.isclass(kind) and kind.__module__ == path and hasattr(kind, "reward"):
                yield kind


@pytest.mark.parametrize("name", TASKS)
def test_a_name_loads_a_task(load, name):
    task = load(name)
    assert isinstance(task, Task)
    assert task.prompts
    assert len({prompt.key for prompt in task.prompts}) == len(task.prompts)


def test_every_class_of_a_task_has_a_name(load):
    cure = "TASKS of src/isentrope/sampling/tasks/names.py"
    assert {type(load(name)) for name in TASKS} == set(classes()) - OF_OTHERS, cure


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_on_the_page(name):
    assert f"`{name}`" in (DOCS / "tasks.md").read_text(encoding="utf-8"), "a row of the page"


@pytest.mark.parametrize("name", [name for name in TASKS if name != "prompts"])
def test_a_split_that_a_task_lacks_is_refused_before_it_is_made(name):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 — its words are below
        BatchConfig(dataset_name=name, E_split="dev").require_files("batch_config")
    assert "'dev'" in str(refused.value)


@pytest.mark.parametrize("name", GENERATED)
def test_no_prompt_is_in_both_splits_of_a_generated_task(load, name):
    train, test = ({p.content for p in load(name, split).prompts} for split in ("train", "test"))
    assert train
    assert test
    assert not train & test


@pytest.mark.parametrize("name", GENERATED)
def test_demonstrations_are_fixed_by_the_seed_and_have_rewards(load, name):
    task = load(name)
    if not isinstance(task, Demonstrator):
        pytest.skip("it has no demonstrations")
    shown = task.demonstrations(50, seed=3)
    assert shown == task.demonstrations(50, seed=3) != task.demonstrations(50, seed=4)
    rewards = [task.reward(text, prompt.reference) for prompt, text in shown]
    assert all(map(math.isfinite, rewards))
    assert max(rewards) > task.reward("", shown[0][0].reference) == 0
