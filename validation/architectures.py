"""Which architectures are supported? Every decoder family of transformers against enumeration.

Builds a tiny random model of each model type, lists every response to two prompts, and compares
what the library computes at exact weights with plain transformers calls in float64:

    python -m validation.architectures --out docs/results/architectures.md

The reference shares no code and no autograd mode with the library: h(θ + ηv) is summed over the
enumerated responses, its derivatives are central differences, extrapolated by Richardson, and
transformers keeps float64 because `torch.float32` names float64 while the reference runs. The
prompts hold the padding token, so that a tied head has a gradient in the padding row.

Then the calls that users make: `entropy_change` at a tiny and an ordinary rate against the same F
of the model's own logits, `influence` of sequences and of tokens against their budgets,
`fisher_kernel` and `noise_scale` against gradients of the model's own logits.

An architecture is equal to enumeration, or refused by a sentence that names it. Anything else, a
foreign error or another number, fails (validation/tests/test_architectures.py).
"""

from __future__ import annotations

import argparse
import copy
import itertools
import platform
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch import Tensor, nn
from torch.func import functional_call
from transformers import AutoConfig, AutoModelForCausalLM

import isentrope as ise
from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.estimators.functional import Functionals, along
from isentrope.models.architecture import name_of
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score, score_along
from tests.architectures import KINDS, settings
from validation.origin import write_results

VOCABULARY, LENGTH, EOS = 5, 3, 0
PROMPTS = [[1, 2], [3, 1, 4]]
RATES = (0.01, 0.1)
STEPS = [0.05 / 2**k for k in range(8)]
"""Central differences by halving steps: a step across a kink of relu is dropped for a shorter."""

COLUMNS = ("h", "δH₁", "δH₂", *(f"ΔH({rate})" for rate in RATES))
VERBS = ("entropy_change", "influence", "of tokens", "kernel", "noise")
SHORT_AND_ORDINARY = (1e-9, 0.01)
"""Rates of `entropy_change`, whose largest error is its column."""
SEEDS = 20
"""Random weights tried until central differences converge: none do next to a kink."""

CLOSE = 1e-8
"""Largest error, in nats, that counts as equal."""


@dataclass(frozen=True)
class Outcome:
    """What became of one architecture.

    Attributes:
        kind: Its model type.
        traits: Norm, experts and tied head, in words.
        errors: Largest errors against enumeration, by COLUMNS; None if it is refused.
        verbs: Errors of public calls by VERBS, all but the first relative.
        backend: How the gradients of sequences were computed: by hooks, or one by one.
        refusal: The sentence; None if it is supported.
    """

    kind: str
    traits: tuple[str, str, str]
    errors: list[float] | None = None
    verbs: list[float] | None = None
    backend: str = "hooks"
    refusal: str | None = None

    @property
    def equal(self) -> bool:
        """Whether every number is that of the enumeration."""
        assert self.errors is not None
        assert self.verbs is not None
        return max(self.errors) < CLOSE and max(self.verbs) < CLOSE


def tiny_model(kind: str, seed: int = 0) -> Any:
    """A random model of a type, in float64; the padding row is as random as the rest."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **settings(kind))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(0, 0.3)
            else:
                p.add_(0.1 * torch.randn_like(p))
    if model.can_generate() and model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # grouped kernels have no float64
    return model


def random_direction(model: nn.Module) -> Vector:
    """v, of a size at which ΔH(0.1) is curved."""
    generator = torch.Generator().manual_seed(1)
    return {
        n: 0.05 * torch.randn(p.shape, generator=generator, dtype=torch.float64)
        for n, p in model.named_parameters()
        if p.requires_grad
    }


def responses() -> list[list[int]]:
    """Every response: up to LENGTH tokens, ended by EOS or cut."""
    tokens = range(1, VOCABULARY)
    ended = [[*r, EOS] for k in range(LENGTH) for r in itertools.product(tokens, repeat=k)]
    return ended + [list(r) for r in itertools.product(tokens, repeat=LENGTH)]


# --- the reference: plain transformers calls -----------------------------------------------------


class NotSmoothError(ValueError):
    """No central difference converges: experts are exchanged, or a relu bends, next to θ."""


def exact_numbers(model: nn.Module, v: Vector) -> list[float]:
    """h, δH₁, δH₂ and ΔH of the enumerated policy, by its own logits and central differences."""
    theta = {n: p.detach().clone() for n, p in model.named_parameters()}
    listed = responses()
    lengths = torch.tensor([len(r) for r in listed])
    mask = torch.arange(LENGTH) < lengths[:, None]
    padded = torch.tensor([r + [EOS] * (LENGTH - len(r)) for r in listed])

    @torch.no_grad()
    def h(eta: float) -> float:
        moved = theta | {n: theta[n] + eta * v[n] for n in v}
        entropy = tokens = 0.0
        for prompt in PROMPTS:
            ids = torch.cat((torch.tensor(prompt).expand(len(listed), -1), padded), 1)
            logits = functional_call(model, moved, (ids,), {"use_cache": False}).logits
            log_p = logits[:, len(prompt) - 1 : -1].log_softmax(-1)
            assert log_p.dtype == torch.float64
            s = log_p.gather(-1, padded[..., None])[..., 0] * mask
            weights = s.sum(1).exp()
            entropy += float(weights @ (-(log_p.exp() * log_p).sum(-1) * mask).sum(1))
            tokens += float(weights @ lengths.double())
        return entropy / tokens

    with float64_throughout():
        here = h(0.0)
        sides = {e: (h(e), h(-e)) for e in STEPS}
        first = _extrapolated(lambda e: (sides[e][0] - sides[e][1]) / (2 * e))
        second = _extrapolated(lambda e: (sides[e][0] - 2 * here + sides[e][1]) / e**2)
        return [here, first, second / 2, *(h(e) - here for e in RATES)]


@contextmanager
def float64_throughout() -> Generator[None]:
    """A block in which model code that asks for float32 gets float64."""
    with ExitStack() as stack:
        for target, name, value in (
            (torch, "float32", torch.float64),
            (torch, "float", torch.float64),
            (Tensor, "float", Tensor.double),
        ):
            stack.enter_context(patch.object(target, name, value))
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        yield


def own_scores(model: nn.Module, rollouts: Rollouts, theta: Vector) -> tuple[Tensor, Tensor]:
    """(n, t) s and H by the model's own logits, one sequence at a time."""
    rows = []
    for prompt, response in zip(rollouts.prompt_ids, rollouts.response_ids, strict=True):
        ids = torch.cat((prompt, response))[None]
        logits = functional_call(model, theta, (ids,), {"use_cache": False}).logits
        log_p = logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        rows.append((log_p.gather(1, response[:, None])[:, 0], -(log_p.exp() * log_p).sum(1)))
    width = rollouts.mask.shape[1]
    s, entropy = (
        torch.stack([nn.functional.pad(x, (0, width - len(x))) for x in of])
        for of in zip(*rows, strict=True)
    )
    return s, entropy


def own_changes(model: nn.Module, E: Rollouts, v: Vector) -> list[float]:
    """ΔH at SHORT_AND_ORDINARY by the library's F of the model's own logits."""
    theta = {n: p.detach() for n, p in model.named_parameters()}
    with float64_throughout(), torch.no_grad():
        here = own_scores(model, E, theta)
        f = Functionals("per_token", "prefix", E.mask.double())
        omega, drawn_at = torch.ones(len(E), dtype=torch.float64), E.padded("sampler_logprobs")
        changes = []
        for eta in SHORT_AND_ORDINARY:
            moved = theta | {n: theta[n] + eta * v[n] for n in v}
            there = own_scores(model, E, moved)
            after, before = (f(omega, s - drawn_at, h) for s, h in (there, here))
            changes.append(after - before)
    return [float(x) for x in changes]


def own_gram(model: nn.Module, U: Rollouts, weights: Tensor, rows: Tensor) -> Tensor:
    """Inner products of the gradients of Σ c s, by row, one backward pass each."""
    theta = {n: p for n, p in model.named_parameters() if p.requires_grad}
    gradients = []
    with float64_throughout():
        s, _ = own_scores(model, U, theta)
        for row in rows.unique():
            total = (weights * s)[rows == row].sum()
            found = torch.autograd.grad(
                total,
                list(theta.values()),
                retain_graph=True,
                materialize_grads=True,
                allow_unused=True,
            )
            gradients.append(torch.cat([g.flatten() for g in found]))
    stacked = torch.stack(gradients)
    return stacked @ stacked.T


def _extrapolated(difference: Callable[[float], float]) -> float:
    """Richardson's limit of a central difference, where two neighbouring limits agree best."""
    d = [difference(e) for e in STEPS]
    limits = [(64 * c - 20 * b + a) / 45 for a, b, c in zip(d, d[1:], d[2:], strict=False)]
    gaps = [abs(b - a) for a, b in itertools.pairwise(limits)]
    if min(gaps) > CLOSE / 2:
        raise NotSmoothError(f"The best two limits of central differences differ by {min(gaps)}.")
    return limits[gaps.index(min(gaps)) + 1]


# --- the library, at exact weights ---------------------------------------------------------------


def library_numbers(policy: Policy, v: Vector) -> list[float]:
    """The same numbers by the library's derivatives and its F, every response once."""
    listed = responses()
    rollouts = Rollouts(
        [torch.tensor(p) for p in PROMPTS for _ in listed],
        [torch.tensor(r) for _ in PROMPTS for r in listed],
        torch.arange(len(PROMPTS)).repeat_interleave(len(listed)),
    )
    base, first, second = score_along(policy, rollouts, v, 2)
    f = Functionals("per_token", "prefix", base.mask.double())
    omega, zero = base.logprobs.sum(1).exp(), torch.zeros_like(base.logprobs)
    value, d1, d2 = along(
        f,
        omega,
        (zero, first.logprobs, second.logprobs),
        (base.entropies, first.entropies, second.entropies),
    )
    numbers = [float(value), float(d1), float(d2) / 2]
    for rate in RATES:
        there = score(policy, rollouts, policy.parameters_along(v, rate))
        numbers.append(float(f(omega, there.logprobs - base.logprobs, there.entropies) - value))
    return numbers


def verb_errors(policy: Policy, plain: nn.Module) -> tuple[list[float], str]:
    """Errors of what users call, by VERBS; and how gradients of sequences were computed."""
    E = ise.sample(policy, PROMPTS, n=12, max_new_tokens=LENGTH, seed=0)
    U = ise.sample(policy, [[2, 1, 1], [4, 1], [1, 3], [3]], 4, 4, max_new_tokens=LENGTH, seed=1)
    U = U.with_columns(advantages=torch.arange(16.0).double() % 5 - 2)
    step = ise.optimizer_step(
        policy, U, torch.optim.SGD(policy.model.parameters(), lr=1.0), max_grad_norm=None
    )
    change = ise.entropy_change(policy, E, step.direction, SHORT_AND_ORDINARY)
    truth = own_changes(plain, E, step.direction)
    errors = [abs(p.change.value - x) for p, x in zip(change.points, truth, strict=True)]
    assert change.first_order is not None
    options = ise.InfluenceOptions(groups=2, overlap="independent")
    try:
        whole = ise.influence(policy, E, U, step, options, tokens=False)
    except ValueError as refusal:
        if "GradientOptions('loop')" not in str(refusal):
            raise
        options = replace(options, gradients=GradientOptions("loop"))
        whole = ise.influence(policy, E, U, step, options, tokens=False)
    tokens = ise.influence(policy, E, U, step, options)
    scale = float(tokens.per_sequence.abs().sum())
    apart = [
        max(
            abs(found.entropy.closure),
            abs(found.total.value - change.first_order.value),
            float((found.per_sequence - whole.per_sequence).abs().max()),
        )
        / scale
        for found in (whole, tokens)
    ]
    gradients = options.gradients
    noise = ise.noise_scale(policy, U, token_weights=step.token_weights, gradients=gradients)
    groups = own_gram(plain, U, 4 * step.token_weights, U.prompt_index)
    for module in plain.modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = None  # the kernel is of the scores, not of training
    kernel = ise.fisher_kernel(policy, E, gradients=gradients).matrix
    sequences = own_gram(plain, E, E.mask.double(), torch.arange(len(E)))
    grams = [_relative(kernel, sequences), _relative(noise.gram, groups)]
    return [max(errors), *apart, *grams], gradients.backend


def _relative(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).abs().max() / truth.abs().max())


def examine(kind: str) -> Outcome:
    """One architecture, against enumeration: the first random weights at which h is smooth.

    Args:
        kind: Model type, one of KINDS.

    Returns:
        Errors, or the sentence of the refusal; any other error is passed on.
    """
    for seed in itertools.count():
        model = tiny_model(kind, seed)
        plain = copy.deepcopy(model)
        traits, v = _traits(model), random_direction(model)
        try:
            policy = Policy(model, eos_token_id=EOS)
            ours = library_numbers(policy, v)
            truth = exact_numbers(plain, v)
            verbs, backend = verb_errors(policy, plain)
        except NotSmoothError:
            if seed == SEEDS:
                raise
            continue
        except ValueError as refusal:
            if name_of(plain) not in str(refusal):
                raise
            return Outcome(kind, traits, refusal=str(refusal))
        errors = [abs(a - b) for a, b in zip(ours, truth, strict=True)]
        return Outcome(kind, traits, errors, verbs, backend)
    raise AssertionError("unreachable")


def _traits(model: Any) -> tuple[str, str, str]:
    names = {type(m).__name__ for m in model.modules()}
    layer = any("LayerNorm" in n for n in names)
    norm = "LayerNorm" if layer else "RMSNorm" if any("Norm" in n for n in names) else "none"
    experts = any("Expert" in n for n in names)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head is not None and head.weight is embedding.weight
    return norm, "experts" if experts else "–", "tied" if tied else "untied"


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as Markdown: a table of errors, and one of refusals."""
    lines = [
        f"| model type | norm | experts | head | {' | '.join((*COLUMNS, *VERBS))} | gradients |",
        f"|{'---|' * (len(COLUMNS) + len(VERBS) + 5)}",
    ]
    refused: list[str] = []
    for outcome in outcomes:
        head = f"| {outcome.kind} | {' | '.join(outcome.traits)} |"
        if outcome.errors is None or outcome.verbs is None:
            reason = (outcome.refusal or "").replace("|", "\\|")
            refused.append(f"{head} {reason} |")
        else:
            numbers = [f"{x:.0e}" for x in (*outcome.errors, *outcome.verbs)]
            lines.append(f"{head} {' | '.join(numbers)} | {outcome.backend} |")
    if refused:
        lines += ["", "Refused:", "", "| model type | norm | experts | head | reason |"]
        lines += [f"|{'---|' * 5}", *refused]
    return "\n".join(lines)


def page(outcomes: Sequence[Outcome], command: str) -> str:
    """docs/results/architectures.md."""
    supported = [o for o in outcomes if o.refusal is None]
    return f"""# Supported architectures

`{command}`, {datetime.now(UTC):%d %B %Y}, torch {torch.__version__}, transformers
{transformers.__version__}, {platform.machine()}.

A tiny random model of each model type of transformers ({VOCABULARY} tokens, responses of at most
{LENGTH}), measured at exact weights and compared with plain transformers calls in float64 that
enumerate every response; derivatives of the reference are central differences. Entries are absolute
errors in nats per token (per unit η and η²).

The columns from `entropy_change` on are the calls that users make, on sampled responses: ΔH at
η = {SHORT_AND_ORDINARY[0]:g} and {SHORT_AND_ORDINARY[1]:g} along a step, against the same F of the
model's own logits (nats per token); the influence of sequences and of tokens against their
budgets, each other and measure's δH₁; the kernel and the noise scale's Gram matrix against
gradients of the model's own logits (all relative). `gradients` is how those of sequences were
computed: by hooks, or one backward pass each where a layer is of another kind.

{len(supported)} of {len(outcomes)} model types are right within {CLOSE:.0e}; the others are refused
by name.

{table(outcomes)}
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Examine the architectures that are named, all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    outcomes = []
    for kind in options.kinds:
        outcomes.append(examine(kind))
        print(table(outcomes[-1:]).splitlines()[-1], flush=True)
    if options.out:
        command = f"python -m validation.architectures --out {options.out}"
        write_results(options.out, page(outcomes, command))


if __name__ == "__main__":
    main()
