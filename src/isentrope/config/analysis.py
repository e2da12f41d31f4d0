"""What influence, kernel, noise and audit attribute, and what controls entropy in training."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from isentrope.attribution.gradients.storage_plan import (
    GradientBackend,
    Kept,
    Storage,
    StoragePlace,
)
from isentrope.config.stages import Refusals, Section
from isentrope.config.values import AnyValues, Name, NonEmpty, Pattern
from isentrope.control.feedback import Gains, Target
from isentrope.control.names import require_control
from isentrope.system.number_types import (
    Count,
    NoneOrMore,
    NotNegative,
    OpenShare,
    Part,
    Positive,
    Real,
    Several,
    Times,
    Whole,
)


class ControlConfig(Section):
    """What the run does about entropy."""

    name: Name = "none"
    """none, or the name of a control."""
    strength: Real | None = None
    """Strength of the control; null: its default. With a target: the largest strength."""
    target: Target = Field(default_factory=Target)
    """Target entropy; without one the strength is constant."""
    feedback: Gains = Field(default_factory=Gains)
    """Gains of the feedback from the distance to the target to the strength."""
    options: AnyValues = Field(default={})
    """Settings of the control."""

    def refusals(self) -> Refusals:
        """Settings of no control, and a target of one that cannot use it."""
        control = self.build()
        targeted = self.target.kind != "none"
        yield (
            control is None and (self.strength is not None or self.options or targeted),
            "name is none, and a strength, a target or options are given: name the control",
        )
        yield (
            targeted and not getattr(control, "targetable", True),
            f"the control {self.name!r} cannot use a target: it has no strength that moves "
            "entropy one way; leave control.target out",
        )

    def build(self) -> Any:
        """The control, or None where there is none."""
        if self.name == "none":
            return None
        require_control(self.name)
        from isentrope.control import controls

        return controls.build(self.name, self.strength, self.options)


class TrialConfig(Section):
    """What `isentrope try` tries on a checkpoint's step."""

    controls: list[Name] | None = None
    """Controls to try; null: every one that acts while the batch is on-policy."""
    strengths: NonEmpty[Positive] | None = None
    """Multiples of each control's default strength; null: those that suit each."""
    options: dict[str, AnyValues] = Field(default={})
    """Settings of the controls, by name."""
    size: Annotated[Times, Field(ge=8)] = 256
    """Responses of the controls' own E, for those that need one; others than those of E."""
    random_masks: bool = True
    """Also try a random mask of as many tokens as each control changes."""
    change: Real | None = None
    """Change of entropy per step whose strength is searched, instead of `strengths`."""

    def refusals(self) -> Refusals:
        """Strengths beside what looks for them, and options that do not fit."""
        for name, options in self.options.items():
            ControlConfig.model_construct(name=name, options=options).build()
        conflict = self.change is not None and self.strengths is not None
        yield conflict, "change looks for the strength, so strengths cannot be given with it"


class AnalysisConfig(Section):
    """What influence, noise and audit attribute, and with what errors."""

    tokens: bool = True
    """Influence of tokens (forward mode over U); false: of sequences only (one backward pass)."""
    reward: bool = True
    """Also attribute reward: measure has ΔJ, and tokens and sequences of U have delta_j."""
    price: bool = True
    """measure: where the step spends entropy, and what reward it buys there (needs order ≥ 1)."""
    position_pattern: Pattern | None = None
    """A class of positions of its own: the response up to the position ends in this regex."""
    groups: Count | None = None
    """Groups of E's prompts for errors; null: 8 for tokens, 32 for sequences; 1: no errors."""
    overlap: Literal["refuse", "independent", "u_statistic"] = "refuse"
    """A sequence of U that is also in E: an error, chance, or one batch in both roles."""
    share_responses: NoneOrMore = 0
    """Fresh responses to each prompt of U: influence by same and other prompts, and block FU."""
    gradient_backend: GradientBackend = "hooks"
    """Per-sequence gradients: by hooks, or loop: a backward pass each, for any kind of layer."""
    top: NonEmpty[OpenShare] = Field(default=[0.0002, 0.02, 0.2])
    """Shares of tokens whose overlap between proxy and influence is audited."""
    class_share: OpenShare = 0.02
    """Share of tokens that is unlikely in the table of classes."""
    draws: Annotated[Times, Field(ge=10)] = 200
    """Resamplings of prompts for the intervals of an audit."""
    wanted_error: OpenShare = 0.1
    """Relative error for which variance says how many prompts E needs."""
    supervised: bool = False
    """noise also of a supervised loss: demonstrations of U's split, tested on those of E's."""

    @field_validator("top")
    @classmethod
    def _each_once(cls, top: list[float]) -> list[float]:
        if len(set(top)) < len(top):
            raise ValueError(f"each share of tokens once, got {top}")
        return top


class EntropiesConfig(Section):
    """The logged value that `isentrope entropies` explains, and what is known of its trainer."""

    logged: NotNegative | None = None
    """Entropy that the trainer logged; null: as trainer_state.json says, here or one step later."""
    micro_batch: Count | None = None
    """Responses per forward pass of training; null: as training's arguments say."""
    top_k: Whole = 0
    """Entries that training's sampler left; 0 for all."""
    top_p: Part = 1.0
    """Mass that training's sampler left; 1 for all."""
    bfloat16: bool | None = None
    """Whether training ran in 16 bits; null: as training's arguments say, and false without."""


class KernelConfig(Section):
    """The Fisher kernel: which blocks, under which P, and how gradients are held."""

    blocks: NonEmpty[Literal["UU", "EU", "FU", "EE"]] = Field(default=["UU"])
    """Blocks; F are analysis.share_responses fresh responses to each of U's prompts."""
    preconditioned: bool = True
    """Use the step's preconditioner P; false: P = 1."""
    memory_gb: Positive | None = None
    """Memory for held gradients, in GiB; null: no limit. More is cut into tiles."""
    storage: Kept = "exact"
    """How held gradients are kept; bfloat16 and int8 round (about 2e-4 and 1e-3 of the kernel)."""
    where: StoragePlace = "device"
    """Where they are held, and with them the gradients of the error groups of influence."""
    rank: Whole = 5
    """Leading eigenpairs in the block model."""
    clusters: Several | None = None
    """Clusters of sequences; null: as many as prompts of U."""
    right_above: Real = 0.5
    """A response is correct if its reward is above this."""
    second_order: bool = False
    """Also K2, the second-order kernel of plain SGD: one Hessian product per sequence of U."""

    @property
    def held(self) -> Storage:
        """How gradients may be held."""
        memory = None if self.memory_gb is None else int(self.memory_gb * 2**30)
        return Storage(memory, self.storage, self.where)
