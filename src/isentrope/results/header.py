"""What every results.json begins with: which policy, which batches, which step, made with what."""

from dataclasses import dataclass, field

from pydantic import FiniteFloat

from isentrope.checkpoint.in_force import Origin
from isentrope.checkpoint.infer.settings import Obstacle
from isentrope.models.precision import Precision
from isentrope.nouns.saved import Absent
from isentrope.update.rounding import Rounded


@dataclass(frozen=True)
class PolicyRecord:
    """The policy that was measured.

    Attributes:
        name: Of the checkpoint.
        checkpoint: Its folder.
        optimizer: The optimizer's file.
        trainable_tensors: Their number.
        trainable_parameters: Their number.
        temperature: Of the distribution that is measured.
        device: Where it was computed.
        precision: Of each stage: "measuring", "updating" and "sampling".
        manifest_sha256: SHA-256 of the checkpoint's manifest, which every file of it agreed with;
            None where there is no manifest, or it was not verified.
    """

    name: str
    checkpoint: str
    optimizer: str
    trainable_tensors: int
    trainable_parameters: int
    temperature: FiniteFloat
    device: str
    precision: dict[str, Precision]
    manifest_sha256: str | None = None


@dataclass(frozen=True)
class BatchRecord:
    """A batch in numbers.

    Attributes:
        sequences: Responses.
        prompt_draws: Prompts, as often as they were drawn.
        distinct_prompts: Different prompts.
        mean_length: Tokens per response.
        longest: Tokens of the longest response.
        mean_reward: Over what was drawn and scored; None where rewards are not known.
        unscored: Responses that no reward function applies to, whose advantage is 0; None without.
        drawn: Prompt groups that were sampled to fill U; None where it came from a file.
        rejected: Of those, groups without advantage.
        all_right: Of the rejected, groups in which every reward is 1.
        all_wrong: Of the rejected, groups in which every reward is 0.
        entropy_drawn: Mean entropy of the tokens drawn, nats; NaN where the sampler does not
            report it.
        left_over: Groups with an advantage that were drawn when U was full, and dropped.
    """

    sequences: int
    prompt_draws: int
    distinct_prompts: int
    mean_length: FiniteFloat
    longest: int
    mean_reward: Absent[float] = None
    unscored: Absent[int] = None
    drawn: Absent[int] = None
    rejected: Absent[int] = None
    all_right: Absent[int] = None
    all_wrong: Absent[int] = None
    entropy_drawn: Absent[float] = None
    left_over: Absent[int] = None


@dataclass(frozen=True)
class BatchesRecord:
    """Both batches in numbers.

    Attributes:
        B_E: Responses in E.
        B_U: Prompt groups in U.
        G: Responses per group; None where groups are not of one size.
        E: The evaluation batch.
        U: The update batch.
    """

    B_E: int
    B_U: int
    G: int | None
    E: BatchRecord
    U: BatchRecord


@dataclass(frozen=True)
class EstimatorRecord:
    """How entropy was estimated.

    Attributes:
        functional: "per_sequence" or "per_token".
        method: The weighted estimator.
        confidence: Nominal coverage of intervals.
        order: Of the expansion; `measure` alone has one.
        unit: Of entropy; of `measure` alone.
    """

    functional: str
    method: str
    confidence: FiniteFloat
    order: Absent[int] = None
    unit: Absent[str] = None


@dataclass(frozen=True)
class SettingsRecord:
    """Settings beside those of training.

    Attributes:
        keys: Where each came from.
        differs: What is not as in training.
        ignored: Names that were allowed to differ.
        prompts_per_step: Prompt groups of a step of another trainer, those without an advantage
            too; None where no file says how many.
    """

    keys: dict[str, Origin] = field(default_factory=dict)
    differs: tuple[Obstacle, ...] = ()
    ignored: tuple[str, ...] = ()
    prompts_per_step: Absent[int] = None


@dataclass(frozen=True)
class StepSummary:
    """The optimizer's step.

    Attributes:
        objective: Of the loss.
        learning_rate: η of the optimizer.
        gradient_norm: Before clipping.
        clip_factor: 1 where the gradient was not clipped.
        direction_norm: Of v.
        matched_by: How moments were matched to parameters.
        param_groups: Settings of the optimizer's distinct groups.
        order_confirmed: Whether second moments confirm the order; None where that was not needed.
        rounding: What the type of the weights does to the step, where it was asked for.
        rate_of_interest: The learning rate that `measure` is about.
    """

    objective: str
    learning_rate: float
    gradient_norm: float
    clip_factor: float
    direction_norm: float
    matched_by: str
    param_groups: tuple[dict[str, object], ...] = ()
    order_confirmed: bool | None = None
    rounding: Absent[Rounded] = None
    rate_of_interest: Absent[float] = None


@dataclass(frozen=True)
class Provenance:
    """With what results were made.

    Attributes:
        isentrope: Its version.
        git: The commit of its sources; None where they are not under git.
        python: Its version.
        packages: Versions of packages that can move a number.
        seeds: By what was drawn with them.
        made_from: Digests of checkpoint, base model, optimizer, data and settings (`run.origin`).
    """

    isentrope: str | None = None
    git: str | None = None
    python: str | None = None
    packages: dict[str, str] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)
    made_from: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Header:
    """What was measured, how, and with what.

    Attributes:
        policy: The policy.
        batches: E and U in numbers.
        estimator: How entropy was estimated.
        settings: Settings beside those of training.
        step: The optimizer's step.
        provenance: Versions and seeds.
    """

    policy: PolicyRecord
    batches: BatchesRecord
    estimator: EstimatorRecord
    settings: SettingsRecord = field(default_factory=SettingsRecord)
    step: StepSummary
    provenance: Provenance
