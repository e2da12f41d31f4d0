"""`isentrope variance`: how large an error each estimator has, and how large E must be.

results.json      methods: entropy (h or ℋ), first_order (ηδH₁) and delta_h (ΔH(η)) by every
                  estimator, with variances over that of prefix and the prompts that are needed;
                  seconds: cost per response of E, by stage
variance.parquet  one row per quantity, estimator and size of E: claimed and observed errors
"""

from dataclasses import replace
from typing import Any

import pandas as pd

from isentrope.estimators.baseline import cross_fitted_baseline
from isentrope.estimators.options import EstimatorOptions
from isentrope.estimators.sample import ScoredBatch, score_batch
from isentrope.estimators.variance import variance_study
from isentrope.nouns.choices import METHODS, Method
from isentrope.policy.chi_square import score_moved
from isentrope.policy.scoring import FEATURES, score
from isentrope.policy.token_statistics import NotFiniteError
from isentrope.results.answers.blocks import each_once
from isentrope.results.results import VarianceResult
from isentrope.verbs.prepare import Prepared


def find_variance(ready: Prepared) -> VarianceResult:
    """Every estimator of ΔH at the rate of interest, on one E-batch."""
    policy = ready.policy
    E = ready.E
    eta = ready.rate
    v = ready.step.direction
    clock = ready.clock
    per = ready.config.estimator.options.per
    functional = ready.config.estimator.functional
    relative_error = ready.config.analysis.wanted_error
    with clock.stage("derivatives"):
        sample = score_batch(policy, E, EstimatorOptions(per), direction=v, order=1)
    f = sample.functional
    with clock.stage("moved"):
        moved_scores = score_moved(policy, E, v, [eta], sampler=sample.sampler, remainder=False)[0]
    if moved_scores is None:
        raise NotFiniteError(
            f"The scores at θ + ηv are not finite for η = {eta:g}: set a smaller "
            "estimator.single_eta."
        )
    with clock.stage("control_variate"):
        features = score(policy, E, features=FEATURES).features
        baseline = cross_fitted_baseline(
            sample.entropies, f.tokens, E.prompt_index, functional, features=features
        )
    options: dict[Method, dict[str, Any]] = {
        "doubly-robust": {"baseline": baseline},
        "surprisal": {"sampler_logprobs": sample.sampler_logprobs},
    }
    samples: dict[Method, ScoredBatch] = {
        m: replace(sample, functional=replace(f, method=m, **options.get(m, {}))) for m in METHODS
    }
    confidence = ready.config.estimator.confidence
    study = variance_study(
        samples, eta, *moved_scores, relative_error=relative_error, confidence=confidence
    )
    stages = ("batches", "derivatives", "moved", "control_variate")
    return VarianceResult(
        **vars(ready.header),
        eta=eta,
        wanted_error=relative_error,
        methods=study.methods,
        seconds={name: clock.seconds[name] / len(E) for name in stages},
        warnings=tuple(
            each_once(
                (f"{quantity} by {method}", variance.estimate.warnings)
                for quantity, by_method in study.methods.items()
                for method, variance in by_method.items()
            )
        ),
        tables={"variance": pd.DataFrame(study.sizes)},
    )
