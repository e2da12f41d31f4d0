"""Which faults of a sampler does `isentrope check` find, with how many responses?

    python -m validation.power --batches 2000 --sound 100000 --out docs/results/power.md

For two policies whose responses are enumerated (validation/enumerated.py) and every fault, the
share of batches of n responses in which the check fails: with the log-probabilities that were drawn
with kept, and without them, by all seven tests and by each. The first row has no fault.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isentrope.policy.ratio_test import P_LIMIT, Z_LIMIT
from isentrope.policy.record_causes import RECORD_TOLERANCE
from validation.enumerated import EOS, LENGTHS, POLICIES, Enumerated, adapter, logits, seen
from validation.origin import write_results

SIZES = (64, 256, 1024)
TESTS = ("martingale", "score", "EOS", "repetitions", "filters")
AT_ONCE = 2**21


@dataclass(frozen=True)
class Fault:
    """A sampler, or a scorer, that is not the other.

    Attributes:
        sampler: Maps the scorer's logits to the sampler's, or the policy's name to its logits.
        missing: Layers whose adapter the scorer has not loaded.
    """

    sampler: Callable[..., Tensor]
    missing: str = ""

    def of(self, policy: str) -> tuple[Enumerated, Tensor]:
        """The scorer of a policy, and the logits of the sampler."""
        scorer = Enumerated.of(policy, self.missing)
        if self.missing or self.sampler is padded:
            return scorer, self.sampler(policy)
        return scorer, self.sampler(scorer.logits)


def temperature(value: float) -> Fault:
    return Fault(lambda x: x / value)


def cut(keeps: Callable[[Tensor], Tensor]) -> Fault:
    """Keep tokens by a function of their sorted probabilities."""

    def sampler(x: Tensor) -> Tensor:
        p, order = x.softmax(-1).sort(descending=True)
        return x.masked_fill(~torch.zeros_like(keeps(p)).scatter(-1, order, keeps(p)), -torch.inf)

    return Fault(sampler)


def top_p(value: float) -> Fault:
    return cut(lambda p: p.cumsum(-1) - p < value)


def top_k(value: int) -> Fault:
    return cut(lambda p: (torch.arange(p.shape[-1]) < value).expand_as(p))


def min_p(value: float) -> Fault:
    return cut(lambda p: p >= value * p[..., :1])


def eos(factor: float) -> Fault:
    def sampler(x: Tensor) -> Tensor:
        x = x.log_softmax(-1)
        p = x[..., EOS].exp()
        changed = x + (torch.log1p(-factor * p) - torch.log1p(-p))[..., None]
        changed[..., EOS] = x[..., EOS] + np.log(factor) if factor else -torch.inf
        return changed

    return Fault(sampler)


def repetition_penalty(value: float) -> Fault:
    return Fault(lambda x: torch.where(seen(), torch.where(x > 0, x / value, x * value), x))


def padded(policy: str) -> Tensor:
    return logits(policy, adapter(policy), padding=8)


def whole(policy: str) -> Tensor:
    return Enumerated.of(policy).logits


FAULTS = {
    "none": Fault(lambda x: x),
    "T = 0.98": temperature(0.98),
    "T = 0.9": temperature(0.9),
    "T = 0.8": temperature(0.8),
    "scorer at T = 0.7": temperature(1 / 0.7),
    "top_p = 0.98": top_p(0.98),
    "top_p = 0.9": top_p(0.9),
    "top_k = 4 of 5": top_k(4),
    "top_k = 3 of 5": top_k(3),
    "min_p = 0.1": min_p(0.1),
    "EOS × 0.9": eos(0.9),
    "EOS × 0.5": eos(0.5),
    "EOS masked": eos(0.0),
    "repetition_penalty = 1.1": repetition_penalty(1.1),
    "one LoRA layer not in the scorer": Fault(whole, "layers.1.mlp.down_proj"),
    "no adapter in the scorer": Fault(whole, "lora_B"),
    "left padding without a mask": Fault(padded),
}


def simulate(fault: Fault, policy: str, n: int, batches: int, seed: int = 0) -> dict[str, float]:
    """Share of batches that fail, by test; "any" without and "kept" with log-probabilities."""
    scorer, sampler = fault.of(policy)
    gaps, generator = scorer.squared_gap(sampler), np.random.default_rng(seed)
    counts = dict.fromkeys((*TESTS, "any", "kept"), 0)
    done = 0
    while done < batches:
        size = min(batches - done, max(1, AT_ONCE // n))
        p, r = scorer.draw(generator, size, n, sampler)
        failed = {
            name: abs(studentised(of, p, r)) > Z_LIMIT
            for name, of in zip(TESTS, [*scorer.identities, *scorer.events], strict=False)
        }
        failed["filters"] = tail_p_value(scorer, p, r) < P_LIMIT
        failed["any"] = np.any(list(failed.values()), axis=0)
        rms = np.sqrt(gaps[p, r].sum(1) / LENGTHS[r].sum(1))
        failed["kept"] = failed["any"] | (rms > RECORD_TOLERANCE)
        for name, of in failed.items():
            counts[name] += int(of.sum())
        done += size
    return {name: count / batches for name, count in counts.items()}


def studentised(sums: np.ndarray, p: np.ndarray, r: np.ndarray) -> np.ndarray:
    """(batches,) z from Σ X, Σ X² and Σ V of each response."""
    x, squares, variances = (part[p, r].sum(1) for part in sums)
    return x / np.sqrt(np.maximum(squares / 3 + 2 * variances / 3, 1e-300))


def tail_p_value(scorer: Enumerated, p: np.ndarray, r: np.ndarray) -> np.ndarray:
    """(batches,) the smallest p-value of top_k, top_p and min_p."""
    found = []
    for within, strictest in scorer.tails:
        setting = strictest[p, r].max(1)
        found.append(np.exp(within[p, r, setting[:, None]].sum(1)))
    return np.min(found, axis=0)


def power_table(policy: str, batches: int, sound: int) -> str:
    """One line per fault: the share found, n = 64 / 256 / 1024."""
    lines = [
        f"| fault ({policy}) | kept | not kept | {' | '.join(TESTS)} |",
        "|---" * (len(TESTS) + 3) + "|",
    ]
    for name, fault in FAULTS.items():
        runs = [simulate(fault, policy, n, sound if name == "none" else batches) for n in SIZES]
        digits = 5 if name == "none" else 2
        cells = [" / ".join(f"{x[of]:.{digits}f}" for x in runs) for of in ("kept", "any", *TESTS)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Simulate, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=2000, help="per fault (%(default)s)")
    parser.add_argument("--sound", type=int, default=100_000, help="without fault (%(default)s)")
    parser.add_argument("--out", type=Path, help="page to write; left out: the screen")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    text = PAGE.format(
        asked=asked,
        today=date.today(),
        tables="\n\n".join(power_table(p, asked.batches, asked.sound) for p in POLICIES),
    )
    if asked.out:
        write_results(asked.out, text)
    else:
        print(text)


PAGE = """# What `isentrope check` finds

`python -m validation.power --batches {asked.batches} --sound {asked.sound}`, {today}.

Share of batches in which the check fails, for n = 64 / 256 / 1024 responses: "kept" with the
log-probabilities that the tokens were drawn with, "not kept" without them by any of the seven
tests, then by each of them (the three filters together). A test fails beyond |z| = 4 or below
p = 6.3e-5. The first row is the rate of false alarms. Raw log-probabilities, from before
temperature and filters, find no more than none. Responses are up to 4 tokens long, about 3 on
average; what counts is the number of tokens, and how uncertain they are.

{tables}

## Faults that need no statistics

Found in every batch, whatever its size: EOS stripped from responses, active or declared dropout,
TF32, an adapter that is not in the model or is at its initial value, an optimizer state in another
order, a model that draws random numbers, and one whose scores depend on padding
(tests/checks/test_planted_faults.py).
"""


if __name__ == "__main__":
    main()
