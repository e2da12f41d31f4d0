"""Which definitions of entropy a batch has numbers for."""

import pytest

from isentrope.estimators.entropy_definitions import definitions
from isentrope.estimators.sample import score_batch
from tests import cases


@pytest.mark.parametrize(("more", "several"), [(-1, True), (0, False), (1, False)])
def test_a_micro_batch_of_the_whole_batch_or_more_is_no_definition_of_its_own(more, several):
    exact = cases.small_exact("table")
    batch = exact.rollouts
    names = definitions(score_batch(exact.policy, batch), batch, {0}, len(batch) + more)
    assert ("micro_batch_means" in names) == several
