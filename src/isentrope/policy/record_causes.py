"""What engines return in place of the log-probabilities that tokens were drawn with.

    raw          those of before the temperature
    temperature  those of another temperature; or the draws are of another one, too
    scaled       a multiple of them, which is not normalised (raw values divided by T)
    moved        those of the token before or after
    truncated    those of a filtered vocabulary: log π − log S, S the mass that the filter keeps
    impossible   values that are not finite or above 0
    other        none of these: another model, adapter or precision

Each is a guess at the record. The one that leaves the least difference is named where it explains
the record to rounding, or where the test fails and it explains half of the difference.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import root_mean_square
from isentrope.policy.at_temperature import RESPONSES_COMPARED, logprobs_at, nearest_temperature
from isentrope.policy.language_model import Policy
from isentrope.policy.ratio_test import P_LIMIT, RatioTest
from isentrope.policy.tails import nearest_filter
from isentrope.policy.token_statistics import Scores

RecordFault = Literal["impossible", "raw", "temperature", "scaled", "moved", "truncated", "other"]

RECORD_TOLERANCE = 1e-3
"""Root mean square difference of sampler and scorer per token that is rounding, nats."""
SHORT_TOLERANCE = 0.1
"""The same for a scorer in a type shorter than float32."""
ENOUGH_TOKENS = 8
"""Tokens from which equality with a guess is no chance."""
NEAR = 0.5
"""Part of the difference that a guess leaves, at most, where it is named."""
SAME = 1e-3
"""Difference of temperatures or factors that is none."""
RAW = 0.05
"""Difference from temperature 1 that staleness makes."""

PROCESSED = "keep the ones that each token was drawn with (vLLM: logprobs_mode=processed_logprobs)"
BEFORE = "these are log-probabilities before the temperature"
WITHOUT_FILTER = "sample with top_k=0 and top_p=1 (generate defaults to top_k=50)"


@dataclass(frozen=True)
class Cause:
    """Why a record is not the policy's.

    Attributes:
        fault: Its name.
        words: What it is and what to do, a clause.
        remainder: Root mean square difference of the record from this guess, nats per token.
        difference: The same from the policy's own, for the same tokens.
    """

    fault: RecordFault
    words: str
    remainder: float
    difference: float


@dataclass(frozen=True)
class Record:
    """A sampler's log-probabilities beside the policy's own.

    Attributes:
        policy: The policy.
        rollouts: Responses with `sampler_logprobs`.
        scores: Their scores at θ.
        test: Of the mean of π/π_s.
    """

    policy: Policy
    rollouts: Rollouts
    scores: Scores
    test: RatioTest

    @property
    def kept(self) -> Tensor:
        """(n, t) the sampler's, 0 where there is no token."""
        return self.rollouts.padded("sampler_logprobs")

    def guess(self, fault: RecordFault, words: str, logprobs: Tensor) -> Cause:
        """A cause with what it leaves of the difference.

        Args:
            fault: Its name.
            words: A clause.
            logprobs: (n, t) what the record would be.

        Returns:
            The cause.
        """
        mask = self.scores.mask
        remainder = root_mean_square((self.kept - logprobs)[mask])
        difference = root_mean_square((self.kept - self.scores.logprobs)[mask])
        return Cause(fault, words, remainder, difference)


def tolerance_of(policy: Policy) -> float:
    """Difference of sampler and scorer that is rounding, nats per token.

    Args:
        policy: The policy as scored.

    Returns:
        The tolerance of the shortest type of its parameters or of its products.
    """
    bytes_ = (p.element_size() for p in policy.model.parameters() if p.is_floating_point())
    short = policy.precision.autocast is not None or min(bytes_) < 4
    return SHORT_TOLERANCE if short else RECORD_TOLERANCE


def impossible(values: Tensor) -> str | None:
    """Why values cannot be log-probabilities.

    Args:
        values: (m,) the sampler's, of all tokens.

    Returns:
        A sentence; None where they can.
    """
    strange = int((~values.isfinite()).sum())
    if strange:
        return (
            f"{strange} of {len(values)} log-probabilities of the sampler are not finite, and a "
            f"token that was drawn has a finite one: {PROCESSED}."
        )
    above = int((values > RECORD_TOLERANCE).sum())
    if not above:
        return None
    cure = f"no log-probability is: {PROCESSED}"
    if float(values.min()) >= 0:
        unit = float(values.max()) <= 1
        cure = (
            "none is below: these are probabilities, so take their logarithm"
            if unit
            else "none is below: these are surprisals, so change their sign"
        )
    return f"{above} of {len(values)} log-probabilities of the sampler are above 0, and {cure}."


def drawn_at(policy: Policy, rollouts: Rollouts, scores: Scores) -> tuple[float, bool] | None:
    """The temperature whose log-probabilities the sampler kept, where it is one.

    Args:
        policy: The policy.
        rollouts: Responses with `sampler_logprobs`.
        scores: Their scores at θ, which differ from them.

    Returns:
        The temperature, and whether the responses can be draws at it rather than at the policy's
        own; None where the record is of no temperature.
    """
    temperature, logprobs = nearest_temperature(policy, rollouts)
    gap = rollouts.padded("sampler_logprobs") - logprobs
    if root_mean_square(gap[scores.mask]) > tolerance_of(policy):
        return None
    return temperature, _judge_draws(logprobs, scores) is not False


def cause_of(record: Record) -> Cause | None:
    """The cause of a record that differs from the policy's own.

    Args:
        record: The record.

    Returns:
        The cause; None where the record can be that of draws of another policy.
    """
    guesses = [*_guess(record)]
    best = min(guesses, key=lambda cause: cause.remainder)
    equal = best.remainder <= min(tolerance_of(record.policy), NEAR * best.difference)
    if equal and int(record.scores.mask.sum()) >= ENOUGH_TOKENS:
        return best
    if not record.test.fails:
        return None
    if best.remainder <= NEAR * best.difference:
        return best
    if record.test.mean < 1:
        words = (
            f"a mean below 1 is what a filter that keeps {record.test.mean:.2g} of the probability "
            f"renormalised them leaves: {WITHOUT_FILTER}"
        )
        return Cause("truncated", words, math.nan, math.nan)
    words = (
        "they are those of another model, adapter or precision than the one that drew the "
        "responses, or of other responses: load what drew them, or score them under it"
    )
    return Cause("other", words, math.nan, math.nan)


def _judge_draws(logprobs: Tensor, scores: Scores) -> bool | None:
    """Whether the responses are draws at these log-probabilities or the scorer's.

    Returns:
        True or False; None where their likelihoods decide for neither. Of draws by one, a ratio
        above 1/p for the other has a probability of at most p.
    """
    log_ratio = float((logprobs - scores.logprobs)[scores.mask].sum())
    return None if abs(log_ratio) < -math.log(P_LIMIT) else log_ratio > 0


def _guess_temperature(record: Record, temperature: float, logprobs: Tensor) -> Cause:
    """The guess that the record is the policy's own at another temperature."""
    scored_at = record.policy.temperature
    drawn = _judge_draws(logprobs, record.scores)
    raw = abs(temperature - 1) <= SAME and drawn is not True
    words = f"they are those of temperature {temperature:.3g}, the scorer is at {scored_at:g}"
    if raw:
        words = f"they are the policy's own at temperature 1: {BEFORE}"
    if drawn is None:
        words += "; if the responses were drawn at that temperature, score at it"
    elif drawn:
        words += ": score at the temperature of the sampler"
    else:
        words += f"; the responses fit the scorer's {scored_at:g}, so {PROCESSED}"
    return record.guess("raw" if raw else "temperature", words, logprobs)


def _guess(record: Record) -> Iterator[Cause]:
    """What the record may be by mistake, with the difference that each leaves."""
    policy = record.policy
    temperature = policy.temperature
    scored = record.scores.logprobs
    raw = scored if temperature == 1 else logprobs_at(policy, record.rollouts, 1.0)
    if temperature != 1:
        yield _guess_temperature(record, 1.0, raw)
    nearest, logprobs = nearest_temperature(policy, record.rollouts)
    guess = _guess_temperature(record, nearest, logprobs)
    # a stale record of raw values is nearest to about 1
    near_raw = temperature != 1 and abs(nearest - 1) <= (
        SAME if guess.remainder <= RECORD_TOLERANCE else RAW
    )
    if abs(nearest - temperature) > SAME and not near_raw:
        yield guess
    recorded = record.kept
    mask = record.scores.mask
    for base, at in ((scored, temperature), (raw, 1.0)):
        factor = float((recorded * base)[mask].sum() / base[mask].square().sum())
        if abs(factor - 1) > SAME:
            words = (
                f"they are {factor:.4g} times the policy's own at temperature {at:g}, and so do "
                f"not sum to 1 over the vocabulary: divide logits and not log-probabilities, or "
                f"{PROCESSED}"
            )
            yield record.guess("scaled", words, factor * base)
    yield from _guess_shifts(record)
    yield from _guess_filters(record)


def _guess_shifts(record: Record) -> Iterator[Cause]:
    """Guesses that each number is that of a neighbouring token."""
    recorded = record.kept
    mask = record.scores.mask
    scored = record.scores.logprobs
    for place, token, neighbour in (
        ("before", slice(1, None), slice(None, -1)),
        ("after", slice(None, -1), slice(1, None)),
    ):
        pairs = mask[:, token] & mask[:, neighbour]
        if int(pairs.sum()) < ENOUGH_TOKENS:
            continue
        words = f"each is that of the token {place} it: move them by one position"
        remainder = root_mean_square((recorded[:, token] - scored[:, neighbour])[pairs])
        difference = root_mean_square((recorded - scored)[:, token][pairs])
        yield Cause("moved", words, remainder, difference)


def _guess_filters(record: Record) -> Iterator[Cause]:
    """The guess that a filter of the sampler renormalised the policy's own."""
    sample = record.rollouts.select(range(min(RESPONSES_COMPARED, len(record.kept))))
    gap = (record.kept - record.scores.logprobs)[: len(sample), : sample.mask.shape[1]]
    name, raised = nearest_filter(record.policy, sample, gap)
    words = (
        f"a filter renormalised them, as {name} does: they are higher than the policy's own by "
        f"-log S, where S is the probability that it keeps: {WITHOUT_FILTER}"
    )
    if int((gap[sample.mask] > RECORD_TOLERANCE).sum()) >= ENOUGH_TOKENS:
        remainder = root_mean_square((gap - raised)[sample.mask])
        yield Cause("truncated", words, remainder, root_mean_square(gap[sample.mask]))
