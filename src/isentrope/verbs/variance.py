"""`isentrope variance`: how large an error each estimator has, and how large E must be.

results.json      methods: entropy (h or ℋ), first_order (ηδH₁) and delta_h (ΔH(η)) by every
                  estimator, with variances over that of prefix and the prompts that are needed;
                  seconds: cost per response of E, by stage
variance.parquet  one row per quantity, estimator and size of E: claimed and observed errors
"""

from __future__ import annotations

from dataclasses import asdict, replace

import pandas as pd

from isentrope.estimators.baseline import cross_fitted_baseline
from isentrope.estimators.functional import METHODS, Functionals, Method
from isentrope.estimators.sample import ScoredBatch, score_batch
from isentrope.estimators.variance import VarianceStudy, variance_study
from isentrope.policy.chi_square import score_moved
from isentrope.policy.scoring import score_with_features
from isentrope.policy.short_steps import require_short_steps
from isentrope.policy.token_statistics import NotFiniteError
from isentrope.results.results import VarianceResult
from isentrope.system.progress import Progress
from isentrope.verbs.prepare import Prepared


def find_variance(ready: Prepared, progress: Progress) -> VarianceResult:
    """Every estimator of ΔH at the rate of interest, on one E-batch."""
    policy, E, eta, clock = ready.policy, ready.batches.E, ready.rate, ready.clock
    with progress.bar("variance") as report:
        report(0, 3, "derivatives to order 1")
        with clock.stage("derivatives"):
            sample = score_batch(
                policy,
                E,
                functional=ready.estimator.functional,
                method="prefix",
                direction=ready.step.direction,
                order=1,
            )
        report(1, 3, "ΔH at one learning rate")
        with clock.stage("moved"):
            found = score_moved(
                policy,
                E,
                ready.step.direction,
                [eta],
                sampler=sample.sampler,
                remainder=False,
            )[0]
        if found is None:
            raise NotFiniteError(
                f"The scores at θ + ηv are not finite for η = {eta:g}: set a smaller "
                "estimator.single_eta."
            )
        report(2, 3, "the control variate")
        with clock.stage("control_variate"):
            samples = _by_method(ready, sample)
    moved, divergence = found
    require_short_steps(policy, E, ready.step.direction, sample.series, [eta], [moved])
    study = variance_study(
        samples,
        eta,
        moved,
        divergence,
        wanted=ready.analysis.wanted_error,
        confidence=ready.estimator.confidence,
    )
    stages = ("batches", "derivatives", "moved", "control_variate")
    return VarianceResult(
        **vars(ready.header),
        eta=eta,
        wanted_error=ready.analysis.wanted_error,
        methods=study.methods,
        seconds={name: clock.seconds[name] / len(E) for name in stages},
        warnings=_warnings(study),
        tables={"variance": pd.DataFrame([asdict(size) for size in study.sizes])},
    )


def _by_method(ready: Prepared, sample: ScoredBatch) -> dict[Method, ScoredBatch]:
    """The same scores with each estimator."""
    f, E = sample.functional, ready.batches.E
    features = score_with_features(ready.policy, E).features
    baseline = cross_fitted_baseline(
        sample.entropies, f.tokens, E.prompt_index, f.functional, features=features
    )
    own: dict[Method, dict[str, object]] = {
        "doubly-robust": {"baseline": baseline},
        "surprisal": {"sampler_logprobs": sample.sampler_logprobs},
    }

    def functional(method: Method) -> Functionals:
        return replace(f, method=method, **own.get(method, {}))

    return {m: replace(sample, functional=functional(m)) for m in METHODS}


def _warnings(study: VarianceStudy) -> tuple[str, ...]:
    sentences = (
        f"{quantity}, {method}: {sentence}"
        for quantity, by_method in study.methods.items()
        for method, of in by_method.items()
        for sentence in of.estimate.warnings
    )
    return tuple(dict.fromkeys(sentences))
