"""What results.json of `kernel` says of a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from isentrope.results.result_coding import OPTIONAL, Number, Value


@dataclass(frozen=True)
class RelationRecord:
    """Entries of the kernel between responses of one relation.

    Attributes:
        entries: Their number.
        mean: Of K.
        spread: Standard deviation of K.
        mean_cosine: Of the cosines.
        rms_cosine: Root mean square of the cosines.
    """

    entries: int
    mean: Value
    spread: Value
    mean_cosine: Value | None
    rms_cosine: Value | None


@dataclass(frozen=True)
class NullRecord:
    """The spectrum of random score vectors.

    Attributes:
        name: "all parameters", "fitted dimension" or "observed norms".
        dimension: Of the random rows.
        lower: Lower edge of the nonzero eigenvalues.
        upper: Upper edge.
        effective_rank: Of such a matrix.
        above: How many eigenvalues of K lie above `upper`; of "observed norms" alone.
    """

    name: str
    dimension: Number
    lower: Number
    upper: Number
    effective_rank: Number
    above: int | None


@dataclass(frozen=True)
class SpectrumRecord:
    """Eigenvalues of a block.

    Attributes:
        eigenvalues: From the largest; 0 for one that is rounding alone.
        effective_rank: Of the block.
        shares: Of the trace, by the number of leading eigenvalues.
        fitted_dimension: Of random rows with the same effective rank.
        participation: Responses per eigenvector; NaN where its eigenvalue is 0.
        leading_carriers: Responses that make up half of the first eigenvector.
        norm_outliers: Responses whose norm stands out.
        nulls: Spectra of random score vectors.
    """

    eigenvalues: tuple[Number, ...]
    effective_rank: Value
    shares: dict[str, Value]
    fitted_dimension: Value
    participation: tuple[Number, ...]
    leading_carriers: tuple[int, ...]
    norm_outliers: tuple[int, ...]
    nulls: tuple[NullRecord, ...]


@dataclass(frozen=True)
class SingularRecord:
    """Singular values of a block of two batches.

    Attributes:
        values: From the largest.
        effective_rank: Of the block.
        shares: Of the sum of the values, by the number of leading ones.
        fitted_dimension: Of random rows with the same cosines.
        null: Random rows with the observed norms.
    """

    values: tuple[Number, ...]
    effective_rank: Value
    shares: dict[str, Value]
    fitted_dimension: Value | None
    null: NullRecord | None


@dataclass(frozen=True)
class PairClassRecord:
    """Pairs of one class, and their part of δH₁.

    Attributes:
        pairs: Their number.
        fraction: Their share of all pairs.
        per_pair: δH₁ if all pairs were of this class.
        contribution: The fraction times that.
        falls_as: How the fraction falls with n responses of B prompts in U, or with D prompts of E.
    """

    pairs: int
    fraction: Number
    per_pair: Value
    contribution: Value
    falls_as: str


@dataclass(frozen=True)
class KernelFormRecord:
    """The gradient's part of δH₁ per sequence on the rows of a block, two ways.

    Attributes:
        kernel: −Σ wA E[(S − S̄) K].
        forward_mode: By the derivative of the exact entropies of the same responses.
    """

    kernel: Value
    forward_mode: Value


@dataclass(frozen=True)
class ClusterRecord:
    """Responses of U that move those of E alike.

    Attributes:
        members: Their number.
        reward: Their mean reward.
        weight: The sum of their weights in the step.
        delta_h: What they do to the entropy of E, in the kernel form.
    """

    members: int
    reward: Number
    weight: Number
    delta_h: Value


@dataclass(frozen=True)
class ClustersRecord:
    """Responses grouped by their cosines.

    Attributes:
        count: Clusters.
        labels: Of each response.
        order: Of responses in the tree.
        cophenetic_correlation: Of the tree with the distances.
        prompt_agreement: With prompts, adjusted Rand index.
        parts: What each cluster is and does, of a block of two batches.
    """

    count: int
    labels: tuple[int, ...]
    order: tuple[int, ...]
    cophenetic_correlation: Number
    prompt_agreement: Value
    parts: Annotated[tuple[ClusterRecord, ...] | None, OPTIONAL] = None


@dataclass(frozen=True)
class SketchRecord:
    """A random projection of the scores.

    Attributes:
        dimension: Of the projection.
        error: Of the block computed from it.
    """

    dimension: int
    error: Value


@dataclass(frozen=True)
class TruncationRecord:
    """How much of δH₁ a truncated kernel predicts.

    Attributes:
        total: The prediction.
        ratio: Of the prediction to δH₁.
        pearson: Correlation over responses.
        spearman: Rank correlation over responses.
    """

    total: Value
    ratio: Value
    pearson: Value
    spearman: Value


@dataclass(frozen=True)
class BlockRecord:
    """A block of the kernel; what needs two prompts, or a symmetric block, may be None.

    Attributes:
        rows: Responses.
        columns: Responses.
        zero_rows: Responses that no parameter moves.
        sketch: A random projection, if it was asked for.
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
    sketch: Annotated[SketchRecord | None, OPTIONAL] = None
    structure: Annotated[dict[str, RelationRecord] | None, OPTIONAL] = None
    same_less_other_prompt: Annotated[dict[str, Value] | None, OPTIONAL] = None
    spectrum: Annotated[SpectrumRecord | None, OPTIONAL] = None
    block_model: Annotated[dict[str, Value | None] | None, OPTIONAL] = None
    clusters: Annotated[ClustersRecord | None, OPTIONAL] = None
    singular: Annotated[SingularRecord | None, OPTIONAL] = None
    delta_h: Annotated[KernelFormRecord | None, OPTIONAL] = None
    pair_classes: Annotated[dict[str, PairClassRecord] | None, OPTIONAL] = None
    predictions: Annotated[dict[str, TruncationRecord] | None, OPTIONAL] = None

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

    by_kernel: Number
    by_forward_mode: Value
