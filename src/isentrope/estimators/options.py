"""Which entropy is estimated, by which method, and how wide its intervals are."""

from dataclasses import dataclass

from isentrope.nouns.choices import Functional, Method


@dataclass(frozen=True)
class EstimatorOptions:
    """Which entropy is estimated, by which method, and how wide intervals are.

    Attributes:
        functional: "per_token" (h) or "per_sequence" (ℋ).
        method: "prefix", "sequence", "doubly-robust" or "surprisal".
        confidence: Nominal coverage of the intervals.
    """

    functional: Functional = "per_token"
    method: Method = "prefix"
    confidence: float = 0.95
