"""What the shell is offered, asked as the shell asks it."""

import pytest

from isentrope.control.controls import TOKEN_CONTROLS
from tests.cli.forked import call_each
from tests.cli.test_startup import HEAVY, LIGHT

OFFERED = {
    "inf": ["influence"],
    "measure c.yaml --set batch_config.B_": ["batch_config.B_E=", "batch_config.B_U="],
    "train --set training.keep_l": ["training.keep_last="],
    "try cl": ["clip_cov"],
    "try bonus,re": ["bonus,repo_r"],
    "try ": sorted(["all", *TOKEN_CONTROLS]),
    "check run/ch": ["run/checkpoint-20"],
    "noise c.yaml --checkpoints run": ["run/checkpoint-20", "run/training_state/step_4"],
}
"""The words that are offered after a line."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What bash is answered after each line, beside a run with two checkpoints."""
    folder = tmp_path_factory.mktemp("completion")
    for checkpoint in ("checkpoint-20", "training_state/step_4"):
        (folder / "run" / checkpoint).mkdir(parents=True)
    calls = []
    for line in OFFERED:
        words = f"isentrope {line}"
        place = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
        calls.append([[], {"_ISENTROPE_COMPLETE": "complete_bash"} | place])
    return dict(zip(OFFERED, call_each(calls, folder, LIGHT), strict=True))


@pytest.mark.parametrize("line", OFFERED)
def test_the_shell_is_offered_what_can_be_typed_and_nothing_heavy_is_loaded(line, answers):
    assert sorted(answers[line]["printed"].split()) == OFFERED[line]
    assert answers[line]["errors"] == ""
    assert not (set(HEAVY) - {"pydantic"}) & set(answers[line]["modules"])
