"""A policy on a task: how often it is correct, how long and how uncertain its responses are.

Responses in, Estimates out: `choose_prompts` and `draw_responses` make the responses, then they are
scored and rewarded (`make_records`), and `estimate_metrics` estimates the metrics. Prompts are the
independent units of every error, so a subset represents the set it was drawn from.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from isentrope.evaluation.metrics import NEED_SCORES, estimate_metrics
from isentrope.evaluation.options import EvaluationOptions, powers_of_two, require_tries
from isentrope.evaluation.responses import (
    choose_prompts,
    draw_responses,
    make_records,
    random_numbers,
)
from isentrope.nouns.choices import ALL_METRICS, Decoding, Metric
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.sampling.tasks.task import Task
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.one_line import one_line, plural


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        metrics: By name, in the order of `metric_names`; None where a metric has no meaning.
        records: One row per response, as `make_records` describes it.
        decoding: "sampled" or "greedy".
    """

    metrics: dict[str, Estimate | None]
    records: pd.DataFrame
    decoding: Decoding

    def __repr__(self) -> str:
        metrics = [f"{name} {e}" for name, e in self.metrics.items() if e is not None]
        size = plural(len(self.records), f"{self.decoding} response")
        return one_line(self, f"{size}, {plural(len(metrics), 'metric')}", *metrics)

    def to_frame(self) -> pd.DataFrame:
        """One row per metric that has a value: value, se, ci_low, ci_high, n, unit, method."""
        rows = {name: asdict(e) for name, e in self.metrics.items() if e is not None}
        columns = ["value", "se", "ci_low", "ci_high", "n", "unit", "method"]
        return pd.DataFrame(list(rows.values()), index=list(rows), columns=columns)


@refuse_other_types
def evaluate(
    policy: Policy,
    task: Task,
    *,
    n_prompts: int | None = None,
    samples_per_prompt: int = 8,
    decoding: Decoding = "sampled",
    max_new_tokens: int = 150,
    seed: int = 0,
    options: EvaluationOptions = EvaluationOptions(),
) -> Evaluation:
    """Evaluate a policy on a task.

    Args:
        policy: The policy, with a tokenizer.
        task: Prompts and a reward.
        n_prompts: Size of a random subset of the prompts; None for all.
        samples_per_prompt: Responses to each prompt; one where `decoding` is "greedy".
        decoding: "sampled" at the policy's temperature, or "greedy".
        max_new_tokens: Longest response in tokens, EOS counted.
        seed: Fixes the subset and every token.
        options: What is estimated.

    Returns:
        Estimates and responses.

    Raises:
        ValueError: If a metric or a k is not known, or there is none.
    """
    tries = powers_of_two(samples_per_prompt) if options.ks is None else tuple(options.ks)
    require_tries(tries, samples_per_prompt)
    unknown = sorted(set(options.metrics) - set(ALL_METRICS))
    if unknown or not options.metrics:
        name = repr(unknown[0]) if unknown else "none"
        raise ValueError(f"Unknown metric {name}: choose among {', '.join(ALL_METRICS)}.")
    rollouts = draw_responses(
        policy,
        choose_prompts(task.prompts, n_prompts, seed, policy=policy),
        samples_per_prompt if decoding == "sampled" else 1,
        random_numbers(seed),
        decoding=decoding,
        max_new_tokens=max_new_tokens,
        batch_size=options.batch_size,
    )
    records = score_records(
        policy, rollouts, task, options.metrics, decoding, right_above=options.right_above
    )
    estimates = estimate_metrics(records, options.metrics, tries, sampled=decoding == "sampled")
    return Evaluation(estimates, records, decoding)


def score_records(
    policy: Policy,
    rollouts: Rollouts,
    task: Task,
    metrics: Sequence[Metric],
    decoding: Decoding,
    *,
    right_above: float,
) -> pd.DataFrame:
    """Score, where a metric needs it, and reward responses.

    Args:
        policy: Scores them at its temperature.
        rollouts: The responses.
        task: Rewards them.
        metrics: Names of the metrics to estimate.
        decoding: How they were drawn; greedy responses are not scored, because no metric needs it.
        right_above: A response is correct if its reward is above this.

    Returns:
        The records.
    """
    needs_scores = decoding == "sampled" and not set(metrics).isdisjoint(NEED_SCORES)
    scores = score(policy, rollouts) if needs_scores else None
    return make_records(policy, rollouts, task, scores, right_above=right_above)
