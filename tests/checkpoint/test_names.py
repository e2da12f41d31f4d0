import re

import pytest

from isentrope.checkpoint.files import step_name, step_of_folder, step_within, written_step
from tests.sources import texts


@pytest.mark.parametrize(
    ("name", "of_folder", "written", "within"),
    [
        ("step_0", 0, 0, 0),
        ("step_40", 40, 40, 40),
        ("step_040", 40, None, 40),
        ("step40", 40, None, 40),
        ("checkpoint-7", 7, None, 7),
        ("global_step_12", 12, None, 12),
        ("global_step12", 12, None, 12),
        ("step_40_repeat_2", None, None, 40),
        ("second_run_step_40", None, None, 40),
        ("step_40_1", None, None, 40),
        (".removed_4", None, None, None),
        ("step_4.partial", None, None, 4),
        ("step_", None, None, None),
        ("final", None, None, None),
        ("Qwen2.5-0.5B", None, None, None),
    ],
)
def test_the_step_in_a_name(name, of_folder, written, within):
    assert step_of_folder(name) == of_folder
    assert written_step(name) == written
    assert step_within(name) == within


def test_what_is_written_is_read():
    assert [written_step(step_name(step)) for step in range(120)] == list(range(120))


def test_no_other_module_has_a_pattern_of_its_own():
    """No text elsewhere has a digit class after a name of checkpoints."""
    pattern = re.compile(r"(step|checkpoint)[-_?()|a-z\[\]]*(\\d|\[0-9\]|\[1-9\])")
    assert pattern.search("step_([1-9]")
    assert pattern.search(r"(?:step|checkpoint)[-_]?(\d+)")
    found = [path for path, text in texts().items() if pattern.search(text)]
    assert found == ["checkpoint/files.py"]
