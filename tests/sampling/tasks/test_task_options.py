"""Options of a task come from the configuration, and only to the task they are for."""

import pytest

from isentrope import load_task
from isentrope.config.measure import BatchConfig
from isentrope.config.stages import TaskConfig


def test_options_reach_the_task_they_are_for_and_no_other():
    config = BatchConfig(
        dataset_name="addition", U_dataset_name="mine.py:f", dataset_options={"digits": 1}
    )
    assert config.load_task("addition", "test", None).prompts[0].text == "0+8="
    with pytest.raises(FileNotFoundError, match=r"mine\.py"):
        config.load_task("mine.py:f", "train", None)


def test_an_unknown_option_is_refused_with_those_that_exist(tmp_path):
    (tmp_path / "mine.py").write_text("def f(text, reference): ...")
    config = TaskConfig(dataset_name="addition", dataset_options={"digit": 2})
    with pytest.raises(ValueError, match=r"'addition' .*'digit': .*digits"):
        config.load_task("addition", "train", None)
    with pytest.raises(ValueError, match=r"'prompts' .*'seed'"):
        load_task("prompts", path="x.jsonl", seed=1)
    with pytest.raises(ValueError, match=r"mine\.py:f' .*'seed': its options are weights"):
        load_task(f"{tmp_path}/mine.py:f", seed=1)


@pytest.mark.parametrize(
    ("made", "rewards", "words"),
    [
        ("self, split, *, n", "self, x, y", "missing a required argument: 'n'"),
        ("self, split", "self, x", "too many positional arguments"),
    ],
)
def test_a_task_that_cannot_be_called_as_tasks_are_is_refused(tmp_path, made, rewards, words):
    source = (f"def __init__({made}): self.prompts = ['1']", f"def reward({rewards}): ...")
    (tmp_path / "mine.py").write_text("\n    ".join(("class Mine:", *source)))
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        load_task(f"{tmp_path}/mine.py:Mine")
    assert words in str(refusal.value)
