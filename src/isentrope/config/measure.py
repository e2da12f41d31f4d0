"""The configuration of a measurement: small frozen models, one per section.

Every accepted key does something, unknown keys are an error (`config.io` says it in a sentence),
and `isentrope config show` prints every key with its default and the words below it. Names of the
original notes that are not ours are in docs/from_notes.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from isentrope.config.analysis import AnalysisConfig, EntropiesConfig, KernelConfig, TrialConfig
from isentrope.config.estimator import EstimatorConfig
from isentrope.config.precision import PrecisionConfig
from isentrope.config.stages import (
    LoggingConfig,
    OutputConfig,
    PromptsConfig,
    Refusals,
    SamplingConfig,
    Section,
    under_one_name,
)
from isentrope.config.values import AnyValues, Name, NonEmpty, PathText, too_many
from isentrope.system.number_types import NoneOrMore, Repeats, Seed, Several, Times, Whole

if TYPE_CHECKING:
    from isentrope.sampling.tasks.task import Task

BACKBONES = {
    "phi2": "microsoft/phi-2",
    "phi1_5": "microsoft/phi-1_5",
    "tinyllama": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "gemma2b": "google/gemma-2b-it",
    "qwen2": "Qwen/Qwen2-0.5B",
    "qwen2_5_05": "Qwen/Qwen2.5-0.5B",
    "qwen2_5_15": "Qwen/Qwen2.5-1.5B",
}
"""Keys of the notes' model registry."""

ELSEWHERE = [
    "entropy_analysis",
    "save_gradients",
    "entropy_probe",
    "simple_entropy_probe",
    "gns_probe",
    "generation",
    "true_delta_h",
    "approx_delta_h",
    "rb_requires_grad",
    "tf_withgrad",
    "results_path",
]
"""Keys that are refused, and whose work another one does."""


def base_of(backbone: str) -> str:
    """The folder or the hub's name of a base model that is given as `backbone`.

    Returns:
        What `checkpoint.base_model` is to be.

    Raises:
        ValueError: If it is a key of a registry that is not known here.
    """
    if backbone in BACKBONES and not Path(backbone).exists():
        return BACKBONES[backbone]
    if "/" in backbone or Path(backbone).exists():
        return backbone
    raise ValueError(
        f"backbone {backbone[:80]!r} is neither a folder, nor OWNER/NAME on the model hub, nor one "
        f"of {', '.join(BACKBONES)}: give checkpoint.base_model"
    )


class PolicyConfig(Section):
    """Which policy."""

    checkpoint_path: PathText | list[PathText]
    """Checkpoint folder, a folder of them, or a list; a name with * or ? is all that match."""
    base_model: PathText | None = None
    """Base model under the adapter; null: the one that the adapter's config names."""
    device_map: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"
    """Device: cpu, cuda or cuda:N."""
    shard_base: bool = False
    """Spread the decoder layers over the processes of torchrun (FSDP2), for large models."""
    quantization: Literal["none", "4bit"] = "none"
    """Precision of a frozen base under an adapter (4bit needs bitsandbytes)."""
    allow_hub: bool = False
    """Load a base that the adapter itself names from the model hub; not needed for base_model."""
    verify: bool = True
    """Refuse files that were changed after they were written; false warns in the results."""

    @model_validator(mode="before")
    @classmethod
    def _backbone_is_another_name(cls, content: Any) -> Any:
        """Accept `backbone` for `base_model`, with the names that the notes' registry gives."""
        renamed = under_one_name(content, "backbone", "base_model")
        if renamed is not content and isinstance(name := renamed["base_model"], str):
            return {**renamed, "base_model": base_of(name)}
        return renamed

    @field_validator("checkpoint_path")
    @classmethod
    def _not_empty(cls, value: str | list[str]) -> str | list[str]:
        if not value or not all(value):
            raise ValueError("give at least one checkpoint folder")
        return value


class CheckpointConfig(PolicyConfig):
    """Which policy, and the state of the optimizer that trains it."""

    optimizer_path: PathText | None = None
    """Optimizer state, a file or its folder; null: optimizer.pt in the checkpoint folder."""
    trainable: NonEmpty[Name] | None = None
    """Names of what was trained, with * and ?; null: the whole adapter, or all weights."""
    master_weights: bool = False
    """true: training kept a float32 copy of 16-bit weights, so its steps were not rounded."""
    allow_mixed: bool = False
    """Measure checkpoints together whose runs trained differently, as their contracts say."""


class BatchConfig(PromptsConfig):
    """E, on which entropy is measured, and U, from which the step is computed."""

    dataset_name: Name = "gsm8k_r1_template"
    """Prompts of E: a task by name (docs/tasks.md), prompts (a jsonl), or file.py:name."""
    dataset_path: PathText | None = None
    """File or folder of E's data set; null: the task's own source."""
    U_dataset_name: Name | None = None
    """Prompts and rewards of U; null: those of E."""
    U_dataset_path: PathText | None = None
    """File or folder of U's data set; null: that of E where U has E's data set."""
    E_split: Name = "test"
    """Split that E is drawn from."""
    U_split: Name = "train"
    """Split that U is drawn from."""
    B_E: Times = 256
    """Size of E: prompts drawn, G_E responses to each."""
    G_E: Times = 1
    """Responses per prompt of E; the design effect of variance is what more than one costs."""
    B_U: Times = 32
    """Size of U: prompt groups that have an advantage."""
    G: Several = 8
    """Responses per prompt group of U."""
    fixed_prompts: bool | Literal["E"] = False
    """true: the first B_E and B_U prompts of the splits; E: E's alone; false: random. Errors count
    the spread between prompts in any case, so of these prompts alone they are too large."""
    U_weighting: Literal["uniform", "difficulty"] = "uniform"
    """Prompts of U: each as likely, or difficulty, by the pass rates in the checkpoint."""
    allow_overlap: bool = False
    """Whether a prompt of E may be one of U."""
    E_file: PathText | None = None
    """Rollouts to use as E instead of sampling: .parquet as saved, or .jsonl as written by hand."""
    U_file: PathText | None = None
    """Rollouts to use as U, with rewards (or advantages, or references to be rewarded by)."""
    save_batches: bool = False
    """Write E.parquet and U.parquet beside the results."""
    seed: Seed = 0
    """Seed of E; U has the next one and fresh responses the one after."""
    repeats: Repeats = 1
    """Fresh batches U at each checkpoint, each with results of its own; E stays."""
    first_repeat: Whole = 0
    """Which of them is the first: their seeds differ by 3 from one to the next."""
    redraw_limit: NoneOrMore = 20
    """Rounds of redrawing for groups of U without advantage."""

    def refusals(self) -> Refusals:
        """One batch U, where others are asked for."""
        yield from super().refusals()
        has_file = self.U_file is not None
        yield (
            self.U_weighting != "uniform" and (self.fixed_prompts is True or has_file),
            f"U_weighting={self.U_weighting} draws the prompts of U, and fixed_prompts or U_file "
            "say which they are: choose one",
        )
        yield (
            self.repeats > 1 and has_file,
            f"repeats={self.repeats} asks for fresh batches U, and U_file is one batch: choose one",
        )
        yield too_many(B_E=self.B_E, G_E=self.G_E)
        yield too_many(B_U=self.B_U, G=self.G)

    @property
    def seeds(self) -> dict[str, int]:
        """The seeds of E, of U, of fresh responses, and of the controls' own E."""
        U = self.seed + 1 + 3 * self.first_repeat
        return {"E": self.seed, "U": U, "resample": U + 1, "control": U + 2}

    def tasks(self) -> list[tuple[str, str | None, str]]:
        """Those of E and U that are drawn; a file of rollouts may need no task."""
        E = self.dataset_name, self.dataset_path, self.E_split
        tasks = [E] if self.E_file is None else []
        if self.U_file is None:
            tasks.append((*self.update_source(), self.U_split))
        return tasks

    def evaluation_task(self) -> Task:
        """The task that E's prompts and rewards come from."""
        return self.load_task(self.dataset_name, self.E_split, self.dataset_path)

    def update_task(self) -> Task:
        """The task that U's prompts and rewards come from."""
        name, path = self.update_source()
        return self.load_task(name, self.U_split, path)

    def update_source(self) -> tuple[str, str | None]:
        """The name and the file of the task of U."""
        name = self.U_dataset_name or self.dataset_name
        shared = self.dataset_path if name == self.dataset_name else None
        return name, self.U_dataset_path or shared


def repeat_of(seeds: Mapping[str, int]) -> int | None:
    """Which of the repeats `BatchConfig.seeds` are of; None where they are not recorded."""
    return (seeds["U"] - seeds["E"] - 1) // 3 if {"E", "U"} <= seeds.keys() else None


class MeasureConfig(Section):
    """Settings of measure, influence, kernel, noise, audit, try, entropies and check."""

    checkpoint: CheckpointConfig
    batch_config: BatchConfig = Field(default_factory=BatchConfig)
    estimator: EstimatorConfig = Field(default_factory=EstimatorConfig)
    precision: PrecisionConfig = Field(default_factory=PrecisionConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    analysis: AnalysisConfig = Field(default_factory=AnalysisConfig)
    fisher_kernel: KernelConfig = Field(default_factory=KernelConfig)
    trial: TrialConfig = Field(default_factory=TrialConfig)
    entropies: EntropiesConfig = Field(default_factory=EntropiesConfig)
    detailed_logging: LoggingConfig = Field(default_factory=LoggingConfig)
    output: OutputConfig = Field(default_factory=OutputConfig)
    provenance: AnyValues | None = None
    """Written into a run folder's config.yaml; a rerun warns where versions differ from it."""

    def refusals(self) -> Refusals:
        """Micro-batches that change nothing."""
        estimator = self.estimator
        rounding = self.precision.updating.rounding
        yield (
            estimator.micro_batch and estimator.objective != "bnpo" and rounding is None,
            "estimator.micro_batch acts with the objective bnpo, or with a precision.update_vector "
            f"of 16 bits, not with {estimator.objective}",
        )
