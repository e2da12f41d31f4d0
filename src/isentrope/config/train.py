"""The configurations of training: `SftConfig` of `isentrope sft`, `TrainConfig` of `train`.

`trainer` passes any other field through to TRL's own configuration. A field that a section here
already sets is refused there, so that nothing is said twice.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from isentrope.config.analysis import ControlConfig
from isentrope.config.stages import OutputConfig, Refusals, Section, TaskConfig
from isentrope.config.values import AnyValues, Name, PathText, Pattern, too_many
from isentrope.nouns.choices import Functional, Preconditioning
from isentrope.system.number_types import (
    Count,
    Decay,
    NoneOrMore,
    NotNegative,
    OpenShare,
    Positive,
    Rate,
    Seed,
    Several,
    Temperature,
    Times,
    Whole,
)


def _rename_memory(content: Any) -> Any:
    """A section with `decay` in place of `memory`, its earlier name."""
    if not isinstance(content, dict) or "memory" not in content:
        return content
    if "decay" in content:
        raise ValueError("decay and its earlier name memory are both given: omit memory")
    return {("decay" if key == "memory" else key): value for key, value in content.items()}


class ModelConfig(Section):
    """The model that is trained, and what of it is trained."""

    path: PathText
    """Folder of a model or an adapter, a name on the model hub, or toy (random weights)."""
    lora_rank: Whole = 16
    """Rank of a fresh LoRA adapter, at most that of its matrices; 0: train every weight."""
    lora_alpha: Positive = 32
    """The adapter's output is multiplied by lora_alpha / lora_rank."""
    lora_target_modules: Name | list[Name] = "all-linear"
    """Layers that get an adapter."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the base model's weights; a fresh adapter's are float32."""
    allow_hub: bool = False
    """Load a base that the adapter at path names from the model hub; not needed for path."""
    shard_base: bool = False
    """Spread the layers of a frozen base over the processes of torchrun; all hold the adapter."""


class DataConfig(TaskConfig):
    """Where prompts come from."""

    train_split: Name = "train"
    """Split that is trained on."""
    held_out_split: Name = "test"
    """Split of the entropy probe, and of adherence; prompts that are trained on are left out."""

    @property
    def splits(self) -> tuple[str, ...]:
        """Both splits."""
        return self.train_split, self.held_out_split


class TrainingSampling(Section):
    """How responses are drawn; nothing is filtered, so the sampler is the policy."""

    temperature: Temperature = 1.0
    """Sampling temperature, also that of every log-probability and entropy."""
    max_new_tokens: Count = 150
    """Longest response in tokens, and the constant length L of the loss."""
    batch_size: Count = 128
    """Sequences sampled at a time, on each process; on a GPU the least, where its free memory holds
    more. It changes nothing but speed and memory."""


class TrainingConfig(Section):
    """Dr. GRPO: how many steps, of what batches, and what is kept."""

    steps: Times = 64
    """Optimizer steps."""
    learning_rate: Rate = 1e-5
    """Peak learning rate; its schedule is trainer.lr_scheduler_type, constant by default."""
    prompts_per_step: Times = 32
    """Prompt groups per update, over all processes; each has an advantage."""
    group_size: Several = 8
    """Responses per prompt group."""
    micro_batch: Count | None = None
    """Sequences per backward pass on each process, in whole groups; null: all at once."""
    normaliser: Literal["constant", "longest"] = "constant"
    """Length that divides the loss: max_new_tokens, or the longest response of each group."""
    max_grad_norm: NotNegative = 1.0
    """The gradient is clipped to this norm; 0: never."""
    redraw_limit: NoneOrMore = 20
    """Rounds of redrawing for groups whose rewards are all equal."""
    prompt_weighting: Literal["uniform", "difficulty"] = "uniform"
    """Prompts in random order, or the more often the likelier their group has an advantage."""
    seed: Seed = 0
    """Fixes the adapter, every batch and every token."""
    repeat: Whole = 0
    """Another draw of batches and tokens by the same seed, which is what repeats need; 0: none."""
    save_every: Count = 10
    """Steps between checkpoints; the last step is always saved."""
    keep_last: Count | None = None
    """Newest checkpoints kept; null: all."""
    keep_every: Count | None = None
    """Checkpoints at multiples of this many steps are kept whatever keep_last says."""

    @property
    def draws(self) -> int:
        """Seed of all batches and tokens."""
        from isentrope.sampling.streams import seed_of_repeat

        return seed_of_repeat(self.seed, self.repeat)

    @property
    def groups_per_pass(self) -> int | None:
        """Prompt groups per backward pass on each process; None: all at once."""
        return None if self.micro_batch is None else self.micro_batch // self.group_size

    def refusals(self) -> Refusals:
        """Micro-batches that are not whole."""
        groups, remainder = divmod(self.micro_batch or self.group_size, self.group_size)
        yield (
            remainder or self.prompts_per_step % groups,
            f"micro_batch={self.micro_batch} counts sequences per backward pass, in whole groups "
            f"of group_size={self.group_size} of which prompts_per_step={self.prompts_per_step} is "
            f"a multiple: {self.group_size} is the smallest, one group",
        )
        yield too_many(prompts_per_step=self.prompts_per_step, group_size=self.group_size)


class ProbeConfig(Section):
    """The online probe: what each step does to entropy, predicted and measured."""

    enabled: bool = True
    """Probe while training."""
    every: Count = 20
    """Steps from one reading to the next; the first step has one."""
    log_every: Count | None = None
    """Also predict every so many steps, by the gradient of the last reading; null: never."""
    size: Several = 32
    """Held-out prompts per reading, one response each."""
    functional: Functional = "per_token"
    """Entropy per token (h) or per sequence (H)."""
    method: Literal["prefix", "sequence"] = "prefix"
    """The estimator."""
    second_order: bool = False
    """Also the second-order term and the linear range, at about twice the cost."""
    fresh: bool = False
    """Also measure on a second mini-batch, whose error is independent of the prediction's."""
    preconditioning: Preconditioning = "this_step"
    """The predicted step: as taken, or previous_step: with the second moments of before it."""
    price: bool = True
    """Also what a step spends of entropy and earns of reward, and at which positions."""
    position_pattern: Pattern | None = None
    """A class of positions of its own: the response so far ends in this regular expression."""
    decay: Decay = 0.9
    """Decay of the exponential moving average over readings; it was called memory."""

    @model_validator(mode="before")
    @classmethod
    def _no_mode(cls, content: Any) -> Any:
        """Accept `mode: simple`, which is all that this probe does, and `memory`."""
        content = _rename_memory(content)
        if isinstance(content, dict) and "mode" in content:
            if content["mode"] == "simple":
                return {k: v for k, v in content.items() if k != "mode"}
            raise ValueError(
                "mode is not a key: every sets after how many steps entropy is read from fresh "
                "responses, log_every predicts the steps between by the gradient that is kept, and "
                "enabled: false switches the probe off; isentrope kernel analyses checkpoints"
            )
        return content


class AlarmConfig(Section):
    """The alarm on the probe's readings: entropy is spent faster than before, or soon spent."""

    enabled: bool = True
    """Warn in the log; it needs the probe."""
    false_alarms: OpenShare = 0.005
    """Largest probability of a false alarm per reading."""
    half_life: Count = 50
    """Steps: warn where, at the present rate, half of the entropy is spent within fewer."""
    stop: bool = False
    """Save a checkpoint and stop training at an alarm."""


class NoiseScaleConfig(Section):
    """The online gradient noise scale; it needs two micro-batches per step or more."""

    enabled: bool = True
    """Log it, where the steps have more than one micro-batch."""
    decay: Decay = 0.95
    """Decay of the exponential moving averages over steps; it was called memory."""

    @model_validator(mode="before")
    @classmethod
    def _read_earlier_name(cls, content: Any) -> Any:
        """Accept `memory`, the earlier name of `decay`."""
        return _rename_memory(content)


class TrackedConfig(OutputConfig):
    """Where results go and how much is said on the way."""

    report_to: Annotated[tuple[Name, ...], Field(strict=False)] = ("tensorboard",)
    """Trackers that transformers knows; an empty list for none."""


class RunConfig(TrackedConfig):
    """Where results go and how much is said on the way."""

    rollouts_every: Whole = 1
    """Steps between tables of rollouts under logs/rollouts; 0: none."""


class TrainConfig(Section):
    """Settings of `isentrope train`."""

    model: ModelConfig
    data: DataConfig = Field(default_factory=DataConfig)
    sampling: TrainingSampling = Field(default_factory=TrainingSampling)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    entropy_probe: ProbeConfig = Field(default_factory=ProbeConfig)
    alarm: AlarmConfig = Field(default_factory=AlarmConfig)
    noise_scale: NoiseScaleConfig = Field(default_factory=NoiseScaleConfig)
    control: ControlConfig = Field(default_factory=ControlConfig)
    trainer: AnyValues = Field(default={})
    """Any other field of TRL's GRPOConfig."""
    output: RunConfig = Field(default_factory=RunConfig)
    provenance: AnyValues | None = None
    """Written into a run folder's config.yaml."""

    def refusals(self) -> Refusals:
        """An alarm without readings."""
        watched = self.alarm.enabled and self.entropy_probe.enabled
        words = "alarm.stop needs alarm.enabled and entropy_probe.enabled"
        yield self.alarm.stop and not watched, words


class FineTuningConfig(Section):
    """Supervised fine-tuning on the task's demonstrations, loss on the response alone."""

    steps: Times = 400
    """Optimizer steps."""
    batch_size: Count = 64
    """Demonstrations per update, over all processes."""
    micro_batch: Count | None = None
    """Demonstrations per backward pass, on each process; null: all of the process at once."""
    learning_rate: Rate = 2e-4
    """Peak learning rate, reached linearly, left by a cosine to zero."""
    warmup_steps: Whole = 20
    """Steps of the rise."""
    max_length: Count | None = None
    """Longest prompt and response together; a longer demonstration is an error. null: any."""
    seed: Seed = 0
    """Fixes weights that are random, demonstrations and their order."""
    save_every: Count | None = None
    """Steps between checkpoints, from which sft --resume continues; null: none."""
    adherence_prompts: NoneOrMore = 0
    """Held-out prompts that the model answers greedily at the end, for its format and reward."""


class SftConfig(Section):
    """Settings of `isentrope sft`."""

    model: ModelConfig
    data: DataConfig = Field(default_factory=DataConfig)
    fine_tuning: FineTuningConfig = Field(default_factory=FineTuningConfig)
    trainer: AnyValues = Field(default={})
    """Any other field of TRL's SFTConfig."""
    output: TrackedConfig = Field(default_factory=TrackedConfig)
    provenance: AnyValues | None = None
    """Written into a run folder's config.yaml."""

    def refusals(self) -> Refusals:
        """Responses of a model that is not whole."""
        yield (
            self.fine_tuning.adherence_prompts and self.model.shard_base,
            "fine_tuning.adherence_prompts needs a whole model, and model.shard_base spreads it: "
            "set it to 0, and run isentrope evaluate on the model afterwards",
        )
