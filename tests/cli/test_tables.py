"""What the tables of findings and evaluations say in words."""

import pytest

from isentrope import Estimate
from isentrope.checks import Finding
from isentrope.cli.commands import COMMANDS
from isentrope.run.evaluation_folder import EvaluatedRow, EvaluationResult, RewardCounts
from isentrope.verbs.tables import printed_evaluation, printed_findings

FINDINGS = [
    Finding("one", True, "seen"),
    Finding("two", True, "seen"),
    Finding("three", None, "U is drawn here"),
    Finding("four", None, "no group has an advantage", "Use other prompts."),
    Finding("five", False, "wrong", "Mend it."),
]


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        (FINDINGS[:2], "2 checks passed; --details"),
        (FINDINGS[:3], "2 checks passed, 1 does not apply; --details"),
        (FINDINGS, "2 checks passed, 1 failed, 1 could not be decided, 1 does not apply; --"),
    ],
)
def test_checks_that_do_not_apply_are_counted_apart(findings, words):
    line, *_ = printed_findings({"step_4": findings}, details=False)
    assert line.startswith(f"step_4: {words}")


def test_what_failed_comes_before_all_else_and_is_named_at_the_end():
    found = {"step_2": FINDINGS[:3], "step_4": FINDINGS}
    first, table, *_ = printed_findings(found, details=False)
    assert first.startswith("step_4: ")
    assert [finding.name for finding in table.rows] == ["five", "three", "four"]
    check = next(verb for verb in COMMANDS if verb.name == "check")
    (sentence,) = check(config="folder").failures(found)
    assert sentence == "1 check failed (step_4: five): do what its row says, then check again."


def test_an_evaluation_begins_with_its_sentence_and_names_what_a_note_limits():
    limited = Estimate(1.0, 0.1, 0.8, 1.2, 6, "", "", warnings=("Few prompts.",))
    free = Estimate(1.0, 0.1, 0.8, 1.2, 6, "", "")
    metrics = {"pass_at_1": free, "response_length": limited, "entropy_per_token": limited}
    row = EvaluatedRow("sampled", 6, 1, metrics, RewardCounts((0.0, 1.0), (1,)))
    of = {"schema": "made up", "checkpoint": "a", "path": "a", "step": 1, "dataset": "x"}
    more = {"split": "test", "temperature": 1.0, "max_new_tokens": 8, "rows": (row, row)}
    sentence, _, *notes = printed_evaluation([EvaluationResult(**of, **more)])
    assert notes == ["  note  response_length, entropy_per_token: Few prompts."]
    assert sentence.text.startswith("From a to a, pass@1 went from 1 ")
