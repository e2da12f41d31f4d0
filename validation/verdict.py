"""Do trusted intervals of ΔH cover? Seven policies, four step sizes, every method and functional.

    python -m validation.verdict --batches 200 --out docs/results/verdict.md

The policies are small random transformers of 5 tokens and at most 4 tokens a response, whose 341
responses to each of 12 prompts are enumerated: flat (1.2 nats per token), medium (0.8) and sharp
(0.2: few tokens hold the entropy, rare ones are below 1e-4). Two more are tables (`hard_policies`):
rare (4.5 % of the responses are long and hold a third of the entropy) and unequal (prompts of
unequal difficulty), each with one and with eight responses per prompt draw. The steps are those at
which the exact ESS/n of whole-response weights is .95, .83, .65 and .48. The truth is a finite sum
over the responses, from plain calls of the model in float64: nothing of the library is in it;
derivatives are Richardson's differences of it. Printed beside each coverage is the share of batches
that have an interval. Monte-Carlo error of a coverage near .95 with 200 batches: .015.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.func import functional_call
from transformers import GemmaConfig, GemmaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from isentrope.estimators import importance
from isentrope.estimators.baseline import cross_fitted_baseline
from isentrope.estimators.entropy_change import EntropyChange, change_of_sample
from isentrope.estimators.functional import Functionals
from isentrope.estimators.jackknife import Jackknifed, Units
from isentrope.estimators.options import EstimatorOptions
from isentrope.estimators.resampled import coupled_change
from isentrope.estimators.sample import ScoredBatch, statistics_of_sample
from isentrope.estimators.sampler_match import SamplerMatch, noise_of
from isentrope.nouns.choices import PER_OF, Functional
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.chi_square import Divergence, RowSampler, divergence_at_theta, score_moved
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score, score_along
from isentrope.policy.token_statistics import Scores
from validation import hard_policies
from validation.enumerated import eta_at
from validation.origin import write_results

VOCABULARY, LONGEST, EOS = 5, 4, 0
PROMPT_LENGTHS = (1, 2, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8)
RANDOM = {"flat": ("qwen3", 0, 1.0), "medium": ("gemma", 1, 2.0), "sharp": ("qwen3", 3, 5.0)}
GROUP, OF_EIGHT = 8, ", groups of 8"
POLICIES = (*RANDOM, *(name + how for how in ("", OF_EIGHT) for name in hard_policies.HARD))
TARGETS = (0.95, 0.83, 0.65, 0.48)
FUNCTIONALS: tuple[Functional, ...] = ("per_token", "per_sequence")
METHODS = ("prefix", "sequence", "doubly-robust", "prefix, χ² unknown", "resampled")
TEMPERATURES = (0.6, 0.8, 0.9, 0.98)
NOISES = (0.01, 0.03, 0.09)
OWN = "own responses"
AT_ONCE = 50
"""Batches in one pass."""


def tiny(kind: str, seed: int, sharpness: float) -> Any:
    """A random model; its output embedding is multiplied by the sharpness."""
    torch.manual_seed(seed)
    config, model = {
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "gemma": (GemmaConfig, GemmaForCausalLM),
    }[kind]
    made = model(
        config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            initializer_range=0.3,
            max_position_embeddings=32,
            bos_token_id=None,
            eos_token_id=EOS,
            pad_token_id=EOS,
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():
        made.get_output_embeddings().weight.mul_(sharpness)
    return made.eval()


class Enumerated:
    """All responses of one policy to all prompts, and the truth about them."""

    def __init__(self, name: str) -> None:
        generator = torch.Generator().manual_seed(5)
        self.group = GROUP if name.endswith(OF_EIGHT) else 1
        hard = name.removesuffix(OF_EIGHT)
        if hard in hard_policies.HARD:
            self.policy, scale = hard_policies.policy(hard), 1.0
            self.vocabulary, self.longest = hard_policies.VOCABULARY, hard_policies.LONGEST
            self.prompts = [torch.tensor(p) for p in hard_policies.PROMPTS]
        else:
            self.policy = Policy(tiny(*RANDOM[name]), eos_token_id=EOS, pad_token_id=EOS)
            self.vocabulary, self.longest, scale = VOCABULARY, LONGEST, 0.1
            self.prompts = [
                torch.randint(1, VOCABULARY, (k,), generator=generator) for k in PROMPT_LENGTHS
            ]
        inner, longest = range(1, self.vocabulary), self.longest
        self.responses = [
            [*body, EOS]
            for length in range(longest)
            for body in itertools.product(inner, repeat=length)
        ] + [list(body) for body in itertools.product(inner, repeat=longest)]
        self.K, self.P = len(self.responses), len(self.prompts)
        self.padded = torch.tensor([r + [EOS] * (longest - len(r)) for r in self.responses])
        self.lengths = torch.tensor([len(r) for r in self.responses])
        self.mask = torch.arange(longest) < self.lengths[:, None]
        generator.manual_seed(1)
        self.v = {
            n: scale * torch.randn(p.shape, generator=generator, dtype=torch.float64)
            for n, p in self.policy.theta.items()
        }
        self.rollouts = Rollouts(
            [p for p in self.prompts for _ in self.responses],
            [torch.tensor(r) for _ in self.prompts for r in self.responses],
            torch.arange(self.P).repeat_interleave(self.K),
        )

    # --- the truth: plain calls of the model -------------------------------------------------

    @cache  # noqa: B019
    @torch.no_grad()
    def distributions(
        self, eta: float = 0.0, temperature: float = 1.0, noise: float = 0.0
    ) -> torch.Tensor:
        """(P, K, t, v) log π of every next token, by plain calls of the model."""
        generator = torch.Generator().manual_seed(2)
        parameters = {
            n: p.detach()
            + eta * self.v[n]
            + noise * torch.randn(p.shape, generator=generator, dtype=p.dtype)
            for n, p in self.policy.model.named_parameters()
        }
        out = []
        with self.policy.precision.active():  # keeps layers from rounding inside float64
            for prompt in self.prompts:
                ids = torch.cat((prompt.expand(self.K, -1), self.padded), 1)
                logits = functional_call(
                    self.policy.model, parameters, (), {"input_ids": ids}
                ).logits
                out.append((logits[:, len(prompt) - 1 : -1] / temperature).log_softmax(-1))
        return torch.stack(out)

    def logprobs(self, log_p: torch.Tensor) -> torch.Tensor:
        """(P, K, t) log-probabilities of the enumerated tokens."""
        picked = log_p.gather(-1, self.padded.expand(self.P, -1, -1)[..., None])[..., 0]
        return picked * self.mask

    def with_noise(self, size: float) -> torch.Tensor:
        """(P, K, t, v) log-probabilities of other weights, `size` from θ's at tokens (RMS)."""
        here, noise = self.logprobs(self.distributions()), 1e-3
        tokens = here.sum(2).exp()[..., None] * self.mask
        for _ in range(4):
            there = self.distributions(noise=noise)
            gap = self.logprobs(there) - here
            noise *= size / float(((tokens * gap**2).sum() / tokens.sum()).sqrt())
        return there  # pyright: ignore[reportPossiblyUnboundVariable]

    def truth(self, functional: str, eta: float = 0.0) -> float:
        """ℋ or h at θ + ηv, a finite sum."""
        log_p = self.distributions(eta)
        probability = self.logprobs(log_p).sum(2).exp() / self.P
        entropy = (-(log_p.exp() * log_p).sum(-1) * self.mask).sum(2)
        total = float((probability * entropy).sum())
        length = float((probability * self.lengths).sum())
        return total / length if functional == "per_token" else total

    def orders(self, functional: str, h: float = 4e-3) -> tuple[float, float]:
        """(δH₁, δH₂) by Richardson's central differences."""
        here = self.truth(functional)
        first, second = [], []
        for step in (h, h / 2, h / 4):
            up, down = self.truth(functional, step), self.truth(functional, -step)
            first.append((up - down) / (2 * step))
            second.append((up - 2 * here + down) / (2 * step * step))
        return tuple((64 * x[2] - 20 * x[1] + x[0]) / 45 for x in (first, second))  # pyright: ignore

    def exact_ess(self, eta: float) -> float:
        """ESS/n of whole-response weights, exactly."""
        here, there = (self.logprobs(self.distributions(e)).sum(2) for e in (0.0, eta))
        return float(1 / ((2 * there - here).exp().sum() / self.P))

    def eta_of(self, target: float) -> float:
        """η at which the exact ESS/n has a value, by bisection."""
        return eta_at(self.exact_ess, target, halvings=12)

    # --- batches -----------------------------------------------------------------------------

    def draw(self, log_p: torch.Tensor, prompts: torch.Tensor, heights: torch.Tensor):
        """Rows of the rollouts drawn token by token from one uniform per position."""
        index = {tuple(r): k for k, r in enumerate(self.responses)}
        first = {}
        for k, r in enumerate(self.responses):
            for length in range(len(r) + 1):
                first.setdefault(tuple(r[:length]), k)
        cdf = log_p.exp().cumsum(-1)
        rows = []
        for prompt, u in zip(prompts.tolist(), heights, strict=True):
            response: list[int] = []
            while tuple(response) not in index:
                steps = cdf[prompt, first[tuple(response)], len(response)]
                height = u[len(response)] * steps[-1]
                response.append(min(int(torch.searchsorted(steps, height)), self.vocabulary - 1))
            rows.append(prompt * self.K + index[tuple(response)])
        return torch.tensor(rows)

    def batch(self, n: int, seed: int, probability: torch.Tensor) -> torch.Tensor:
        """Rows of n responses to n / group prompt draws, with the given (P, K) probabilities."""
        generator = torch.Generator().manual_seed(seed)
        prompts = torch.randint(self.P, (n // self.group,), generator=generator)
        drawn = torch.multinomial(
            probability[prompts], self.group, replacement=True, generator=generator
        )
        return (prompts[:, None] * self.K + drawn).flatten()

    def units(self, n: int) -> torch.Tensor:
        """(n,) the prompt draw of each response of a batch."""
        return torch.arange(n) // self.group


def rows_of(scores: Scores, index: torch.Tensor) -> Scores:
    return Scores(scores.logprobs[index], scores.entropies[index], scores.mask[index])


def jackknifed(
    samples: list[ScoredBatch], etas: list[float], moved: list[list[Scores]]
) -> list[Jackknifed]:
    """`infinitesimal_jackknife` of many batches in one pass: a call costs the same for all."""
    f, units = samples[0].functional, Units.of(samples[0].prompt_index)
    orders = len(samples[0].series)
    scored = [[*s.series, *there] for s, there in zip(samples, moved, strict=True)]
    flat = [[x for s in one for x in (s.logprobs, s.entropies)] for one in scored]
    arrays = [torch.stack(x) for x in zip(*flat, strict=True)]
    tokens = torch.stack([s.functional.tokens for s in samples])
    kept = torch.stack([s.sampler_logprobs for s in samples])
    fitted = [s.functional.baseline for s in samples if s.functional.baseline is not None]
    baseline = torch.stack(fitted) if fitted else None
    omega = torch.full(kept.shape[:2], 1 / kept.shape[1], dtype=torch.float64, requires_grad=True)

    def values(omega, kept, tokens, baseline, *arrays):
        functional = Functionals(f.functional, f.method, tokens, baseline)
        pairs = [Scores(s, h, tokens) for s, h in zip(arrays[::2], arrays[1::2], strict=True)]
        sample = ScoredBatch(functional, kept, tuple(pairs[:orders]), samples[0].prompt_index)
        return statistics_of_sample(sample, etas, pairs[orders:])(omega)

    where = (0, 0, 0, 0 if fitted else None, *[0] * len(arrays))
    out = torch.vmap(values, in_dims=where)(omega, kept, tokens, baseline, *arrays)  # (B, m)
    rows = [torch.autograd.grad(x.sum(), omega, retain_graph=True)[0] for x in out.unbind(1)]
    found = units.sums(torch.stack(rows, 1) * omega.detach()[:, None])
    found -= found.mean(2, keepdim=True)
    return [Jackknifed(v, i, units.count) for v, i in zip(out.detach(), found, strict=True)]


@dataclass
class Tally:
    """Intervals of one cell of the table."""

    inside: int = 0
    printed: int = 0
    of: int = 0

    def add(self, estimate: Any, truth: float) -> None:
        self.of += 1
        if estimate.ci_low == estimate.ci_low:
            self.printed += 1
            self.inside += bool(estimate.covers(truth))

    def __str__(self) -> str:
        share = self.printed / max(self.of, 1)
        if self.printed < 20:
            return f"– ({share:.2f})"
        return f"{self.inside / self.printed:.3f} ({share:.2f})"

    @property
    def coverage(self) -> float:
        return self.inside / self.printed if self.printed else float("nan")


Cell = tuple[str, int, str, str, str, str]
"""Policy, n, step or temperature, functional, method, quantity."""


class Study:
    """One policy, scored by the library at θ and at every step, and its truth."""

    def __init__(self, name: str, targets: Sequence[float] = TARGETS) -> None:
        self.name, self.exact = name, Enumerated(name)
        e = self.exact
        self.etas = [e.eta_of(target) for target in targets]
        self.ess = [e.exact_ess(eta) for eta in self.etas]
        self.series = score_along(e.policy, e.rollouts, e.v, 2)
        features = score(e.policy, e.rollouts, features=8).features
        assert features is not None
        self.features = features
        moved = score_moved(e.policy, e.rollouts, e.v, self.etas, remainder=True)
        self.moved = [pair for pair in moved if pair is not None]
        self.log_p = e.distributions()
        self.probability = e.logprobs(self.log_p).sum(2).exp()
        self.truth: dict[tuple[str, str], float] = {}
        for functional in FUNCTIONALS:
            here, (first, second) = e.truth(functional), e.orders(functional)
            named = {"entropy": here, "δH₁": first, "δH₂": second, "η*": abs(first / second)}
            self.truth |= {(functional, k): x for k, x in named.items()}
            for eta, ess in zip(self.etas, self.ess, strict=True):
                change = e.truth(functional, eta) - here
                self.truth[functional, f"ΔH {ess:.2f}"] = change
                rest = change - eta * first - eta * eta * second
                self.truth[functional, f"residual {ess:.2f}"] = rest

    def sample(self, functional: str, method: str, index: torch.Tensor, **known) -> ScoredBatch:
        series = tuple(rows_of(s, index) for s in self.series)
        tokens, units, baseline = series[0].mask.double(), self.exact.units(len(index)), None
        if method == "doubly-robust":
            baseline = cross_fitted_baseline(
                series[0].entropies, tokens, units, functional, features=self.features[index]
            )
        f = Functionals(functional, method, tokens, baseline)  # pyright: ignore
        kept = known.pop("sampler_logprobs", series[0].logprobs)
        return ScoredBatch(f, kept, series, units, **known)

    def steps(self, n: int, batches: int, cells: dict[Cell, Tally]) -> None:
        """ΔH and its residual with weights, each beside the truth."""
        for start in range(0, batches, AT_ONCE):
            seeds = range(start, min(start + AT_ONCE, batches))
            indices = [self.exact.batch(n, 1000 * n + s, self.probability) for s in seeds]
            moved = [[rows_of(s, index) for s, _ in self.moved] for index in indices]
            for functional, method in itertools.product(FUNCTIONALS, METHODS[:3]):
                samples = [self.sample(functional, method, index) for index in indices]
                results = jackknifed(samples, self.etas, moved)
                for k, index in enumerate(indices):
                    one = samples[k], self.etas
                    pairs = list(zip(moved[k], self.divergences(index), strict=True))
                    sweep = change_of_sample(*one, pairs, result=results[k])
                    self.tally(cells, n, method, sweep)
                    if method == "prefix":
                        unknown = [(scores, None) for scores in moved[k]]
                        blind = change_of_sample(*one, unknown, result=results[k])
                        self.tally(cells, n, METHODS[3], blind)

    def divergences(self, index: torch.Tensor) -> list[Divergence]:
        out = []
        for _, moved in self.moved:
            assert moved.remainder is not None
            out.append(Divergence(moved.jumps[index], moved.remainder[index]))
        return out

    def tally(self, cells: dict[Cell, Tally], n: int, method: str, sweep: EntropyChange) -> None:
        for ess, point in zip(self.ess, sweep.points, strict=True):
            for what, estimate in (("ΔH", point.change), ("residual", point.residual)):
                key = (self.name, n, f"{ess:.2f}", sweep.functional, method, what)
                truth = self.truth[sweep.functional, f"{what} {ess:.2f}"]
                cells.setdefault(key, Tally()).add(estimate, truth)

    def fresh(self, n: int, batches: int, cells: dict[Cell, Tally]) -> None:
        """ΔH from fresh responses, coupled token by token."""
        there = [self.exact.distributions(eta) for eta in self.etas]
        units = self.exact.units(n)
        for seed in range(batches):
            generator = torch.Generator().manual_seed(7000 * n + seed)
            prompts = torch.randint(self.exact.P, (n // self.exact.group,), generator=generator)
            prompts = prompts.repeat_interleave(self.exact.group)
            size = (n, self.exact.longest)
            heights = torch.rand(size, generator=generator, dtype=torch.float64)
            index = self.exact.draw(self.log_p, prompts, heights)
            for ess, log_p, (scores, _) in zip(self.ess, there, self.moved, strict=True):
                other = self.exact.draw(log_p, prompts, heights)
                pair = rows_of(self.series[0], index), rows_of(scores, other)
                for functional in FUNCTIONALS:
                    of = EstimatorOptions(PER_OF[functional])
                    estimate = coupled_change(*pair, units, other != index, of)
                    key = (self.name, n, f"{ess:.2f}", functional, "resampled", "ΔH")
                    cells.setdefault(key, Tally()).add(
                        estimate, self.truth[functional, f"ΔH {ess:.2f}"]
                    )

    def at_theta(self, n: int, batches: int, cells: dict[Cell, Tally]) -> None:
        """Quantities at θ, from the policy's own responses."""
        log_p = self.exact.distributions()
        still = torch.zeros(len(self.exact.rollouts), self.exact.longest, 2, dtype=torch.float64)
        self._sampler(n, batches, cells, OWN, log_p, RowSampler(1.0), still)

    def samplers(self, n: int, batches: int, cells: dict[Cell, Tally]) -> None:
        """Responses of another sampler, which kept its log-probabilities."""
        e = self.exact
        for temperature in TEMPERATURES:
            log_p, known = e.distributions(temperature=temperature), RowSampler(temperature)
            jumps = divergence_at_theta(e.policy, e.rollouts, known)
            self._sampler(n, batches, cells, f"T = {temperature:g}", log_p, known, jumps)
        for size in NOISES:
            still = torch.zeros(len(e.rollouts), e.longest, 2, dtype=torch.float64)
            self._sampler(n, batches, cells, f"noise {size:g}", e.with_noise(size), None, still)

    def _sampler(
        self,
        n: int,
        batches: int,
        cells: dict[Cell, Tally],
        name: str,
        log_p: torch.Tensor,
        known: RowSampler | None,
        jumps: torch.Tensor,
    ) -> None:
        """Quantities at θ, and ΔH at the smallest step where the sampler is noisy."""
        e, sampler = self.exact, self.exact.logprobs(log_p)
        probability, kept = sampler.sum(2).exp(), sampler.flatten(0, 1)
        etas = [] if known else self.etas[:1]
        indices = [e.batch(n, 3000 * n + seed, probability) for seed in range(batches)]
        here, mask = self.series[0].logprobs - kept, self.series[0].mask
        judged = [known or _noisy(here[index][mask[index]]) for index in indices]
        moved = [[rows_of(s, index) for s, _ in self.moved[: len(etas)]] for index in indices]
        for functional, method in itertools.product(FUNCTIONALS, METHODS[:2]):
            samples = [
                self.sample(
                    functional,
                    method,
                    index,
                    sampler_logprobs=kept[index],
                    match=SamplerMatch(1.0, one, False),
                    jumps=None if one is None else one.farther(jumps[index], mask[index]),
                )
                for index, one in zip(indices, judged, strict=True)
            ]
            results = jackknifed(samples, etas, moved)
            for k, (index, one) in enumerate(zip(indices, judged, strict=True)):
                there = [
                    replace(d, jumps=(one or RowSampler(1.0)).farther(d.jumps, mask[index]))
                    for d in self.divergences(index)[: len(etas)]
                ]
                pairs = list(zip(moved[k], there, strict=True))
                found = change_of_sample(samples[k], etas, pairs, result=results[k])
                named = [
                    ("entropy", found.entropy, "entropy"),
                    ("δH₁", found.first_order, "δH₁"),
                    ("δH₂", found.second_order, "δH₂"),
                    ("η*", found.linear_range, "η*"),
                ]
                named += [
                    ("ΔH", point.change, f"ΔH {ess:.2f}")
                    for ess, point in zip(self.ess, found.points, strict=False)
                ]
                for what, estimate, truth in named:
                    key = (self.name, n, name, functional, method, what)
                    cells.setdefault(key, Tally()).add(estimate, self.truth[functional, truth])


def _noisy(log_ratios: torch.Tensor) -> RowSampler | None:
    """What the library takes a sampler for that differs by so much."""
    noise = noise_of(log_ratios)
    return noise and RowSampler(1.0, noise)


def table(cells: dict[Cell, Tally], quantities: tuple[str, ...]) -> str:
    """One row per policy, n and step; one column per functional, method and quantity."""
    chosen = {k: x for k, x in cells.items() if k[5] in quantities}
    columns = list(dict.fromkeys(k[3:] for k in chosen))
    symbol = {"per_token": "h", "per_sequence": "ℋ"}
    several = len(quantities) > 1
    heads = [f"{symbol[f]} {m}{f': {q}' if several else ''}" for f, m, q in columns]
    lines = [
        f"| policy | n | ESS/n or sampler | batches | {' | '.join(heads)} |",
        f"|---|---|---|---|{'---|' * len(columns)}",
    ]
    for row in dict.fromkeys(k[:3] for k in chosen):
        found = [str(chosen[row + c]) if row + c in chosen else "" for c in columns]  # pyright: ignore
        batches = max(x.of for k, x in chosen.items() if k[:3] == row)
        lines.append(f"| {' | '.join(map(str, row))} | {batches} | {' | '.join(found)} |")
    return "\n".join(lines)


def worst(cells: dict[Cell, Tally], least: int = 100) -> str:
    """The lowest coverage of the cells in which enough intervals are printed."""
    found = {k: x for k, x in cells.items() if x.printed >= least}
    if not found:
        return f"no cell has {least} intervals"
    key = min(found, key=lambda k: found[k].coverage)
    named = f"{key[0]}, n = {key[1]}, {key[2]}, {key[3]}, {key[4]}, {key[5]}"
    return f"lowest of {len(found)} cells with {least} intervals or more: {found[key]} ({named})"


def study(name: str, sizes: list[int], batches: int) -> tuple[dict[Cell, Tally], ...]:
    """Steps by weights, steps from fresh responses, and temperatures at θ, of one policy."""
    importance.pareto_khat = lambda _: float("nan")  # decides nothing, and takes half the time
    weighted, fresh, theta = {}, {}, {}
    of = Study(name)
    for n in sizes:
        of.steps(n, batches, weighted)
        of.fresh(n, batches // 2, fresh)
    of.at_theta(sizes[0], batches, theta)
    if name in RANDOM:
        of.samplers(sizes[0], batches // 2, theta)
    return weighted, fresh, theta


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES)
    parser.add_argument("--out", type=Path, default=Path("docs/results/verdict.md"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    weighted, fresh, theta = {}, {}, {}
    for name in args.policies:
        for all_cells, cells in zip(
            (weighted, fresh, theta), study(name, args.sizes, args.batches), strict=True
        ):
            all_cells |= cells
    sizes = " ".join(map(str, args.sizes))
    command = f"python -m validation.verdict --batches {args.batches} --sizes {sizes}"
    if args.policies != list(POLICIES):
        command += f" --policies {' '.join(args.policies)}"
    write_results(args.out, report(command, weighted, fresh, theta))
    print(args.out.read_text(encoding="utf-8"))


def report(
    command: str,
    weighted: dict[Cell, Tally],
    fresh: dict[Cell, Tally],
    theta: dict[Cell, Tally],
) -> str:
    """The page."""
    own = {k: x for k, x in theta.items() if k[2] == OWN}
    other = {k: x for k, x in theta.items() if k[2] != OWN}
    return f"""# Do trusted intervals cover?

`{command}`: coverage of the nominal 95 % intervals
that are printed, and in brackets the share of batches in which one is; – where fewer than 20 are.
ESS/n is exact; the policies are enumerated (`validation/verdict.py`). The Monte-Carlo error of a
coverage near .95 is ±.015 from 200 batches and ±.022 from 100.

## ΔH by weights

{worst({k: x for k, x in weighted.items() if k[5] == "ΔH"})}.

{table(weighted, ("ΔH",))}

## Residual ΔH − ηδH₁ − η²δH₂

{worst({k: x for k, x in weighted.items() if k[5] == "residual"})}.

{table(weighted, ("residual",))}

## ΔH from fresh responses

{worst(fresh)}.

{table(fresh, ("ΔH",))}

## At θ, from the policy's own responses

{worst(own)}.

{table(own, ("entropy", "δH₁", "δH₂", "η*"))}

## At θ, from a sampler at another temperature, or with noise

{worst(other)}.

{table(other, ("entropy", "δH₁", "δH₂", "η*"))}

ΔH at the smallest step (ESS/n = .95), from a sampler with noise:

{table(other, ("ΔH",))}
"""


if __name__ == "__main__":
    main()
