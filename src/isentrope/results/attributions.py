"""Parts of what results.json of `influence`, `kernel`, `audit`, `try` and `entropies` says."""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import FiniteFloat

from isentrope.attribution.fisher.block import SingularValues
from isentrope.attribution.fisher.clusters import Clustering
from isentrope.attribution.fisher.pair_classes import PairClass
from isentrope.attribution.fisher.spectrum import Spectrum
from isentrope.attribution.fisher.structure import Relation
from isentrope.attribution.fisher.truncation import Prediction
from isentrope.attribution.frontier.places import Place
from isentrope.nouns.columns import AFTER_UNIT, Column
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import Absent
from isentrope.results.names_of_notes import AlsoAs


@dataclass(frozen=True, kw_only=True)
class Budget:
    """δ of one quantity per unit η, by the parts of the step.

    Attributes:
        momentum: Decided by earlier batches.
        decay: Of the weights.
        baseline: Both together.
        gradient: Of this batch.
        total: Of the whole step.
        closure: The parts less the total: rounding, and nothing else.
        unit: Of all of them.
        closure_bound: The largest `closure` that rounding explains in the types that were used;
            None in results of earlier versions.
    """

    momentum: Estimate
    decay: Estimate
    baseline: Estimate
    gradient: Estimate
    total: Estimate
    closure: float
    unit: str
    closure_bound: Absent[float] = None


@dataclass(frozen=True, kw_only=True)
class SharesRecord:
    """The gradient's part of δH₁ on other responses, by how two responses are related.

    Attributes:
        measured_on: Those responses.
        same_prompt: Of responses to the same prompt.
        other_prompt: Of responses to other prompts.
        gradient: The sum.
    """

    measured_on: str
    same_prompt: Absent[Estimate] = None
    other_prompt: Absent[Estimate] = None
    gradient: Estimate


@dataclass(frozen=True)
class ProxyRecord:
    """Proxies against the measured influence.

    Attributes:
        items: Tokens or sequences.
        proxies: Statistics by proxy; those of "measured" are of the influence itself.
    """

    items: int
    proxies: dict[str, dict[str, Estimate]]


SHRUNK = "shrunk_step"
"""The attempt without a control that is v less a share of itself: a lower rate."""

Changes = Annotated[dict[str, Estimate], AlsoAs(("deltaH", "deltaJ"))]
"""Changes of entropy (delta_h) and reward (delta_j), written with the names of the notes too."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A control at a strength, and what it did to the batch.

    Attributes:
        control: Its name.
        strength: How hard it acts.
        predicted: ηδH₁ of the step, where the strength was looked for.
        did: What it did to the batch.
        did_gradient: What it did for the gradient part, where that is not the same.
        reasons: Why a correction is missing or cut, by part.
    """

    control: str
    strength: FiniteFloat
    predicted: float | None = None
    did: dict[str, float] = field(default_factory=dict)
    did_gradient: Absent[dict[str, float]] = None
    reasons: Absent[dict[str, str]] = None

    @property
    def name(self) -> str:
        """Control and strength."""
        return f"{self.control}@{self.strength:.6g}"

    @property
    def label(self) -> str:
        """The control as tables and figures name it: without the file that defines it."""
        return self.control.rpartition(":")[2]


@dataclass(frozen=True, kw_only=True)
class Tried(Attempt):
    """What an attempt changes.

    Attributes:
        step: ΔH and ΔJ of the whole step, and what it gains.
        gradient: The same of the gradient part alone.
        place: Where it stands on the frontier at vanilla's length; None where there is none.
    """

    step: Changes
    gradient: Changes
    place: Absent[Place] = None

    def part(self, name: str) -> dict[str, Estimate]:
        """What was measured of a part of the step."""
        return getattr(self, name)


@dataclass(frozen=True)
class KernelFormRecord:
    """The gradient's part of δH₁ per sequence on the rows of a block, two ways.

    Attributes:
        kernel: −Σ wA E[(S − S̄) K].
        forward_mode: By the derivative of the exact entropies of the same responses.
    """

    kernel: Estimate
    forward_mode: Estimate


@dataclass(frozen=True)
class BlockRecord:
    """A block of the kernel; what needs two prompts, or a symmetric block, may be None.

    Attributes:
        rows: Responses.
        columns: Responses.
        zero_rows: Responses that no parameter moves.
        structure: By relation of the two responses.
        same_less_other_prompt: Difference of those two relations.
        spectrum: Eigenvalues.
        block_model: Its constants, and the share of |K|² that each part explains.
        clusters: Of responses; of a block of two batches, of its columns.
        singular: Singular values, of a block of two batches.
        delta_h: δH₁ of the gradient on the rows, two ways; of a block of two batches.
        pair_classes: Parts of δH₁ by the relation of two responses, where they share prompts.
        predictions: How much of δH₁ truncations of a block of two batches predict.
    """

    rows: int
    columns: int
    zero_rows: tuple[int, ...] = ()
    structure: Absent[dict[str, Relation]] = None
    same_less_other_prompt: Absent[dict[str, Estimate]] = None
    spectrum: Absent[Spectrum] = None
    block_model: Absent[dict[str, Estimate | None]] = None
    clusters: Absent[Clustering] = None
    singular: Absent[SingularValues] = None
    delta_h: Absent[KernelFormRecord] = None
    pair_classes: Absent[dict[str, PairClass]] = None
    predictions: Absent[dict[str, Prediction]] = None

    @property
    def held_out(self) -> bool:
        """Whether rows and columns are of two batches without a common prompt."""
        return self.singular is not None and "same_prompt" not in (self.structure or {})


@dataclass(frozen=True)
class SecondOrder:
    """δH₂ of the SGD step along U's gradient, two ways.

    Attributes:
        by_kernel: By K₂.
        by_forward_mode: By nested forward mode.
    """

    by_kernel: float
    by_forward_mode: Estimate


@dataclass(frozen=True, kw_only=True)
class EntropyRecord:
    """One definition of entropy on one batch, and a row of entropies.parquet.

    Attributes:
        batch: "E" or "U".
        definition: A key of `verbs.entropies.WORDS`.
        value: Over the responses of the batch.
        difference: The value minus the exact one, which is `per_token` on E; None where its unit
            is another.
        agrees: Whether the logged value is this one within errors; None where none is known, where
            the logged batch is another one, or where the row has no interval.
    """

    batch: Annotated[str, Column()]
    definition: Annotated[str, Column()]
    value: Annotated[Estimate, Column(key="", parts=AFTER_UNIT)]
    difference: Annotated[Absent[Estimate], Column()] = None
    agrees: Absent[bool] = None

    @property
    def place(self) -> str:
        """Where it is in the rows."""
        return f"[{self.batch}].{self.definition}"
