"""`isentrope variance`: how large an error each estimator has, and how large E must be.

results.json      methods: entropy (h or ℋ), first_order (ηδH₁) and delta_h (ΔH(η)) by every
                  estimator, with variances over that of prefix and the prompts that are needed;
                  seconds: cost per response of E, by stage
variance.parquet  one row per quantity, estimator and size of E: claimed and observed errors
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from isentrope.estimators.baseline import cross_fitted_baseline
from isentrope.estimators.options import EstimatorOptions
from isentrope.estimators.sample import ScoredBatch, score_batch
from isentrope.estimators.tail import MIN_UNITS_FOR_INTERVAL, MIN_UNITS_FOR_UPPER_END
from isentrope.estimators.variance import CERTAIN, variance_study
from isentrope.nouns.choices import METHODS, Method
from isentrope.nouns.columns import Column, text
from isentrope.nouns.estimate import Estimate
from isentrope.policy.chi_square import score_moved
from isentrope.policy.scoring import FEATURES, score
from isentrope.policy.token_statistics import NotFiniteError
from isentrope.results.results import VarianceResult
from isentrope.verbs.prepare import Prepared
from isentrope.verbs.printed import Printed, Table, each_once, named, number


def find_variance(ready: Prepared) -> VarianceResult:
    """Every estimator of ΔH at the rate of interest, on one E-batch."""
    policy, E, eta, v, clock = ready.policy, ready.E, ready.rate, ready.step.direction, ready.clock
    functional, wanted = ready.estimator.functional, ready.analysis.wanted_error
    with clock.stage("derivatives"):
        sample = score_batch(policy, E, EstimatorOptions(functional), direction=v, order=1)
    f = sample.functional
    with clock.stage("moved"):
        found = score_moved(policy, E, v, [eta], sampler=sample.sampler, remainder=False)[0]
    if found is None:
        raise NotFiniteError(
            f"The scores at θ + ηv are not finite for η = {eta:g}: set a smaller "
            "estimator.single_eta."
        )
    with clock.stage("control_variate"):
        features = score(policy, E, features=FEATURES).features
        baseline = cross_fitted_baseline(
            sample.entropies, f.tokens, E.prompt_index, functional, features=features
        )
    own: dict[Method, dict[str, Any]] = {
        "doubly-robust": {"baseline": baseline},
        "surprisal": {"sampler_logprobs": sample.sampler_logprobs},
    }
    samples: dict[Method, ScoredBatch] = {
        m: replace(sample, functional=replace(f, method=m, **own.get(m, {}))) for m in METHODS
    }
    confidence = ready.estimator.confidence
    study = variance_study(samples, eta, *found, relative_error=wanted, confidence=confidence)
    stages = ("batches", "derivatives", "moved", "control_variate")
    return VarianceResult(
        **vars(ready.header),
        eta=eta,
        wanted_error=wanted,
        methods=study.methods,
        seconds={name: clock.seconds[name] / len(E) for name in stages},
        warnings=tuple(
            each_once(
                (f"{quantity} by {method}", of.estimate.warnings)
                for quantity, by_method in study.methods.items()
                for method, of in by_method.items()
            )
        ),
        tables={"variance": pd.DataFrame(study.sizes)},
    )


_WORDS = {"entropy": "entropy at θ", "first_order": "ηδH₁", "delta_h": "ΔH(η)"}


def printed_variance(result: VarianceResult, _: Path) -> Printed:
    """Value, variance and prompts needed of every estimator, and what a response costs."""
    rows = [
        (_WORDS[quantity], name, of, _needed(of.prompts_needed))
        for quantity, by_method in result.methods.items()
        for name, of in by_method.items()
    ]
    columns = [
        Column("quantity", 0, left=True),
        Column("estimator", 1, left=True),
        Column("value", lambda row: row[2].estimate),
        Column("variance ÷ prefix", lambda row: _over_prefix(row[2].variance_ratio), 1),
        Column(f"prompts for {100 * result.wanted_error:g} %", 3),
    ]
    grouped = result.batches.E.sequences > result.batches.E.prompt_draws
    if grouped:
        columns.append(Column("design effect", lambda row: row[2].design_effect or ""))
    yield Table(f"{result.policy.name}: errors at η = {result.eta:g}", rows, columns)
    yield f"  ms/response  {named({name: 1e3 * x for name, x in result.seconds.items()})}"
    if grouped:
        yield "  design effect  variance ÷ that of as many prompts with one response each"
    prompts = result.batches.E.prompt_draws
    if prompts < MIN_UNITS_FOR_INTERVAL:
        yield (
            f"  no size      {prompts} prompts are too few for one: {MIN_UNITS_FOR_INTERVAL} give "
            f"a lower bound, {MIN_UNITS_FOR_UPPER_END} an upper one too"
        )
    elif not all(row[3][:1].isdigit() for row in rows):
        yield (
            f"  no size      the value is within {CERTAIN:g} errors of 0, which gives a lower "
            "bound at most, or its weights are not trusted"
        )


def _over_prefix(ratio: Estimate) -> str:
    """A ratio with its error; of numbers that are the same there is none."""
    return number(ratio.value) if ratio.se == 0 else text(ratio)


def _needed(prompts: Estimate) -> str:
    """360 [200, 900], or "200 or more", or nothing; without an interval there is no number."""
    low, high = prompts.ci_low, prompts.ci_high
    if not math.isfinite(low):
        return ""
    if not (math.isfinite(prompts.value) and math.isfinite(high)):
        return f"{_size(low)} or more"
    return f"{_size(prompts.value)} [{_size(low)}, {_size(high)}]"


def _size(prompts: float) -> str:
    """Rounded up at the second digit: a size to plan with."""
    unit = 10 ** max(math.floor(math.log10(prompts)) - 1, 0) if prompts >= 1 else 1
    return f"{math.ceil(prompts / unit) * unit}"
