"""One reading of the probe: the entropy change of a step, predicted and measured.

    predicted  ηδH₁ (split by component), η²δH₂;    measured  ΔH;    residual  ΔH − ηδH₁ (− η²δH₂)

All come from one F on one E mini-batch (T2, T3), scored before and after the step (`scoring`), so
their errors are joint (T11). Without derivatives of the model a reading is what was measured.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from transformers import TrainerCallback

from isentrope.estimators.entropy_change import change_of_sample
from isentrope.estimators.functional import Functionals, along
from isentrope.estimators.importance import Trust
from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.price import price_of_step
from isentrope.estimators.ratio import Sign, ratio_of
from isentrope.estimators.reward_change import reward_change
from isentrope.estimators.sample import statistics_of_sample
from isentrope.estimators.spent import Price
from isentrope.nouns.estimate import NET_SHARE, Estimate
from isentrope.policy.token_statistics import Scores
from isentrope.probe.scoring import ScoredBefore
from isentrope.sampling.prompt import Prompt
from isentrope.system.one_line import one_line, plural
from isentrope.system.saved_fields import SavedFields
from isentrope.update.step import COMPONENTS

ALWAYS = COMPONENTS[:3]
"""Parts of a step; others only where a control corrected it, or DeepSpeed rounded the weights."""
_LOGGED_AS = {
    "per_token": "entropy_per_token",
    "per_sequence": "entropy_per_sequence",
    "fresh": "change_fresh",
}


@dataclass(frozen=True)
class ProbeReading:
    """The effect of one step on entropy; changes are per step, in the unit of `functional`.

    Attributes:
        step: The step.
        eta: Its learning rate η.
        per_token: h at θ.
        per_sequence: ℋ at θ.
        first_order: ηδH₁; None where the model gives no derivatives.
        components: Its parts by "momentum", "decay", "gradient"; "control" where there is one, and
            "rounding" where DeepSpeed keeps the weights in a shorter type than their float32 copy;
            empty without it.
        predicted: ηδH₁, and η²δH₂ where it is known; None without it.
        second_order: η²δH₂, or None.
        linear_fraction: η/η*, or None.
        change: ΔH, measured after the step on the same samples.
        residual: ΔH − predicted, with its paired error; None without a prediction.
        trust: Diagnostics of the importance weights after the step, or of those at θ, policy over
            sampler, where they are worse.
        fresh: ΔH on other samples of θ, or None.
        price: What the step spends and earns; None without rewards.
    """

    step: int
    eta: float
    per_token: Estimate
    per_sequence: Estimate
    first_order: Estimate | None
    components: dict[str, Estimate]
    predicted: Estimate | None
    second_order: Estimate | None
    linear_fraction: Estimate | None
    change: Estimate
    residual: Estimate | None
    trust: Trust
    fresh: Estimate | None = None
    price: Price | None = None

    def to_dict(self) -> dict[str, float]:
        """Flat numbers for a log, errors under names that end in _se.

        Returns:
            Keys "probe/..."; "probe/trust" is 1 where the verdict is "trust", and else 0.
        """
        flat = {
            "probe/eta": self.eta,
            "probe/ess": self.change.ess or 0.0,
            "probe/ess_integrated": self.trust.ess_integrated,
            "probe/khat": self.trust.khat,
            "probe/trust": float(self.trust.verdict == "trust"),
        }
        for field, estimate in (vars(self) | self.components).items():
            if isinstance(estimate, Estimate):
                name = _LOGGED_AS.get(field, field)
                flat |= {f"probe/{name}": estimate.value, f"probe/{name}_se": estimate.se}
        return flat | (self.price.to_dict() if self.price else {})


class Readings(SavedFields, TrainerCallback):
    """A callback that keeps its readings.

    Attributes:
        history: All readings of this process.
    """

    def __init__(self, prompts: list[Prompt], every: int) -> None:
        """Begin without a reading."""
        self._prompts = prompts
        self._every = every
        self._latest: dict[str, float] = {}
        self.history: list[ProbeReading] = []

    def __repr__(self) -> str:
        prompts = f"{plural(len(self._prompts), 'prompt')}, every {plural(self._every, 'step')}"
        last = [f"the last {self.history[-1].per_token}"] if self.history else []
        return one_line(self, prompts, plural(len(self.history), "reading"), *last)

    def latest(self) -> dict[str, float]:
        """Flat numbers of the step just taken; empty if it was not probed."""
        return dict(self._latest)


def read(step: int, before: ScoredBefore, after: Scores) -> ProbeReading:
    """Make a reading from the scores before and after a step.

    Args:
        step: The step.
        before: Scores at θ, and their derivatives where the model gives some.
        after: Scores at θ'.

    Returns:
        The reading.
    """
    sample = before.sample
    f = sample.functional
    base = sample.trust
    statistics = partial(_compute_statistics, before=before, after=after)
    result = infinitesimal_jackknife(statistics, sample.prompt_index)
    trust, of_residual = sample.trust_of_change(after, before.divergence)

    def estimate(row: int, unit: str = f.unit, trust: Trust = base, order: int = 1) -> Estimate:
        return result.estimate(row, unit=unit, order=order, **trust.options(f.method))

    def share(row: int, unit: str, sign: Sign = "none") -> Estimate:
        options = {"sign": sign, "unit": unit, "confidence": 0.95, **base.options(f.method)}
        return ratio_of(result, row, 2, name="ηδH₁", **options)

    predicts = len(sample.series) > 1
    curved = len(sample.series) > 2
    momentum = share(7, NET_SHARE, sign="any") if predicts else None
    return ProbeReading(
        step=step,
        eta=before.eta,
        per_token=estimate(0, "nats per token"),
        per_sequence=estimate(1, "nats per sequence"),
        first_order=estimate(2) if predicts else None,
        components={
            name: estimate(7 + k)
            for k, name in enumerate(COMPONENTS)
            if predicts and (name in ALWAYS or name in before.slopes)
        },
        predicted=estimate(6) if predicts else None,
        second_order=estimate(3, order=2) if curved else None,
        linear_fraction=share(3, "η/η*") if curved else None,
        change=estimate(4, trust=trust, order=trust.order),
        residual=estimate(5, trust=of_residual, order=of_residual.order) if predicts else None,
        trust=trust,
        price=_estimate_price(before, after, trust, momentum),
    )


def _estimate_price(
    before: ScoredBefore, after: Scores, trust: Trust, momentum: Estimate | None
) -> Price | None:
    """What the step spends and earns, and where the parabola of J has its top; None without J."""
    sample = before.sample
    rewards = before.rewards
    if rewards is None:
        return None
    price = price_of_step(sample, before.eta, before.classes, rewards, after=(after, trust))
    top = None
    if len(sample.series) > 2:
        entropy_change = change_of_sample(sample, [before.eta], [(after, before.divergence)])
        top = reward_change(entropy_change, rewards).top
    return replace(price, momentum=momentum, top=top)


def _compute_statistics(omega: Tensor, before: ScoredBefore, after: Scores) -> Tensor:
    """(h, ℋ, ηδH₁, η²δH₂, ΔH, residual, predicted, parts of ηδH₁) as functions of ω.

    Returns:
        One row each; 0 for what needs a derivative that there is not.
    """
    sample = before.sample
    eta = before.eta
    slopes = before.slopes
    f = sample.functional
    r = sample.log_ratios
    h = sample.entropies
    levels = [
        Functionals(name, f.method, f.tokens)(omega, r, h) for name in ("per_token", "per_sequence")
    ]
    _, first, _, half, change, residual = statistics_of_sample(sample, [eta], [after])(omega)
    parts = [
        along(f, omega, (r, slopes[c].logprobs), (h, slopes[c].entropies), 1)[1]
        if c in slopes
        else first * 0
        for c in COMPONENTS
    ]
    changes = [eta * first, eta * eta * half, change, residual, change - residual]
    return torch.stack([*levels, *changes, *(eta * part for part in parts)])
