"""The configuration of `isentrope evaluate`: which checkpoints, which prompts, which numbers.

The section `evaluation` is the profile: with another `checkpoint`, the same file evaluates another
run in the same way.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from isentrope.config.measure import PolicyConfig
from isentrope.config.precision import ScoringPrecision
from isentrope.config.stages import (
    OutputConfig,
    Refusals,
    SamplingConfig,
    Section,
    TaskConfig,
)
from isentrope.config.values import AnyValues, FileName, Name, NonEmpty, PathText
from isentrope.evaluation.options import powers_of_two, require_tries
from isentrope.nouns.choices import ALL_METRICS, Decoding, Metric
from isentrope.system.number_types import Count, OpenShare, Real, Seed, Times


class EvaluationData(TaskConfig):
    """The task."""

    split: Name = "test"
    """Split that is evaluated on."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The one split."""
        return (self.split,)


class EvaluationProfile(Section):
    """What is estimated, from how many responses to which prompts."""

    metrics: NonEmpty[Metric] | None = None
    """Metrics of docs/evaluation.md; null: all (format, unread where the task has them)."""
    n_prompts: Times | None = None
    """Number of prompts, a random subset fixed by the seed; null: the whole split."""
    samples_per_prompt: Times = 8
    """Responses sampled to each prompt."""
    ks: NonEmpty[Count] | None = None
    """The k of pass@k, each at most samples_per_prompt; null: 1, 2, 4, ... as far as they go."""
    greedy: bool = True
    """Also one greedy response per prompt."""
    right_above: Real = 0.5
    """A response is correct if its reward is above this."""
    seed: Seed = 0
    """Fixes the subset and every token; the same for all checkpoints, so their rows are paired."""
    chunk_prompts: Count = 64
    """Prompts per chunk, which one process evaluates and saves at once; it changes no number."""
    save_tokens: bool = True
    """Keep ids, log-probabilities and entropies of all tokens in records.parquet."""

    def refusals(self) -> Refusals:
        """Nothing beside a k that is larger than the responses are many."""
        require_tries(self.tries, self.samples_per_prompt)
        return ()

    @property
    def tries(self) -> tuple[int, ...]:
        """The k in force."""
        return tuple(self.ks) if self.ks else powers_of_two(self.samples_per_prompt)

    @property
    def samples(self) -> dict[Decoding, int]:
        """Responses to each prompt, by decoding."""
        greedy: dict[Decoding, int] = {"greedy": 1} if self.greedy else {}
        return {"sampled": self.samples_per_prompt, **greedy}

    @property
    def chosen(self) -> tuple[Metric, ...]:
        """The metrics in force."""
        return ALL_METRICS if self.metrics is None else tuple(self.metrics)


class EvaluationSampling(SamplingConfig):
    """How responses are drawn, and how much is scored at a time."""

    engine: Literal["transformers", "vllm"] = "transformers"
    """Sampling engine; vllm has to be installed, and its responses depend on the batch."""
    vllm_memory: OpenShare = 0.5
    """Share of the GPU's memory that vllm may take; the scorer needs the rest."""


class EvaluationOutput(OutputConfig):
    """Where results go and how much is said on the way."""

    directory: PathText | None = None
    """Folder of the evaluation; null: eval_runs/<name>_<dataset>."""
    name: FileName | None = None
    """The name in that folder; null: that of the run which the first checkpoint belongs to."""


class EvaluateConfig(Section):
    """Settings of `isentrope evaluate`."""

    checkpoint: PolicyConfig
    data: EvaluationData = Field(default_factory=EvaluationData)
    evaluation: EvaluationProfile = Field(default_factory=EvaluationProfile)
    precision: ScoringPrecision = Field(default_factory=ScoringPrecision)
    sampling: EvaluationSampling = Field(default_factory=EvaluationSampling)
    output: EvaluationOutput = Field(default_factory=EvaluationOutput)
    provenance: AnyValues | None = None
    """Written into the folder's config.yaml; a rerun warns where versions differ from it."""

    def refusals(self) -> Refusals:
        """An engine that samples from another policy."""
        by_vllm = self.sampling.engine == "vllm"
        quantization = self.checkpoint.quantization
        yield (
            by_vllm and self.precision.sampling.runtime_dtype == "float64",
            "sampling.engine=vllm cannot sample in float64: set precision.sampler_dtype to "
            "bfloat16 or float32",
        )
        yield (
            by_vllm and quantization != "none",
            "sampling.engine=vllm would sample from the base model as it is, and "
            f"checkpoint.quantization={quantization} scores another: set it to none, or "
            "sampling.engine to transformers",
        )
