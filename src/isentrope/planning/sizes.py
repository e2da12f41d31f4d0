"""What a configuration asks for, in sizes: the input of a plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from isentrope.attribution.gradients.storage_plan import Storage
from isentrope.models.precision import Precision
from isentrope.planning.followed import Batch

FLOAT64 = Precision("float64")


@dataclass(frozen=True)
class Sizes:
    """The settings that memory and time depend on.

    Attributes:
        E: The evaluation batch, every response as long as it may be.
        U: The update batch.
        draws_E: Whether E is drawn, not read.
        draws_U: Whether U is.
        sampled_at_once: `sampling.batch_size`.
        max_tokens: `sampling.max_tokens`.
        vocab_chunk: `sampling.vocab_chunk`.
        measuring: Precision of the measurement.
        updating: Precision of the step's gradient.
        sampling: Precision of the sampler.
        order: `estimator.order`.
        rates: Learning rates of the sweep.
        entropies: Whether the functional has a ratio whose gradient takes another pass.
        groups: `analysis.groups`.
        tokens: `analysis.tokens`.
        reward: `analysis.reward`.
        blocks: `fisher_kernel.blocks`.
        fresh: `analysis.share_responses`.
        past: `analysis.momentum_steps`.
        prompts: Prompt groups of U.
        group_E: Responses per prompt draw of E.
        storage: How gradients are held.
        processes: Processes that share the work.
        sharded: Whether the base is spread over them.
    """

    E: Batch
    U: Batch
    draws_E: bool = True
    draws_U: bool = True
    sampled_at_once: int = 64
    max_tokens: int = 8192
    vocab_chunk: int = 8192
    measuring: Precision = FLOAT64
    updating: Precision = FLOAT64
    sampling: Precision = FLOAT64
    order: int = 2
    rates: int = 6
    entropies: bool = True
    groups: int | None = None
    tokens: bool = True
    reward: bool = True
    blocks: tuple[str, ...] = ("UU",)
    fresh: int = 0
    past: int = 0
    prompts: int = 32
    group_E: int = 1
    storage: Storage = field(default_factory=Storage)
    processes: int = 1
    sharded: bool = False
