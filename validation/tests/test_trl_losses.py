"""v against TRL's own step, on the cases that differ most; the benchmark has the others."""

import pytest

pytest.importorskip("trl")
from validation import trl_losses

FAST = (
    "loss_type=dapo",
    "bnpo, accumulation 2",
    "cispo, num_iterations=2, epsilon 0.1/0.3, off_policy",
    "SFT",
    "beta=0.1",
)
CASES = {case.name: case for case in trl_losses.CASES}


def rows(names, folder):
    return trl_losses.run([CASES[name] for name in names], folder)


@pytest.mark.filterwarnings("ignore")  # TRL's and torch's own
@pytest.mark.parametrize("name", FAST)
def test_v_is_the_step_that_trl_takes_or_the_reason_why_not_is_named(name, tmp_path):
    (row,) = rows([name], tmp_path)
    assert row.passed, trl_losses.table_row(row)
    assert row.case.refused or row.error < trl_losses.TOLERANCE


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(set(CASES) - set(FAST)))
def test_v_is_the_step_of_every_other_case(name, tmp_path):
    (row,) = rows([name], tmp_path)
    assert row.passed, trl_losses.table_row(row)
