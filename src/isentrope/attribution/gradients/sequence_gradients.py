"""Per-sequence gradients from one backward pass, layer by layer as it goes (T7).

    G_i = ∂_θ Σ_k (a_ik s_ik + b_ik H_ik),     one per sequence, a = 1 and b = 0 for ∂S(t_i)

A linear layer y = W x + c with output gradients g has G_i = Σ_l g_il x_ilᵀ over the positions l of
sequence i: it needs only the input and the output gradient, which hooks can read. An embedding adds
g_il to the row of its token; a norm y = w ⊙ x̂ + c has Σ_l g_il ⊙ x̂_il. LoRA factors are linear
layers. Log-probabilities and entropies are differentiated by hand (`policy.head`), by sequence
where the output embedding is trained: the logits of one are held at a time.

No summed weight gradients are computed, and nothing is stored: each layer's rows are passed to a
visitor as they arrive. Layers that the hooks do not support are refused by name. Before any work,
on the first tokens of two sequences, the hooks' gradients are compared with autograd, and autograd
with forward mode.

Where θ is spread over processes, each row is a backward pass of all of them, and every process
visits its parts of all gradients.
"""

from collections.abc import Callable
from contextlib import nullcontext
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from isentrope.attribution.gradients.closure import require_agreement
from isentrope.attribution.gradients.layers import Layer, by_sequence, find_layers, recorded
from isentrope.attribution.gradients.storage_plan import GradientBackend
from isentrope.attribution.gradients.token_sum import TokenSum, first_tokens
from isentrope.models.architecture import (
    DerivativeOfTraining,
    UnsupportedModelError,
    derivative_of_scores,
)
from isentrope.models.batching import MicroBatch, micro_batches
from isentrope.models.requirements import require_no_checkpointing
from isentrope.nouns.vectors import Vector, dot, multiply, norm
from isentrope.parallel.sharded import read_numbers, sharded_like
from isentrope.policy.derivative_guard import require_derivatives
from isentrope.policy.gradient import gradient_alone, weighted_gradient
from isentrope.policy.head import hidden_gradient, is_frozen_linear, logit_gradient
from isentrope.policy.language_model import Policy
from isentrope.policy.passes import map_micro_batches
from isentrope.policy.scoring import score_along
from isentrope.system.memory import mapped_blocks

Visit = Callable[[str, Tensor, Tensor], object]
"""Called with a parameter's name, (b,) rows, and (b, *shape) gradients to be added to them."""

ELEMENTS_HELD = 2**24
"""Largest number of gradient elements passed to a visitor at once, at least one sequence."""

_PROVEN: WeakKeyDictionary[Policy, set[object]] = WeakKeyDictionary()
"""Policies whose hooks agreed with autograd, by kind of sum: a check reads all weights twice."""


class SequenceGradients:
    """Computes per-sequence gradients of a policy's trainable parameters."""

    def __init__(self, policy: Policy, backend: GradientBackend = "hooks") -> None:
        """Find the layers that hold the trainable parameters.

        Args:
            policy: The policy.
            backend: "hooks": one backward pass per micro-batch; "loop": one per sequence,
                which is exact for every kind of layer and slower.

        Raises:
            ValueError: If a trainable parameter belongs to a kind of layer that hooks do not
                support.
        """
        if backend not in ("hooks", "loop"):
            raise ValueError(f"gradient_backend={backend!r}; choose 'hooks' or 'loop'.")
        self.policy = policy
        hooked = backend == "hooks" and not policy.spreads_theta
        self._layers = find_layers(policy) if hooked else None

    def visit(self, token_sum: TokenSum, visit: Visit) -> None:
        """Pass every gradient to a visitor; a row may be visited several times, to be summed.

        Where processes share the work, each visits rows of its own, or its parts
        (`policy.parts`) of all rows: the caller adds up what they have.

        Args:
            token_sum: The sums to differentiate.
            visit: Called with name, rows and gradients, at the policy's runtime dtype.

        Raises:
            ValueError: If a trainable parameter gets no gradient, gradient checkpointing is
                active, or the hooks disagree with autograd.
        """
        policy = self.policy
        require_no_checkpointing(policy.model)
        token_sum.rollouts.require_fit(policy.vocabulary)
        with nullcontext() if token_sum.of_training else derivative_of_scores(policy.model):
            self._check(token_sum)
            if self._layers is None:
                self._one_by_one(token_sum, visit)
                return
            map_micro_batches(
                policy,
                token_sum.rollouts,
                lambda batch, visit: self._visit_batch(batch, token_sum, visit),
                visit,
                unit_of=token_sum.row_of,
            )

    def _one_by_one(self, token_sum: TokenSum, visit: Visit) -> None:
        """Rows by autograd, one after the other; where θ is spread, each by all processes."""
        policy = self.policy
        row_of = token_sum.row_of
        dtypes = {name: p.dtype for name, p in policy.theta.items()}

        def visit_parameters(row: Tensor, gradient: Vector, visit: Visit) -> None:
            with policy.precision.active(forward_mode=False):  # as under the hooks
                for name, x in gradient.items():
                    visit(name, row.to(policy.device), x.to(dtypes[name])[None])

        if policy.spreads_theta:
            for row in row_of.unique():
                summed = token_sum.select((row_of == row).nonzero()[:, 0])
                weights = summed.logprob_weights, summed.entropy_weights
                gradient = weighted_gradient(policy, summed.rollouts, *weights)
                visit_parameters(row[None], policy.parts_to_count(gradient), visit)
            return

        def visit_sequence(batch: MicroBatch, visit: Visit) -> None:
            sequences = batch.sequences.cpu()
            sequence = token_sum.select(sequences)
            weights = sequence.logprob_weights, sequence.entropy_weights
            gradient = gradient_alone(policy, sequence.rollouts, *weights)
            visit_parameters(row_of[sequences], gradient, visit)

        sums = token_sum.rollouts
        map_micro_batches(policy, sums, visit_sequence, visit, unit_of=row_of, max_tokens=1)

    def _visit_batch(self, batch: MicroBatch, token_sum: TokenSum, visit: Visit) -> set[str]:
        """One backward pass; the names of the parameters that were visited."""
        visited: set[str] = set()
        rows = token_sum.row_of.to(batch.sequences.device)[batch.sequences]
        head_row: Tensor | None = None  # the row of the sequence that the head reads

        def hand_over(layer: Layer, x: Tensor, g: Tensor) -> None:
            if head_row is None:
                x = by_sequence(x, batch)
                g = by_sequence(g, batch)
            columns = rows if head_row is None else head_row, x, g
            for parameter, name in layer.names.items():
                visited.add(name)
                size = getattr(layer.module, parameter).numel()
                parts = (y.split(max(1, ELEMENTS_HELD // size)) for y in columns)
                for indices, inputs, of_output in zip(*parts, strict=True):
                    visit(name, indices, layer.gradient(parameter, inputs, of_output))

        a = batch.pack(token_sum.logprob_weights.to(batch.rows.device))
        b = token_sum.entropy_weights
        b = None if b is None else batch.pack(b.to(batch.rows.device))
        policy = self.policy
        head = self.policy.head
        with (
            mapped_blocks(),
            policy.precision.active(forward_mode=False),
            torch.enable_grad(),
            recorded(policy, self._layers or [], hand_over) as sources,
        ):
            hidden = policy.packed_hidden(batch)
            if is_frozen_linear(head):
                cotangent = hidden_gradient(hidden, head, batch.targets, a, b, policy.temperature)
            else:
                cotangent = torch.empty_like(hidden)
                for i, row in enumerate(rows.split(1)):
                    head_row = row
                    at = batch.rows == i
                    arguments = batch.targets[at], a[at], None if b is None else b[at]
                    states = hidden[at].detach()[None].requires_grad_()
                    logits = head(states)
                    of_logits = logit_gradient(logits[0].detach(), *arguments, policy.temperature)
                    cotangent[at] = torch.autograd.grad(logits, states, of_logits[None])[0][0]
                head_row = None
            if sources:
                torch.autograd.grad(hidden, sources, cotangent, allow_unused=True)
        return visited

    def _check(self, token_sum: TokenSum) -> None:
        """Compare scores, autograd and hooks with each other on the first tokens of two sequences.

        The model's own logits against the scores, autograd against forward mode in a random
        direction if the model has it, and the hooks against autograd: once for a policy at a
        precision, for each kind of weights.

        Raises:
            ValueError: If two of them differ.
        """
        policy = self.policy
        sample = first_tokens(token_sum)
        with_entropies = sample.entropy_weights is not None
        hooks = self._layers is not None
        kind = (policy.precision, policy.names, with_entropies, sample.of_training, hooks)
        proven = _PROVEN.setdefault(policy, set())
        if kind in proven:
            return
        policy.require_own_logits(sample.rollouts)
        factors = torch.tensor([1.0, 2.0], dtype=torch.float64)  # exchanged rows would show
        twice = sample.times(factors)
        weights = twice.logprob_weights, twice.entropy_weights
        gradient = weighted_gradient(policy, sample.rollouts, *weights)
        _require_forward_mode(policy, twice, gradient)
        if hooks:
            self._check_hooks(sample, factors, gradient)
        proven.add(kind)

    def _check_hooks(self, sample: TokenSum, factors: Tensor, gradient: Vector) -> None:
        policy = self.policy
        by_hooks = {n: torch.zeros_like(p) for n, p in policy.theta.items()}
        visited = set()

        def add(name: str, rows: Tensor, g: Tensor) -> None:
            by_hooks[name].add_(torch.tensordot(factors.to(g)[rows], g, 1))

        for batch in micro_batches(sample.rollouts, policy.max_tokens):
            visited |= self._visit_batch(batch.to(policy.device), sample, add)
        if unused := sorted(set(policy.names) - visited):
            raise ValueError(
                f"The trainable parameter {unused[0]!r} gets no gradient ({len(unused)} such): the "
                "model does not use it in its forward pass. Freeze it, or use "
                "GradientOptions('loop') if it is used outside the hooked layers."
            )
        scale = max(read_numbers(x.abs().max() for x in gradient.values()))
        epsilon = max(torch.finfo(p.dtype).eps for p in policy.theta.values())
        gaps = ((by_hooks[name].double() - x).abs().max() for name, x in gradient.items())
        for name, error in zip(gradient, read_numbers(gaps), strict=True):
            if not error <= min(3e3 * epsilon, 0.1) * scale:
                raise ValueError(
                    f"The hooks' gradient of {name!r} differs from autograd's by {error:.1e} "
                    f"(largest entry {scale:.1e}): use GradientOptions('loop'), which is slower "
                    "and correct for every kind of layer."
                )


def _require_forward_mode(policy: Policy, sample: TokenSum, gradient: Vector) -> None:
    generator = torch.Generator().manual_seed(0)
    direction = {
        n: sharded_like(torch.randn(g.shape, generator=generator, dtype=torch.float64), g)
        for n, g in gradient.items()
    }
    try:
        with DerivativeOfTraining() if sample.of_training else nullcontext():
            _, slope = score_along(policy, sample.rollouts, direction, 1)
    except UnsupportedModelError:  # no forward mode: differences are left
        require_derivatives(policy, sample.rollouts, "backward")
        return
    by_forward = (sample.logprob_weights * slope.logprobs).sum()
    if sample.entropy_weights is not None:
        by_forward = by_forward + (sample.entropy_weights * slope.entropies).sum()
    require_agreement(
        policy,
        "The gradient of the log-probabilities by reverse mode and by forward mode",
        dot(gradient, direction),
        float(by_forward),
        norm(multiply(gradient, direction)),
    )
