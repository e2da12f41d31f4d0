import json

import pytest

from isentrope import load_task

FILE = """
from isentrope import Prompt

def plain(response_text, reference):
    return 2.0 if response_text == reference else -1.0

def as_in_trl(completions, reference, **kwargs):
    return [float(len(c)) for c in completions]

def more(text, reference, difficulty):
    return 0.0

def broken(text, reference):
    return {}["score"]

class Whole:
    def __init__(self, split):
        self.prompts = [Prompt(split, text="1")]

    def reward(self, response_text, reference):
        return 1.0

class Method:
    def prompts(self):
        return [Prompt("a", text="1")]

    def reward(self, response_text, reference):
        return 1.0

NUMBER = 3
"""


@pytest.fixture
def task(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "1+1=", "reference": "2"}))

    def load(name, path=tmp_path / "p.jsonl"):
        return load_task(f"{tmp_path}/mine.py:{name}", "test", path)

    return load


def test_a_function_rewards_the_prompts_of_a_file(task):
    assert task("plain").prompts[0].reference == "2"
    assert [task("plain").reward(text, "2") for text in ("2", "3")] == [2.0, -1.0]
    assert task("as_in_trl").reward("four", "2") == 4.0


def test_a_class_is_a_whole_task(task):
    whole = task("Whole", None)
    assert [p.key for p in whole.prompts] == ["test"]
    assert whole.reward("x", None) == 1.0


def test_prompts_that_are_no_list_are_refused_where_the_task_is_loaded(task):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  the sentence says which
        task("Method", None)
    assert "mine.py:Method has a method as its prompts: make them a list." in str(refusal.value)


def test_a_file_may_be_called_as_a_task_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "addition_mine.py").write_text(FILE)
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "1+1=", "reference": "2"}))
    assert load_task("addition_mine.py:plain", "test", "p.jsonl").prompts[0].text == "1+1="


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "defines no 'none'"),
        ("NUMBER", "reward function"),
        ("more", "needs 'difficulty', and the data has the columns reference"),
    ],
)
def test_what_is_no_task_is_refused(task, name, message):
    with pytest.raises(ValueError, match=message):
        task(name)


def test_a_reward_function_that_fails_is_named(task):
    with pytest.raises(ValueError, match=r"mine.py:broken .*'2': KeyError"):
        task("broken").reward("2", "2")


def test_a_reward_function_needs_prompts(task):
    with pytest.raises(ValueError, match="dataset_path"):
        task("plain", None)


def test_a_file_that_is_not_there_or_does_not_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file nowhere\.py"):
        load_task("nowhere.py:f")
    (tmp_path / "bad.py").write_text("import not_a_module")
    with pytest.raises(ValueError, match=r"bad\.py .*ModuleNotFoundError"):
        load_task(f"{tmp_path}/bad.py:f")
