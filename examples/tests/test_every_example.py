"""Every example of a task loads as a user's own file, and keeps what tasks promise."""

import math
from pathlib import Path

import pytest

from isentrope.config.measure import BatchConfig
from isentrope.config.stages import TaskConfig
from isentrope.sampling.tasks.addition import character_tokenizer
from isentrope.sampling.tasks.load import load_task
from isentrope.sampling.tasks.task import Demonstrator, Task

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples" / "tasks").glob("*.py"))
NAMES = [f"{file}:{file.stem.capitalize()}" for file in FILES]
PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
LONGEST = 32
"""Tokens of prompt and response that the toy reads."""


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.rpartition(":")[2])
def test_an_example_keeps_what_tasks_promise(name):
    train, test = load_task(name, "train"), load_task(name, "test")
    assert isinstance(train, Task)
    assert isinstance(train, Demonstrator)
    asked = [{p.content for p in task.prompts} for task in (train, test)]
    assert all(asked)
    assert not asked[0] & asked[1]
    assert len({p.key for p in train.prompts}) == len(train.prompts)
    shown = train.demonstrations(2000, seed=3)
    assert shown == train.demonstrations(2000, seed=3) != train.demonstrations(2000, seed=4)
    rewards = [train.reward(text, prompt.reference) for prompt, text in shown]
    assert all(map(math.isfinite, rewards))
    assert max(rewards) > train.reward("", shown[0][0].reference) == 0
    tokenizer = character_tokenizer()
    for prompt, text in shown:
        ids = tokenizer(prompt.text + text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert len(ids) + 1 <= LONGEST
    assert f"examples/tasks/{Path(name.rpartition(':')[0]).name}" in PAGE


def test_options_come_from_the_configuration_and_only_to_the_task_they_are_for():
    relay = next(name for name in NAMES if name.endswith(":Relay"))
    options = {"dataset_name": relay, "dataset_options": {"phase": 2}}
    config = BatchConfig(**options, U_dataset_name="addition")
    E = config.load_task(relay, "test", None)
    U = config.load_task("addition", "train", None)
    assert any("c" in prompt.text for prompt in E.prompts)
    assert U.prompts == load_task("addition").prompts
    assert not any("c" in prompt.text for prompt in load_task(relay).prompts)
    wrong = TaskConfig(dataset_name=relay, dataset_options={"phases": 2})
    with pytest.raises(ValueError, match=r"Relay' .*'phases': .*phase"):
        wrong.load_task(relay, "train", None)
