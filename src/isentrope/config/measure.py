"""The configuration of a measurement: small frozen models, one a section.

Every accepted key does something, unknown keys are an error (`config_io` says it in a sentence),
and `isentrope config show` prints every key with its default and the words below it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from isentrope.config.analysis import AnalysisConfig, KernelConfig
from isentrope.config.control import TrialConfig
from isentrope.config.stages import (
    LoggingConfig,
    OutputConfig,
    PrecisionConfig,
    PromptsConfig,
    SamplingConfig,
    Section,
)
from isentrope.config.values import (
    Count,
    Name,
    Order,
    PathText,
    Positive,
    Rate,
    Seed,
    Share,
    Whole,
)
from isentrope.estimators.functional import Method
from isentrope.sampling.tasks import Task
from isentrope.training.trainer_fields import require_known_settings
from isentrope.update.objective import Objective

AnyObjective = Literal[Objective, "sft", "recorded"]

RATES_AROUND = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)
"""Multiples of the training rate that a sweep visits where no list is given."""

ADVANTAGES_OF = {
    "dr_grpo": "dr_grpo",
    "dr_grpo_longest": "dr_grpo",
    "grpo": "grpo",
    "rloo": "rloo",
    "dapo": "grpo",
    "bnpo": "grpo",
    "cispo": "grpo",
    "sapo": "grpo",
    "luspo": "grpo",
    "vespo": "grpo",
    "sft": "dr_grpo",
    "recorded": "dr_grpo",
}
"""The advantages that go with an objective."""


class PolicyConfig(Section):
    """Which policy."""

    checkpoint_path: PathText | list[PathText]
    """Checkpoint folder, a folder of them, or a list; a name with * or ? is all that match."""
    base_model: PathText | None = None
    """Base model under the adapter; null: the one that the adapter's config names."""
    device_map: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"
    """Device: cpu, cuda or cuda:N."""
    quantization: Literal["none", "4bit", "8bit"] = "none"
    """Precision of a frozen base under an adapter (4bit and 8bit need bitsandbytes)."""
    allow_hub: bool = False
    """Load a base that the adapter itself names from the model hub; base_model needs no leave."""
    verify: bool = True
    """Refuse files that were changed after they were written; false warns in the results."""

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
    trainable: Annotated[list[Name], Field(min_length=1)] | None = None
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
    B_E: Count = 256
    """Size of E: prompts, one response each."""
    B_U: Count = 32
    """Size of U: prompt groups that have an advantage."""
    G: Annotated[Count, Field(ge=2)] = 8
    """Responses per prompt group of U."""
    fixed_prompts: bool = False
    """true: the first B_E and the first B_U prompts of the splits; false: random prompts."""
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
    repeats: Count = 1
    """Fresh batches U at each checkpoint, each with results of its own; E stays."""
    first_repeat: Whole = 0
    """Which of them is the first: their seeds differ by 3 from one to the next."""
    redraw_limit: Whole = 20
    """Rounds of redrawing for groups of U without advantage."""

    @model_validator(mode="after")
    def _repeats_are_fresh(self) -> BatchConfig:
        if self.repeats > 1 and self.U_file is not None:
            raise ValueError(
                f"repeats={self.repeats} asks for fresh batches U, and U_file is one batch: choose "
                "one"
            )
        return self

    @property
    def seeds(self) -> dict[str, int]:
        """The seeds of E, of U, of fresh responses, and of the controls' own E."""
        U = self.seed + 1 + 3 * self.first_repeat
        return {"E": self.seed, "U": U, "resample": U + 1, "control": U + 2}

    def require_files(self) -> None:
        """Refuse batch and data files that are missing, before any work is done.

        Raises:
            FileNotFoundError: Naming the key and the path.
        """
        for key in ("E_file", "U_file", "dataset_path", "U_dataset_path"):
            path = getattr(self, key)
            if path is not None and not Path(path).exists():
                raise FileNotFoundError(f"There is no file {path} (batch_config.{key}).")

    @property
    def repeat_numbers(self) -> range:
        """Which batches U are asked for."""
        return range(self.first_repeat, self.first_repeat + self.repeats)

    def evaluation_task(self, tokenizer: Any) -> Task:
        """The task that E's prompts and rewards come from."""
        return self.load_task(self.dataset_name, self.E_split, self.dataset_path, tokenizer)

    def update_task(self, tokenizer: Any) -> Task:
        """The task that U's prompts and rewards come from."""
        name = self.U_dataset_name or self.dataset_name
        shared = self.dataset_path if name == self.dataset_name else None
        return self.load_task(name, self.U_split, self.U_dataset_path or shared, tokenizer)


class EstimatorConfig(Section):
    """Which entropy, at which learning rates, by which estimator, and of which step."""

    eta_sweep: bool = True
    """Measure at every rate of eta_list; false: at single_eta only."""
    single_eta: Rate | None = None
    """The learning rate of interest, also part of a sweep; null: the optimizer's own."""
    eta_list: Annotated[list[Rate], Field(min_length=1)] | None = None
    """Learning rates of the sweep; null: 1/8 to 4 times the rate of interest."""
    functional: Literal["per_token", "per_sequence"] = "per_token"
    """Entropy per token (h) or per sequence (H)."""
    method: Literal["prefix", "sequence", "doubly-robust", "resampled"] = "prefix"
    """The estimator; resampled draws fresh responses at every rate."""
    order: Order = 2
    """Derivatives to predict with."""
    confidence: Share = 0.95
    """Nominal coverage of the intervals."""
    resample_collapsed: bool = False
    """Where the verdict is resample, also draw fresh responses and report that value beside."""
    objective: AnyObjective = "dr_grpo"
    """Training objective of the step; recorded: the token weights in U_file; sft: its responses."""
    advantages: Literal["dr_grpo", "grpo", "rloo"] | None = None
    """Advantages from rewards; null: those of the objective (TRL's losses have those of grpo)."""
    max_grad_norm: Positive | None = 1.0
    """Gradient clipping as in training; null: none."""
    max_response_length: Count | None = None
    """The constant length L of dr_grpo; null: sampling.max_new_tokens."""
    rounded_step: bool | None = None
    """Weights trained in 16 bits: true measures the rounded step, false v; null: refused."""
    off_policy: bool = False
    """U was drawn by an earlier policy: weight its tokens by the ratio to their sampler."""
    clip: Positive | Annotated[tuple[Positive, Positive], Field(strict=False)] | None = 0.2
    """With off_policy: how far from 1 a ratio may go; one number, or [low, high]; null: any."""
    micro_batch: Count | None = None
    """Responses per backward pass of bnpo, in the order of U; null: all in one."""
    ignore_training_settings: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    """Settings of training that may differ (keys, or the trainer's fields), with a warning."""

    @model_validator(mode="after")
    def _length_needs_its_objective(self) -> EstimatorConfig:
        if self.max_response_length is not None and self.objective != "dr_grpo":
            raise ValueError(
                f"max_response_length acts with the objective dr_grpo only, not {self.objective}"
            )
        return self

    @model_validator(mode="after")
    def _recorded_weights_have_their_ratios(self) -> EstimatorConfig:
        if self.off_policy and self.objective == "recorded":
            raise ValueError(
                "off_policy computes token weights by an objective, and objective=recorded takes "
                "them from U_file: choose one"
            )
        return self

    @model_validator(mode="after")
    def _settings_are_known(self) -> EstimatorConfig:
        if self.micro_batch is not None and self.objective != "bnpo":
            raise ValueError(f"micro_batch acts with the objective bnpo only, not {self.objective}")
        require_known_settings(self.ignore_training_settings)
        return self

    @property
    def clip_pair(self) -> tuple[float, float] | None:
        """(low, high) of the clip; one number is both, as far as 1 goes."""
        if self.clip is None:
            return None
        low, high = self.clip if isinstance(self.clip, tuple) else (self.clip, self.clip)
        return min(low, 1.0), high

    @property
    def weighted_method(self) -> Method:
        """The estimator by importance weights; "resampled" has its derivatives from "prefix"."""
        return "prefix" if self.method == "resampled" else self.method

    @property
    def advantage_rule(self) -> str:
        """The advantages in force."""
        return self.advantages or ADVANTAGES_OF[self.objective]

    def rate(self, learning_rate: float) -> float:
        """The learning rate of interest; `learning_rate` is the optimizer's own."""
        return self.single_eta or learning_rate

    def etas(self, learning_rate: float) -> list[float]:
        """The learning rates to measure at.

        Args:
            learning_rate: The optimizer's own, taken where `single_eta` is null.

        Returns:
            At least one rate, in the order given.

        Raises:
            ValueError: If the rate of interest is needed and the optimizer's is 0.
        """
        rate = self.rate(learning_rate)
        if rate == 0 and (self.eta_list is None or not self.eta_sweep):
            raise ValueError(
                "The optimizer's learning rate is 0 (the end of a schedule, perhaps): "
                "set estimator.single_eta or estimator.eta_list."
            )
        if not self.eta_sweep:
            return [rate]
        rates = self.eta_list or [rate * factor for factor in RATES_AROUND]
        extra = [] if self.single_eta is None or self.single_eta in rates else [self.single_eta]
        return rates + extra


class MeasureConfig(Section):
    """Settings of measure, influence, kernel, noise, audit, try and check."""

    checkpoint: CheckpointConfig
    batch_config: BatchConfig = BatchConfig()
    estimator: EstimatorConfig = EstimatorConfig()
    precision: PrecisionConfig = PrecisionConfig()
    sampling: SamplingConfig = SamplingConfig()
    analysis: AnalysisConfig = AnalysisConfig()
    fisher_kernel: KernelConfig = KernelConfig()
    trial: TrialConfig = TrialConfig()
    detailed_logging: LoggingConfig = LoggingConfig()
    output: OutputConfig = OutputConfig()
    provenance: dict[str, Any] | None = None
    """Written into a run folder's config.yaml; a rerun warns where versions differ from it."""

    @model_validator(mode="after")
    def _quantised_bases_are_not_float64(self) -> MeasureConfig:
        stages = (self.precision.measuring, self.precision.updating, self.precision.sampling)
        if self.checkpoint.quantization != "none" and any(
            stage.runtime_dtype == "float64" for stage in stages
        ):
            raise ValueError(
                f"checkpoint.quantization={self.checkpoint.quantization} cannot run in float64: "
                "set precision.runtime_dtype=float32"
            )
        return self
