"""`isentrope try`: what controls would do to the next step, before a run.

results.json    vanilla (ΔH, ΔJ of the step and of its gradient part), and one entry per control
                and strength: what it did to the batch, ΔH and ΔJ of both, and what it gains over
                vanilla and over a random mask of as many tokens; each an Estimate
trial.parquet   the same, one row per control, strength and part
"""

from __future__ import annotations

from dataclasses import dataclass

from isentrope.estimators.paired import paired_changes
from isentrope.experiments.attribution.influence import rewarded, weighted_method
from isentrope.experiments.attribution.run import Found
from isentrope.experiments.config import MeasureConfig
from isentrope.experiments.preparation import Prepared
from isentrope.experiments.progress import Progress
from isentrope.experiments.trial_batches import trial_batches
from isentrope.training.control.controls import CONTROLS
from isentrope.training.control.trial import Trial
from isentrope.update.objective import OBJECTIVES

VANILLA = "vanilla"
PARTS = ("step", "gradient")
LARGEST = 64.0
"""Largest multiple of a default strength that is tried for a wanted change."""


@dataclass(frozen=True)
class Candidate:
    """A control at a strength, with its step.

    Attributes:
        control: Its name.
        strength: How hard it acts.
        trial: Its step.
        predicted: ηδH₁ of the step, where the strength was looked for.
        mask: Name of the random mask of as many tokens, or None.
    """

    control: str
    strength: float
    trial: Trial
    predicted: float | None = None
    mask: str | None = None

    @property
    def name(self) -> str:
        """Control and strength."""
        return f"{self.control}@{self.strength:.6g}"


def find_trial(config: MeasureConfig, ready: Prepared, progress: Progress) -> Found:
    """Try controls on the step of a checkpoint.

    Args:
        config: What to do.
        ready: The checkpoint, at the measuring precision.
        progress: Where to say how far it is.

    Returns:
        Changes of entropy and reward with paired intervals.

    Raises:
        ValueError: If the objective has no advantages to rewrite, or a control is not known.
    """
    objective = config.estimator.objective
    if objective not in OBJECTIVES or config.estimator.off_policy:
        raise ValueError(
            "A control rewrites the advantages of an on-policy batch: set estimator.objective to "
            f"one of {', '.join(OBJECTIVES)} and estimator.off_policy=false."
        )
    names = config.trial.controls or [n for n, c in CONTROLS.items() if c.on_policy]
    batches = trial_batches(config, ready, names, progress)
    eta = config.estimator.single_eta or ready.step.learning_rate
    with progress.stages("trying controls", len(names)) as begin:
        candidates = []
        for name in names:
            begin(name)
            candidates += _candidates(config, ready, batches, name, eta)
    E = rewarded(config, ready, ready.batches.E) if config.analysis.reward else ready.batches.E
    steps = {VANILLA: Trial(ready.step, {}), **{c.name: c.trial for c in candidates}}
    steps |= _masks(ready, batches, candidates)
    directions = {f"{name}/{part}": x for name, one in steps.items() for part, x in _parts(one)}
    pairs = [
        (f"{c.name}/{part}", f"{against}/{part}")
        for c in candidates
        for part in PARTS
        for against in filter(None, (VANILLA, c.mask))
    ]
    with progress.stages("measuring steps", len(directions)) as begin:
        found = paired_changes(
            ready.policy,
            E,
            directions,
            eta,
            pairs=pairs,
            functional=config.estimator.functional,
            method=weighted_method(config),
            confidence=config.estimator.confidence,
            progress=begin,
        )
    return _found(candidates, found, eta)
