"""The audit of published estimates on one step, and its rows of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

import isentrope as ise
from isentrope.attribution.proxies.audit import Audit, AuditOptions, audit
from isentrope.attribution.proxies.proxies import sequence_proxies, token_proxies
from isentrope.policy.token_statistics import Scores

OWN_STATE = "own state, measured"
TOP = 0.02
NAMES = {
    "token_covariance": "covariance (Cui)",
    "discriminator": "S*",
    "centred_discriminator": "S* − batch mean, Clip_B",
    "local_change": "local change, Clip_V",
    "steer": "STEER Ω",
    "stare": "STARE sets",
    "surprisal_advantage": "surprisal × A",
    "advantage": "A alone",
    OWN_STATE: OWN_STATE,
}


@dataclass(frozen=True)
class Measured:
    """What is known of the tokens of a step; n responses of t tokens.

    Attributes:
        scores: s and H.
        advantages: (n,) A.
        means: (n, t) Σ_a π_a S*_a.
        prompt_index: (n,) prompt draw.
        acting: (n, t) bool, tokens with a weight in the step.
        influence: (n, t) δH_ik on E.
        halves: The same from two halves of E; they sum to it.
        own_state: (n, t) D_ik, the change of the entropy of the token's own state.
        sampled: (n, t) bool, the tokens whose own state was differentiated.
    """

    scores: Scores
    advantages: Tensor
    means: Tensor
    prompt_index: Tensor
    acting: Tensor
    influence: Tensor
    halves: tuple[Tensor, Tensor]
    own_state: Tensor
    sampled: Tensor

    def audits(self) -> dict[str, Audit]:
        """Every estimate against the influence, by token and by response, and against D."""
        options = AuditOptions(top=(TOP,), draws=400)
        tokens = token_proxies(self.scores, self.advantages, self.means)
        responses = sequence_proxies(self.scores, self.advantages, self.means)
        own = {OWN_STATE: self.own_state}
        args = (self.prompt_index, tokens, options)
        return {
            "step": audit(self.influence, self.acting, *args, halves=self.halves),
            "responses": audit(
                self.influence.sum(1), self.acting.any(1), self.prompt_index, responses, options
            ),
            "diagonal": audit(self.own_state, self.sampled, *args),
            "own": audit(self.influence, self.sampled, self.prompt_index, own, options),
        }


COLUMNS: Mapping[str, tuple[str, str]] = {
    "step, ranks": ("step", "spearman"),
    "step, values": ("step", "pearson"),
    f"step, top {TOP:.0%}": ("step", f"overlap@{TOP:g}"),
    "response, ranks": ("responses", "spearman"),
    "own state, ranks": ("diagonal", "spearman"),
    "own state, values": ("diagonal", "pearson"),
}
"""Column → which audit, and which statistic."""


def cell(estimate: ise.Estimate | None) -> str:
    """A value with its 95 % interval, or what is known of it without one."""
    if estimate is None or math.isnan(estimate.value):
        return "–"
    if math.isnan(estimate.ci_low):
        return f"{estimate.value:.2f} (no interval)"
    return f"{estimate.value:.2f} [{estimate.ci_low:.2f}, {estimate.ci_high:.2f}]"


def table(audits: Mapping[str, Audit]) -> str:
    """The table of a step, as Markdown."""
    lines = [f"| estimate | {' | '.join(COLUMNS)} |", "|---|" + "---|" * len(COLUMNS)]
    for proxy, name in NAMES.items():
        cells: list[str] = []
        for part, statistic in COLUMNS.values():
            chosen = "own" if proxy == OWN_STATE and part == "step" else part
            row = audits[chosen].statistics.get(proxy, {})
            cells.append(cell(row.get(statistic)))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    reliability = audits["step"]["measured"]
    ranks, values = (reliability[f"{kind}_reliability"] for kind in ("spearman", "pearson"))
    items = audits["step"].n_items, audits["diagonal"].n_items
    lines += [
        "",
        f"{items[0]} tokens, {items[1]} of them with their own state. Correlation of the measured "
        f"influence with that of an unlimited E: ranks {cell(ranks)}, values {cell(values)}.",
    ]
    return "\n".join(lines)


def verdict(audits: Mapping[str, Audit], proxy: str) -> str:
    """What an estimate predicts, by the rule of the study."""
    low, high = _interval(audits["step"], proxy)
    own_low, _ = _interval(audits["diagonal"], proxy)
    if low > PREDICTS:
        return "the step"
    if high < 0:
        return "against the step"
    if own_low > PREDICTS:
        return "its own state alone"
    return "neither"


PREDICTS = 0.5
"""The lower end of the interval of a rank correlation, above which an estimate predicts."""


def _interval(audited: Audit, proxy: str) -> tuple[float, float]:
    estimate = audited[proxy]["spearman"]
    return estimate.ci_low, estimate.ci_high
