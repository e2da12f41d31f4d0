"""Does a two-sided random projection of each layer's gradients pay for the Fisher kernel?

    python -m studies.sketching --checkpoint build/toy/train_0/training_state/step_24

of a checkpoint of `studies.toy_attribution.checkpoints`. A linear layer's gradient of a response is
G = Σ_l g_l x_lᵀ. With A (k × out) and B (k × in) of independent normal numbers of variance 1/k,

    A G Bᵀ = Σ_l (A g_l)(B x_l)ᵀ,     E <A G Bᵀ, A G' Bᵀ> = <G, G'>

so k² numbers per layer give an unbiased K, from the two projected factors, without G. The diagonal
P of an optimizer is no product of the two sides: under P the projection is that of P^½ ⊙ G, which
has to be formed. Norms and biases, and sides of at most k, are kept whole.

Fixed before it ran: U of 32 × 8 responses, E of 256; k = 8, 16, 32, 64; 5 projections each; with P
and without. Errors: of K by element, relative to the root mean square of the exact elements (of
pairs to one prompt and of pairs to two, which was added after the first run); of the effective rank
and the largest eigenvalue of UU; and of the contraction −Σ wA E[(S − S̄) K] of EU, against δH₁ of
the exact kernel and its own standard error over E. Cost: CPU seconds of one pass over U and of the
product, and numbers held; at n = 2,048 by scaling (passes by n, products by n²). It pays where, at
an error of the contraction below the standard error that E gives it anyway, the sum of both is
below .7 of the exact kernel's, or the memory is, under P, which every kernel of the library has by
default.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import isentrope as ise
from isentrope.attribution.gradients import sequence_gradients
from isentrope.attribution.gradients.layers import Layer
from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.system.formatting import PAGE
from isentrope.verbs.batches import at_precision
from studies.toy_attribution import configured, prepared

SIZES = (8, 16, 32, 64)
PROJECTIONS = 5
LARGE = 2048
Rows = dict[str, Tensor]
"""Parameter → (n, size) float32."""


@dataclass(frozen=True)
class Pass:
    """Gradients of a batch, projected or not.

    Attributes:
        rows: Of all responses, by parameter.
        seconds: CPU seconds.
    """

    rows: Rows
    seconds: float

    @property
    def numbers(self) -> int:
        """How many numbers a response has."""
        return sum(x.shape[1] for x in self.rows.values())


class Projection:
    """A and B of every matrix, drawn once."""

    def __init__(self, theta: Vector, k: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.sides: dict[str, tuple[Tensor | None, Tensor | None]] = {}
        for name, p in theta.items():
            if p.ndim == 2:
                sides = [
                    torch.randn(k, size, generator=generator) / k**0.5 if size > k else None
                    for size in p.shape
                ]
                self.sides[name] = sides[0], sides[1]

    def of_matrix(self, name: str, gradients: Tensor) -> Tensor:
        """A G Bᵀ of (b, out, in) matrices; other parameters as they are."""
        left, right = self.sides.get(name, (None, None))
        x = gradients if right is None else gradients @ right.T
        return x if left is None else left @ x

    def of_factors(self, name: str, x: Tensor, g: Tensor) -> Tensor:
        """The same from inputs (b, l, in), or tokens (b, l), and output gradients (b, l, out)."""
        left, right = self.sides[name]
        if x.is_floating_point():  # a linear layer: out × in
            inputs = x if right is None else x @ right.T
            outputs = g if left is None else g @ left.T
            return outputs.mT @ inputs
        assert left is not None  # an embedding: tokens × width
        return left.T[x].mT @ (g if right is None else g @ right.T)


class ProjectedLayer(Layer):
    """A layer that hands over projected gradients, from its factors."""

    projection: Projection

    def gradient(self, parameter: str, x: Tensor, g: Tensor) -> Tensor:
        """As `Layer.gradient`, projected."""
        name = self.names[parameter]
        sides = self.projection.sides.get(name, (None, None))
        large_vocabulary = not isinstance(self.module, nn.Embedding) or sides[0] is not None
        if name in self.projection.sides and large_vocabulary:
            return self.projection.of_factors(name, x, g)
        return self.projection.of_matrix(name, super().gradient(parameter, x, g))


def gradient_rows(
    policy: Policy,
    batch: ise.Rollouts,
    change: Callable[[str, Tensor], Tensor],
    projection: Projection | None = None,
) -> Pass:
    """Gradients of S of every response, each parameter's changed as it arrives.

    Args:
        policy: The policy.
        batch: n responses.
        change: Of a parameter's name and (b, *shape) gradients.
        projection: Where gradients are projected from their factors.
    """
    computed = sequence_gradients.SequenceGradients(policy)
    computed.visit(score_sums(batch.select(torch.arange(2))), lambda *_: None)  # the check
    layers = computed._layers
    if projection is not None and layers is not None:
        projected = [ProjectedLayer(layer.module, layer.names) for layer in layers]
        for layer in projected:
            object.__setattr__(layer, "projection", projection)
        computed._layers = list(projected)
    rows: Rows = {}

    def add(name: str, index: Tensor, gradients: Tensor) -> None:
        changed = change(name, gradients).flatten(1)
        if name not in rows:
            rows[name] = torch.zeros(len(batch), changed.shape[1])
        rows[name].index_add_(0, index, changed.float())

    began = time.process_time()
    with policy.precision.active(forward_mode=False):
        computed.visit(score_sums(batch), add)
    return Pass(rows, time.process_time() - began)


def products(left: Rows, right: Rows) -> tuple[Tensor, float]:
    """K, and the CPU seconds of it."""
    began = time.process_time()
    parts = [(left[name] @ right[name].T).double() for name in left]
    return torch.stack(parts).sum(0), time.process_time() - began


@dataclass(frozen=True)
class Kernels:
    """K of one way, and what it cost."""

    UU: Tensor
    EU: Tensor
    seconds_of_pass: float
    seconds_of_product: float
    numbers: int

    def spectrum(self) -> tuple[float, float]:
        """Effective rank, and the largest eigenvalue."""
        values = torch.linalg.eigvalsh(self.UU)
        return float(values.sum() ** 2 / values.square().sum()), float(values[-1])


def kernels_of(E: Rows, U: Pass) -> Kernels:
    """Both blocks."""
    UU, _ = products(U.rows, U.rows)
    EU, seconds = products(E, U.rows)
    return Kernels(UU, EU, U.seconds, seconds, U.numbers)


def projected(rows: Rows, shapes: Vector, change: Callable[[str, Tensor], Tensor]) -> Rows:
    """Gradients that are held, changed 32 responses at a time."""
    changed: Rows = {}
    for name, x in rows.items():
        parts = x.unflatten(1, shapes[name].shape).split(32)
        changed[name] = torch.cat([change(name, part).flatten(1) for part in parts])
    return changed


def contraction(K: Tensor, S: Tensor, weights: Tensor) -> tuple[float, float]:
    """δH₁ by response, −E[(S − S̄) K w], and its standard error over E."""
    n = len(S)
    terms = -(S - S.mean()) * (K @ weights) * n / (n - 1)
    return float(terms.mean()), float(terms.std() / n**0.5)


def compare(
    exact: Kernels, sketch: Kernels, S: Tensor, weights: Tensor, prompt: Tensor
) -> list[float]:
    """Errors of one projection: K by kind of pair, rank, top eigenvalue, δH₁ in its errors."""
    same = prompt[:, None] == prompt
    own = torch.eye(len(same), dtype=torch.bool)

    def error_of(pairs: Tensor) -> float:
        gap = (sketch.UU - exact.UU)[pairs].square().mean().sqrt()
        return float(gap / exact.UU[pairs].square().mean().sqrt())

    elements = [error_of(same & ~own), error_of(~same)]
    (rank, top), (exact_rank, exact_top) = sketch.spectrum(), exact.spectrum()
    value, _ = contraction(sketch.EU, S, weights)
    exact_value, error = contraction(exact.EU, S, weights)
    return [*elements, rank / exact_rank - 1, top / exact_top - 1, (value - exact_value) / error]


def study(path: Path) -> str:
    """The table."""
    config = configured(path, 256, 32)
    ready = prepared(config)
    policy, E, U, step = ready.policy, ready.E, ready.U, ready.step
    lines = [
        "| P | way | numbers per response | δK, same prompt | δK, other prompts | "
        "effective rank | "
        "largest eigenvalue | δH₁, in its standard errors | CPU s per pass | CPU s per product |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    costs: list[str] = []
    with at_precision(policy, config.precision.measuring):
        S = ise.score(policy, E).logprobs.sum(1)
        weights = (step.token_weights * U.mask).sum(1) / U.lengths
        roots = {name: x.sqrt().float() for name, x in step.preconditioner.items()}
        theta = policy.theta
        whole_E = gradient_rows(policy, E, lambda _, g: g).rows
        whole_U = gradient_rows(policy, U, lambda _, g: g)
        for preconditioned in (False, True):
            word = "P" if preconditioned else "1"
            held_E, held_U = whole_E, whole_U
            if preconditioned:
                held_E = projected(whole_E, theta, lambda name, g: g * roots[name])
                rows = projected(whole_U.rows, theta, lambda name, g: g * roots[name])
                held_U = replace(whole_U, rows=rows)
            exact = kernels_of(held_E, held_U)
            rank, top = exact.spectrum()
            value, error = contraction(exact.EU, S, weights)
            lines.append(
                f"| {word} | exact | {exact.numbers:,} | – | – | {rank:.1f} | {top:.3g} | "
                f"{PAGE.with_error(value, error)} | {exact.seconds_of_pass:.1f} | "
                f"{exact.seconds_of_product:.2f} |"
            )
            print(lines[-1], flush=True)
            costs.append(large_cost(word, "exact", exact, len(U)))
            for k in SIZES:
                drawn: list[Kernels] = []
                for seed in range(PROJECTIONS):
                    change = Projection(theta, k, seed).of_matrix
                    rows = projected(held_U.rows, theta, change)
                    sketch = replace(held_U, rows=rows)
                    drawn.append(kernels_of(projected(held_E, theta, change), sketch))
                projection = Projection(theta, k, 0)
                if preconditioned:
                    timed = gradient_rows(
                        policy, U, lambda n, g, p=projection: p.of_matrix(n, g * roots[n])
                    )
                else:
                    timed = gradient_rows(policy, U, lambda _, g: g, projection)
                errors = torch.tensor(
                    [compare(exact, x, S, weights, U.prompt_index) for x in drawn]
                )
                mean, spread = errors.mean(0), errors.std(0)
                root = errors[:, 4].square().mean().sqrt()
                first = replace(drawn[0], seconds_of_pass=timed.seconds)
                cells = [f"{mean[j]:.2f} ± {spread[j]:.2f}" for j in (0, 1)]
                cells += [f"{mean[j]:+.0%} ± {spread[j]:.0%}" for j in (2, 3)]
                lines.append(
                    f"| {word} | k = {k} | {first.numbers:,} | {' | '.join(cells)} | {root:.2f} | "
                    f"{first.seconds_of_pass:.1f} | {first.seconds_of_product:.2f} |"
                )
                costs.append(large_cost(word, f"k = {k}", first, len(U)))
                print(lines[-1], flush=True)
    head = ["", f"| P | way | CPU s, one pass over {LARGE:,} | CPU s, product | GB held |"]
    return "\n".join([*lines, *head, "|---|---|---|---|---|", *costs]) + "\n"


def large_cost(word: str, way: str, measured: Kernels, n: int) -> str:
    """A row of the cost at 2,048 responses, by scaling."""
    ratio = LARGE / n
    one_pass, product = measured.seconds_of_pass * ratio, measured.seconds_of_product * ratio**2
    held = 4 * measured.numbers * LARGE / 1e9
    return f"| {word} | {way} | {one_pass:.0f} | {product:.1f} | {held:.2f} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(study(options.checkpoint))


if __name__ == "__main__":
    main()
