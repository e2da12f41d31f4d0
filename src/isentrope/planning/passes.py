"""The passes of the verbs over a micro-batch, each followed by its shapes (`tracing`).

A pass is the function that the library itself runs. A model of one layer and one of two are
followed, and others are the straight line through them. Where the head works in chunks of the
vocabulary, three chunks are followed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from isentrope.attribution.gradients.lora import scaled_by_rank
from isentrope.attribution.gradients.sequence_gradients import SequenceGradients
from isentrope.attribution.gradients.token_sum import TokenSum
from isentrope.models.attention import attention_in_blocks
from isentrope.models.batching import MicroBatch
from isentrope.models.padding import DerivativeOfTraining
from isentrope.models.precision import Precision
from isentrope.nouns.forward_mode import derivatives_at_zero
from isentrope.nouns.rollouts import Rollouts
from isentrope.planning.followed import (
    Batch,
    Head,
    equal_sequences,
    first_tokens,
    without_packing,
)
from isentrope.planning.shapes import ShapePolicy, Shapes, shape_policy
from isentrope.planning.tracing import Trace, trace
from isentrope.policy import divergence, token_statistics
from isentrope.policy.derivatives import TOKENS
from isentrope.policy.divergence import Reference
from isentrope.policy.gradient import _root
from isentrope.policy.slopes import _hidden_slopes, smaller_batches
from isentrope.system.errors import IsentropeError
from isentrope.system.heap import LARGEST_KEPT, MAPPED

CHUNKS = 2
"""Chunks of the vocabulary that are followed: more take as much memory, one after the other."""


class NotPlannedError(IsentropeError, ValueError):
    """A model whose passes cannot be followed by shapes alone."""


Run = Callable[[ShapePolicy, MicroBatch], object]


@dataclass
class Passes:
    """The passes of one model at one precision.

    Attributes:
        shapes: Of the checkpoint.
        precision: Runtime precision.
        max_tokens: Padded tokens per micro-batch.
        vocab_chunk: Vocabulary entries at a time.
        like: Passes in larger micro-batches, which these are a share of.
    """

    shapes: Shapes
    precision: Precision
    max_tokens: int
    vocab_chunk: int
    like: Passes | None = None
    _known: dict[Any, Trace] = field(default_factory=dict, repr=False)

    def with_fewer_tokens(self, max_tokens: int) -> Passes:
        """The same passes in smaller micro-batches, in proportion: nothing is followed again."""
        return replace(self, max_tokens=max_tokens, like=self, _known={})

    def scores(self, batch: Batch) -> Trace:
        """Log-probabilities and entropies at θ."""
        return self._chunked("scores", batch, _scores)

    def derivatives(self, batch: Batch, order: int) -> Trace:
        """Scores with their variances and derivatives along v, by forward mode."""
        if order == 0:
            return self._chunked("variances", batch, _variances)

        def run(policy: ShapePolicy, micro: MicroBatch) -> object:
            v = policy.direction
            return derivatives_at_zero(
                lambda e: policy.packed_scores_and_variances(micro, policy.parameters_along(v, e)),
                order,
            )

        return self._chunked(f"derivatives {order}", batch, run)

    def check(self) -> Trace:
        """Second derivatives of two short sequences, whose blocks have pages of their own."""

        def run(policy: ShapePolicy, micro: MicroBatch) -> object:
            v = policy.direction
            return derivatives_at_zero(
                lambda e: policy.packed_scores(micro, policy.parameters_along(v, e)), 2
            )

        return self._chunked("check", Batch(2, TOKENS, TOKENS), run, MAPPED)

    def moved(self, batch: Batch, remainder: bool) -> Trace:
        """Scores at θ + ηv and their distance from those at θ."""

        def run(policy: ShapePolicy, micro: MicroBatch) -> object:
            with torch.no_grad():
                hidden = policy.packed_hidden(micro, policy.theta)
                moved = policy.parameters_along(policy.direction, 1e-6)
                return policy.packed_divergence(
                    micro, moved, Reference(hidden, policy.head, 1.0), remainder
                )

        rows = max(1, divergence.LOGITS_HELD // self.shapes.vocabulary)
        return self._whole(f"moved {remainder}", batch, run, rows)

    def slopes(self, batch: Batch, directions: int) -> Trace:
        """Derivatives of log-probabilities along several directions, in smaller micro-batches."""

        def run(policy: ShapePolicy, micro: MicroBatch) -> object:
            stacked = {
                n: torch.empty(directions, *p.shape, dtype=p.dtype) for n, p in policy.theta.items()
            }
            with DerivativeOfTraining(), scaled_by_rank(policy.model):
                return _hidden_slopes(policy, micro, stacked)

        smaller = replace(self, max_tokens=self.max_tokens // smaller_batches(directions))
        return smaller._whole(f"slopes {directions}", batch, run)

    def gradient(self, batch: Batch, entropies: bool) -> Trace:
        """One backward pass."""

        def run(policy: ShapePolicy, micro: MicroBatch) -> object:
            parameters = {n: p for n, p in policy.model.named_parameters() if p.requires_grad}
            weights = torch.empty(len(micro.rows), dtype=torch.float64)
            of_entropies = weights if entropies else None
            with torch.enable_grad(), policy.precision.active(forward_mode=False):
                root, cotangent = _root(policy, micro, weights, of_entropies, parameters)
                return torch.autograd.grad(
                    root, list(parameters.values()), cotangent, allow_unused=True
                )

        return self._whole(f"gradient {entropies}", batch, run, limit=MAPPED)

    def sequence_gradients(self, batch: Batch) -> Trace:
        """Gradients of sequences by hooks, without what holds them."""

        def run(policy: ShapePolicy, micro: MicroBatch) -> object:
            n, t = len(micro.sequences), batch.response
            ids = [torch.zeros(1, dtype=torch.long)] * n
            rollouts = object.__new__(Rollouts)
            object.__setattr__(rollouts, "prompt_ids", ids)
            sums = TokenSum(
                rollouts,
                torch.empty(n, t, dtype=torch.float64),
                rows=torch.empty(n, dtype=torch.long),
            )
            gradients = SequenceGradients(policy)
            return gradients._visit_batch(micro, sums, lambda name, rows, new: None)

        return self._whole("sequence gradients", batch, run, limit=MAPPED)

    def _chunked(self, name: str, batch: Batch, run: Run, limit: int = LARGEST_KEPT) -> Trace:
        """Through a head that works in chunks: of an odd size, which no other axis has."""
        chunk = min(self.vocab_chunk, self.shapes.vocabulary)
        odd = chunk - 1 + chunk % 2
        followed = min(CHUNKS * odd, self.shapes.vocabulary)
        rows = max(1, token_statistics.LOGITS_HELD // chunk)
        head = Head(followed, odd, chunk)
        found = self._layers(name, batch, run, head, rows, limit)
        return found.times_head(self.shapes.vocabulary / followed)

    def _whole(
        self, name: str, batch: Batch, run: Run, rows: int | None = None, limit: int = LARGEST_KEPT
    ) -> Trace:
        """Through a head that has all of the vocabulary, for a few tokens at a time."""
        head = Head(self.shapes.vocabulary, self.vocab_chunk, self.vocab_chunk)
        return self._layers(name, batch, run, head, rows, limit)

    def _layers(
        self, name: str, batch: Batch, run: Run, head: Head, rows: int | None, limit: int
    ) -> Trace:
        """Through all layers; of predicted tokens twice as many as are taken at once."""
        first = batch.first(self.max_tokens)
        if self.like is not None:
            whole = self.like._layers(name, batch, run, head, rows, limit)
            return whole.share(first.sequences / batch.first(self.like.max_tokens).sequences)
        key = name, first
        if key not in self._known:
            micro = equal_sequences(first)
            tokens = len(micro.rows)
            kept = tokens if rows is None else min(tokens, 2 * rows)
            followed = first_tokens(micro, kept)
            layers = self.shapes.layers
            if self.shapes.trainable_patterns is None and layers > 2:
                one, two = (self._trace(followed, run, k, head, limit) for k in (1, 2))
                found = one.more_layers(two, layers)
            else:
                found = self._trace(followed, run, layers, head, limit)
            self._known[key] = found.times_head(tokens / kept)
        return self._known[key]

    def _trace(self, micro: MicroBatch, run: Run, layers: int, head: Head, limit: int) -> Trace:
        try:
            fake, policy = self._policy(layers, head.vocabulary, head.chunk)
            with fake:
                own = (*policy.model.parameters(), *policy.model.buffers())
                known: list[Tensor] = [*own, *policy.direction.values()]
                with attention_in_blocks(policy.causal_lm, micro.input_ids), without_packing():
                    return trace(lambda: run(policy, micro), head.columns, known, limit)
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise NotPlannedError(
                f"The passes of {type(self.shapes.config).__name__} cannot be followed by shapes "
                f"alone ({' '.join(str(error).split())[:200]}): run it on a small batch and watch "
                "its memory."
            ) from error

    def _policy(
        self, layers: int, vocabulary: int, chunk: int = 1
    ) -> tuple[FakeTensorMode, ShapePolicy]:
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        return fake, shape_policy(
            self.shapes,
            fake,
            self.precision,
            layers=layers,
            vocabulary=vocabulary,
            max_tokens=self.max_tokens,
            vocab_chunk=chunk,
        )


def _scores(policy: ShapePolicy, micro: MicroBatch) -> object:
    with torch.no_grad():
        return policy.packed_scores(micro)


def _variances(policy: ShapePolicy, micro: MicroBatch) -> object:
    with torch.no_grad():
        return policy.packed_scores_and_variances(micro)
