"""The page of cost laws: chosen verbs are measured, and other rows of the page stay."""

import pytest

from benchmarks import cost_laws
from benchmarks.cost_laws_subject import Size, Subject

PAGE = """
| computation | sequences |
|---|---|
| forward | 1.00 |
| noise | 0.88 |

| computation | sequences |
|---|---|
| noise | 2.5 |
"""


def test_new_rows_replace_their_own_and_leave_the_others():
    laws, passes = cost_laws.rows_of(PAGE)
    new = cost_laws.by_row(["| forward | 9.99 |", "| noise | 0.90 |", "| audit | 0.50 |"])
    assert list(cost_laws.merged(laws, new).values()) == [
        "| forward | 1.00 |",
        "| noise | 0.90 |",
        "| audit | 0.50 |",
    ]
    assert passes == {"noise": "| noise | 2.5 |"}


@pytest.fixture(scope="module")
def subject():
    return Subject(Size(sequences=16, tokens=4, layers=1, width=16, vocabulary=32, rank=2))


def test_only_chosen_verbs_are_measured(subject):
    assert list(subject.verbs(["audit", "noise"])) == ["noise", "audit", "audit, statistics"]


def test_the_check_runs_its_floor_and_finds_no_fault_of_the_scorer(subject):
    passed = {finding.name: finding.passed for finding in subject.check()}
    assert passed["rounding floor"] is True
    assert passed["sampler = scorer"] is True


def test_an_evaluation_draws_responses_of_full_length(subject):
    evaluation = subject.verbs(["evaluate"])["evaluate"]()
    assert evaluation.records["length"].tolist() == [4] * 16
