"""A Python file of the user's that fails is named with its line, and is no fault of isentrope."""

import json

import pytest

from tests.command_line import call, said
from tests.tiny_checkpoint import PROMPTS, settings, tiny

__all__ = ["tiny"]
TASK = """
from isentrope.sampling.prompt import Prompt

class Mine:
    def __init__(self, split):
        {made}
        self.prompts = [Prompt(f"mine/{{x}}", text=x, reference="1") for x in {prompts}]

    def reward(self, response, reference):
        {rewarded}
"""


@pytest.mark.parametrize(
    ("made", "rewarded", "words"),
    [
        ("{}['x']", "return 1.0", "line 6, failed by KeyError: 'x'"),
        ("pass", "return response.missing", "line 10, failed by AttributeError"),
        ("pass", "return 'good'", "one number per response is needed"),
        ("pass", "return [1.0, 2.0]", "one number per response is needed"),
    ],
)
def test_a_task_of_the_users_that_fails_is_named_with_its_line(
    tiny, tmp_path, made, rewarded, words
):
    file = tmp_path / "mine.py"
    file.write_text(TASK.format(made=made, rewarded=rewarded, prompts=PROMPTS))
    batch = {"B_E": 8, "B_U": 2, "G": 2, "allow_overlap": True}
    batch |= {"dataset_name": f"{file}:Mine", "dataset_path": None}
    content = settings(tiny)
    content["batch_config"] |= batch
    (tmp_path / "asked.yaml").write_text(json.dumps(content))
    done = call("measure", tmp_path / "asked.yaml", "--out", tmp_path / "out", status=1)
    assert words in said(done)
    assert "fault of isentrope" not in said(done)


def test_a_class_beside_prompts_of_a_file_is_told_that_a_function_is_needed(tiny, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("class Mine:\n    prompts = ['1']\n    def reward(self, x, y): ...\n")
    options = ["--prompts", tiny / "prompts.jsonl", "--reward", f"{file}:Mine"]
    options += ["--set", "sampling.max_new_tokens=3"]
    done = call("measure", tiny / "step_4", *options, "--out", tmp_path / "out", status=1)
    assert "has prompts of its own and reads no file" in said(done)
    assert "test_share" not in said(done)
