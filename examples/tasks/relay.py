"""Relay: two goals in turn; how much entropy remains for the second when the first is learned.

Phase 1 is `addition`: "47+85=" is answered by the sum. In phase 2 half of the prompts ask "47c85=",
which is answered by the sum without carries, 22: column work as before, but the carry is dropped.

    long     7+5=12 4+8=12 #22
    sums     12 12 #22
    digits   2c1 2c1 #22

Only pairs whose sum has a carry are asked in this way, so the two rules always differ. A small
share of the demonstrations (`shown`, the difficulty) is of the second kind. A run of phase 2 starts
from the checkpoint at which a run of phase 1 ended.
"""

from __future__ import annotations

import random

from isentrope.sampling.prompt import Prompt
from isentrope.sampling.tasks.addition import (
    STYLES,
    Addition,
    columns,
    demonstrate,
    numbers_of,
)
from isentrope.sampling.tasks.task import require_probability


class Relay(Addition):
    """Sums of two numbers of two digits, then sums without carries.

    Attributes:
        prompts: Of the split: in phase 1 all pairs, keys "relay/47+85"; in phase 2 the pairs with
            a carry, each in both kinds, keys "relay/47+85" and "relay/47c85". The splits are
            those of `addition`.
        slip: Probability of a demonstrator's slip per column, on average over styles.
    """

    def __init__(
        self,
        split: str = "train",
        *,
        phase: int = 1,
        limit: int | None = None,
        seed: int = 0,
        slip: float = 0.18,
        shown: float = 0.02,
    ) -> None:
        """Choose the pairs.

        Args:
            split: "train" or "test"; disjoint for all values of the other arguments.
            phase: 1 or 2.
            limit: Number of pairs, all by default.
            seed: Order in which `limit` takes them.
            slip: Probability of a demonstrator's slip per column, on average over styles.
            shown: Share of the demonstrations that are of the second kind, in either phase.

        Raises:
            ValueError: If an argument is out of range.
        """
        require_probability("shown", shown)
        if phase not in (1, 2):
            raise ValueError(f"phase must be 1 or 2, got {phase}.")
        super().__init__(split, digits=2, limit=limit, seed=seed, slip=slip)
        self._shown, self._sums = shown, self.prompts
        carrying = [(p, *numbers_of(p)) for p in self.prompts]
        carrying = [(p, a, b) for p, a, b in carrying if without_carries(a, b) != f"{a + b:02}"]
        self._second = [_second_kind(a, b) for _, a, b in carrying]
        if phase == 2:
            self.prompts = [p for p, _, _ in carrying] + self._second

    def _prompt(self, a: int, b: int) -> Prompt:
        return Prompt(f"relay/{a}+{b}", text=f"{a}+{b}=", reference=str(a + b))

    def demonstrations(self, n: int, seed: int) -> list[tuple[Prompt, str]]:
        """Draw prompts with replacement, a few of the second kind, and answer them."""
        rng = random.Random(seed)
        answered: list[tuple[Prompt, str]] = []
        for _ in range(n):
            second = rng.random() < self._shown
            prompt, style = rng.choice(self._second if second else self._sums), _style(rng)
            show = demonstrate_without_carries if second else demonstrate
            answered.append((prompt, show(*_pair(prompt), style, self.slip, rng)))
        return answered


def without_carries(a: int, b: int) -> str:
    """The sum of two numbers when every carry is dropped.

    Args:
        a: First number.
        b: Second number.

    Returns:
        One digit per column.
    """
    return "".join(str((x + y) % 10) for x, y in columns(a, b)[::-1])


def demonstrate_without_carries(a: int, b: int, style: str, slip: float, rng: random.Random) -> str:
    """Add two numbers by columns and drop the carries, as an imperfect teacher would.

    Args:
        a: First number.
        b: Second number.
        style: One of `STYLES`.
        slip: Probability of a slip per column, times the factor of the style.
        rng: Random numbers.

    Returns:
        Column work and result.
    """
    return demonstrate(a, b, style, slip, rng, carries=False)


def _second_kind(a: int, b: int) -> Prompt:
    return Prompt(f"relay/{a}c{b}", text=f"{a}c{b}=", reference=without_carries(a, b))


def _pair(prompt: Prompt) -> tuple[int, int]:
    a, b = prompt.key.rsplit("/", 1)[1].replace("c", "+").split("+")
    return int(a), int(b)


def _style(rng: random.Random) -> str:
    return rng.choice(list(STYLES))
