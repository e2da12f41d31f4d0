"""What results.json of `kernel` says of a block."""

from dataclasses import dataclass

from isentrope.attribution.fisher.block import SingularValues
from isentrope.attribution.fisher.clusters import Clustering
from isentrope.attribution.fisher.pair_classes import PairClass
from isentrope.attribution.fisher.spectrum import Spectrum
from isentrope.attribution.fisher.structure import Relation
from isentrope.attribution.fisher.truncation import Prediction
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import Absent


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
