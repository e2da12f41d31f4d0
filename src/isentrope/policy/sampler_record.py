"""What is wrong with these log-probabilities? A sampler's record, tested and looked at.

Whether a record can be that of its responses is tested by the mean of π/π_s (`ratio_test`), which
is 1 for draws of any policy, also of an earlier one. Its fault is then found by comparing it with
what engines return by mistake (`record_causes`). A record that equals one of these to rounding has
this fault whatever the test says.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import root_mean_square
from isentrope.policy.language_model import Policy
from isentrope.policy.ratio_test import ratio_test
from isentrope.policy.record_causes import Record, RecordFault, cause_of, impossible, tolerance_of
from isentrope.policy.scoring import score
from isentrope.policy.token_statistics import Scores
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.formatting import TERMINAL
from isentrope.system.one_line import one_line, plural


@dataclass(frozen=True)
class LogprobCheck:
    """Whether the sampler's log-probabilities can be those of its responses.

    Attributes:
        fault: Its name; None where nothing contradicts them.
        sentence: What was found, and what to do.
        tokens: Number of tokens.
        difference: Root mean square difference from the policy's own, nats per token; NaN where
            the record holds impossible values.
        mean_ratio: Mean of π/π_s over tokens: 1 for draws of any policy.
        standard_error: Its error.
        p_value: Bound of the probability that a sound record is as far from 1.
    """

    fault: RecordFault | None
    sentence: str
    tokens: int
    difference: float
    mean_ratio: float = math.nan
    standard_error: float = math.nan
    p_value: float = math.nan

    def __repr__(self) -> str:
        ratio = f"mean π/π_s {TERMINAL.with_error(self.mean_ratio, self.standard_error)}"
        return one_line(
            self, self.fault or "sound", f"{plural(self.tokens, 'token')}, {ratio}", self.sentence
        )

    @property
    def sound(self) -> bool:
        """Whether nothing contradicts the record."""
        return self.fault is None


@refuse_other_types
def check_logprobs(policy: Policy, rollouts: Rollouts) -> LogprobCheck:
    """Find what is wrong with the log-probabilities that a sampler kept.

    It finds values that cannot be those of these responses. A record that is right passes whoever
    drew the responses, and so do raw values of a filter, which equal the policy's own: `isentrope
    check` tests the responses themselves.

    Args:
        policy: The policy that drew the responses or a later one, at the sampler's temperature.
        rollouts: Responses with `sampler_logprobs`; a few hundred tokens show most faults.

    Returns:
        The fault, with the test and a sentence.

    Raises:
        ValueError: If the rollouts have no log-probabilities of their sampler.
    """
    values = _require_record(rollouts)
    if words := impossible(values):
        return LogprobCheck("impossible", words, len(values), math.nan)
    return check_scored(policy, rollouts, score(policy, rollouts))


def require_possible(rollouts: Rollouts) -> None:
    """Refuse a record with values that are no log-probabilities.

    Args:
        rollouts: Responses with `sampler_logprobs`.

    Raises:
        ValueError: If they have none, or one is above 0 or not finite.
    """
    if words := impossible(_require_record(rollouts)):
        raise ValueError(words)


def _require_record(rollouts: Rollouts) -> Tensor:
    """(m,) what the sampler kept of all tokens."""
    if rollouts.sampler_logprobs is None:
        raise ValueError(
            "The rollouts do not hold the log-probabilities of the policy that drew them: give "
            "Rollouts(..., sampler_logprobs=...), or score them under that policy first."
        )
    return rollouts.padded("sampler_logprobs")[rollouts.mask]


def check_scored(policy: Policy, rollouts: Rollouts, scores: Scores) -> LogprobCheck:
    """The same where the responses are scored already, and every value is possible.

    Args:
        policy: The policy.
        rollouts: Responses with `sampler_logprobs`.
        scores: Their scores at θ.

    Returns:
        The fault, with the test and a sentence.
    """
    log_ratios = (scores.logprobs - rollouts.padded("sampler_logprobs"))[scores.mask]
    test = ratio_test(log_ratios)
    gap = root_mean_square(log_ratios)

    def report(fault: RecordFault | None, sentence: str) -> LogprobCheck:
        return LogprobCheck(
            fault,
            sentence,
            len(log_ratios),
            gap,
            test.mean,
            test.standard_error,
            test.p_value,
        )

    if gap <= tolerance_of(policy):
        words = f"The sampler's log-probabilities are the policy's own to {gap:.1g} nats per token."
        return report(None, words)
    cause = cause_of(Record(policy, rollouts, scores, test))
    measured = (
        f"The sampler's log-probabilities differ from the policy's by {gap:.2g} nats per token "
        f"(root mean square), and the mean of π/π_s is "
        f"{TERMINAL.with_error(test.mean, test.standard_error)}"
    )
    if cause is None:
        words = f"{measured}, as it can be for draws of another policy, such as an earlier one."
        return report(None, words)
    expected = ", where draws of any policy have 1" if test.fails else ""
    return report(cause.fault, f"{measured}{expected}: {cause.words}.")
