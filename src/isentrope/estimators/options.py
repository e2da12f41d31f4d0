"""Which entropy is estimated, by which method, and how wide its intervals are."""

from dataclasses import dataclass

from isentrope.nouns.choices import Method, Per, PerOption


@dataclass(frozen=True)
class EstimatorOptions(PerOption):
    """Which entropy is estimated, by which method, and how wide intervals are.

    Attributes:
        per: "token" (h) or "sequence" (ℋ).
        method: "prefix", "sequence", "doubly-robust" or "surprisal".
        confidence: Nominal coverage of the intervals.
    """

    per: Per = "token"
    method: Method = "prefix"
    confidence: float = 0.95
