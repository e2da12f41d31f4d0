"""The benchmark of evaluation runs, at a size that measures nothing."""

from benchmarks import evaluate
from isentrope.training.models import build_toy_policy


def test_a_row_a_precision_compares_the_same_responses():
    rows = evaluate.rows(build_toy_policy(seed=0), n_prompts=2, repetitions=2, with_responses=False)
    assert [row.split("|")[1].strip() for row in rows] == ["float64", "float32"]
    assert all("±" in row and row.endswith("| 100 % |") for row in rows)
