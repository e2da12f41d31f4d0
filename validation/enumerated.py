"""Two policies whose responses can all be written down, and samplers with a fault.

A tiny Qwen2 over 5 tokens, responses of up to 4 tokens (341) to 12 prompts, in float64, with a LoRA
adapter: `flat` as initialised, 1.3 nats per token; `sharp` with its logits times 20, 0.2 nats per
token, most of it on few tokens, as a trained policy has it. Probabilities come from plain calls of
the model and derivatives from differences, so that nothing of the scoring code is used; a batch is
a draw of rows, and every statistic of `isentrope check` a sum over them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from isentrope.models.precision import Precision
from isentrope.policy.tails import tail_places
from tests import cases

VOCABULARY, LENGTH, EOS = 5, 4, 0
POLICIES = {"flat": 1.0, "sharp": 20.0}
PROMPTS = [[1 + (7 * i + 3 * k) % 4 for k in range(1 + i % 8)] for i in range(12)]
RESPONSES = [
    [*body, EOS]
    for length in range(LENGTH)
    for body in itertools.product(range(1, VOCABULARY), repeat=length)
] + [list(body) for body in itertools.product(range(1, VOCABULARY), repeat=LENGTH)]
LENGTHS = np.array([len(r) for r in RESPONSES])
MASK = np.arange(LENGTH) < LENGTHS[:, None]  # (responses, t)
TOKENS = torch.tensor([r + [EOS] * (LENGTH - len(r)) for r in RESPONSES])
STEP = 1e-4


@cache
def model(policy: str):
    """The adapted model of a policy, in float64."""
    plain = cases.model("qwen2", VOCABULARY, tie_word_embeddings=False)
    with torch.no_grad():
        plain.get_output_embeddings().weight.mul_(POLICIES[policy])
    torch.manual_seed(1)
    linear = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]
    adapter = LoraConfig(r=2, target_modules=linear, init_lora_weights=False)
    return get_peft_model(plain, adapter).eval().double()


def logits(policy: str, parameters: dict[str, Tensor] | None = None, padding: int = 0) -> Tensor:
    """(prompts, responses, t, v) logits of each token; left-padded without a mask if asked for."""
    out = []
    for prompt in PROMPTS:
        whole = [EOS] * max(0, padding - len(prompt)) + prompt
        ids = torch.cat([torch.tensor(whole).expand(len(TOKENS), -1), TOKENS[:, :-1]], 1)
        with torch.no_grad(), Precision.named("float64").active():
            call = torch.func.functional_call(model(policy), parameters or {}, (ids,))
        out.append(call.logits[:, len(whole) - 1 :])
    return torch.stack(out)


def adapter(policy: str) -> dict[str, Tensor]:
    """The trainable parameters."""
    return {n: p.detach() for n, p in model(policy).named_parameters() if p.requires_grad}


def without_adapter(policy: str, part: str) -> dict[str, Tensor]:
    """Parameters of a model in which the adapter of some layers was not loaded."""
    return {n: p * 0 for n, p in adapter(policy).items() if "lora_B" in n and part in n}


@cache
def seen() -> Tensor:
    """(prompts, responses, t, v) whether prompt or response has the token before this position."""
    marks = torch.zeros(len(PROMPTS), len(RESPONSES), LENGTH, VOCABULARY, dtype=torch.bool)
    for i, prompt in enumerate(PROMPTS):
        marks[i, :, :, prompt] = True
        for k in range(1, LENGTH):
            marks[i, torch.arange(len(TOKENS)), k:, TOKENS[:, k - 1]] = True
    return marks


@dataclass(frozen=True)
class Enumerated:
    """A scorer: its distribution at every prefix, and what a test takes from each response.

    Attributes:
        logits: (prompts, responses, t, v).
        slopes: The same shape: their derivative along a random direction.
    """

    logits: Tensor
    slopes: Tensor

    @classmethod
    @cache
    def of(cls, policy: str, missing: str = "") -> Enumerated:
        """A policy as scored; `missing` names layers whose adapter the scorer has not loaded."""
        own = adapter(policy) | (without_adapter(policy, missing) if missing else {})
        generator = torch.Generator().manual_seed(1)
        v = {n: 0.1 * torch.randn(p.shape, generator=generator).double() for n, p in own.items()}
        ahead, behind = (
            logits(policy, {n: p + e * v[n] for n, p in own.items()}) for e in (STEP, -STEP)
        )
        return cls(logits(policy, own), (ahead - behind) / (2 * STEP))

    @cached_property
    def log_p(self) -> Tensor:
        return self.logits.log_softmax(-1)

    def _given(self, x: Tensor) -> np.ndarray:
        """(3, prompts, responses) Σ X, Σ X² and Σ V of X_a = x_a − E x over each response."""
        p = self.log_p.exp()
        x = x - (p * x).sum(-1, keepdim=True)
        drawn = x.gather(-1, _tokens(x))[..., 0]
        parts = (drawn, drawn.square(), (p * x.square()).sum(-1))
        return np.stack([(part.numpy() * MASK).sum(-1) for part in parts])

    @cached_property
    def identities(self) -> list[np.ndarray]:
        """Martingale and score identity, as `_given`."""
        return [self._given(self.log_p), self._given(self.slopes)]

    @cached_property
    def events(self) -> list[np.ndarray]:
        """EOS and repetitions, as `_given`."""
        eos = torch.zeros_like(self.log_p)
        eos[..., EOS] = 1
        return [self._given(eos), self._given(seen().double())]

    @cached_property
    def tails(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """By filter: (prompts, responses, settings) log mass kept, and the strictest setting."""
        targets = _tokens(self.log_p)[..., 0]
        shape = targets.shape
        out = []
        for within, strictest in tail_places(self.log_p.exp().flatten(0, 2), targets.flatten()):
            masses = within.view(*shape, -1).numpy() * MASK[..., None]
            furthest = np.where(MASK, strictest.view(shape).numpy(), 0)
            out.append((masses.sum(2), furthest.max(2)))
        return out

    def draw(
        self,
        generator: np.random.Generator,
        batches: int,
        n: int,
        sampler: Callable[[Tensor], Tensor] | Tensor | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """(batches, n) prompts and responses, from these logits or a sampler's."""
        log_p = self.log_p if sampler is None else sampler_log_p(self, sampler)
        s = (log_p.gather(-1, _tokens(log_p))[..., 0].exp().numpy() ** MASK).prod(-1)
        cumulated = s.cumsum(1) / s.sum(1, keepdims=True)
        prompts = generator.integers(len(PROMPTS), size=(batches, n))
        flat = (cumulated + np.arange(len(PROMPTS))[:, None]).ravel()
        place = np.searchsorted(flat, prompts + generator.random((batches, n)), side="right")
        return prompts, (place - prompts * len(RESPONSES)).clip(0, len(RESPONSES) - 1)

    def squared_gap(self, sampler: Callable[[Tensor], Tensor] | Tensor) -> np.ndarray:
        """(prompts, responses) Σ (sampler's − scorer's log-probability)² of processed ones."""
        gap = sampler_log_p(self, sampler) - self.log_p
        gap = gap.gather(-1, _tokens(gap))[..., 0].numpy()
        return np.where(MASK, np.nan_to_num(gap, posinf=0, neginf=0) ** 2, 0).sum(-1)


def sampler_log_p(scorer: Enumerated, sampler: Callable[[Tensor], Tensor] | Tensor) -> Tensor:
    """What a sampler draws from: its own logits, or the scorer's, changed."""
    logits = sampler if isinstance(sampler, Tensor) else sampler(scorer.logits)
    return logits.log_softmax(-1)


def _tokens(like: Tensor) -> Tensor:
    return TOKENS[None, :, :, None].expand(len(like), -1, -1, -1)


def eta_at(ess: Callable[[float], float], target: float, halvings: int) -> float:
    """η at which ESS/n, which falls with η, has a value: by bisection."""
    low, high = 0.0, 0.01
    while ess(high) > target:
        low, high = high, 1.6 * high
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if ess(middle) > target else (low, middle)
    return high
