"""Shortcut: a common style with a lower reward, and a rare one with a higher reward.

The sums and styles of `addition`. A correct result is rewarded with 1 if the work is written in
the style "long", and with `plain` (0.6) in any other. The demonstrator nearly always writes in the
style "digits", 0.03 of its work is "long" (`rare`, the difficulty), and it slips equally often in
all styles. The best policy always writes "long". To find that out, a policy must still write it
sometimes after many steps in which "digits" earned reward.
"""

from __future__ import annotations

import random
import re

from isentrope.sampling.prompt import Prompt
from isentrope.sampling.tasks.addition import STYLES, Addition, demonstrate, numbers_of
from isentrope.sampling.tasks.task import require_probability

COMMON = {"digits": 0.9, "sums": 0.07}
"""Shares of the styles that pay less, before they are scaled to 1 − `rare`."""

_PATTERNS = {
    "long": re.compile(r"(?:\d\+\d(?:\+1)?=\d+ ){2}#\d+"),
    "sums": re.compile(r"\d+ \d+ #\d+"),
    "digits": re.compile(r"(?:\dc\d ){2}#\d+"),
}


class Shortcut(Addition):
    """Sums of two numbers of two digits, with a reward that depends on the style.

    Attributes:
        prompts: All pairs of the split, or `limit` of them in seeded order; keys
            "shortcut/47+85". The splits are those of `addition`.
        slip: Probability of a demonstrator's slip per column, in every style.
    """

    def __init__(
        self,
        split: str = "train",
        *,
        limit: int | None = None,
        seed: int = 0,
        slip: float = 0.18,
        rare: float = 0.03,
        plain: float = 0.6,
    ) -> None:
        """Choose the pairs.

        Args:
            split: "train" or "test"; disjoint for all values of the other arguments.
            limit: Number of prompts, all by default.
            seed: Order in which `limit` takes them.
            slip: Probability of a demonstrator's slip per column, in every style.
            rare: Share of demonstrations in the style "long".
            plain: Reward of a correct result in another style than "long".

        Raises:
            ValueError: If an argument is out of range.
        """
        require_probability("rare", rare)
        if not 0 < plain <= 1:
            raise ValueError(f"plain is a reward above 0 and at most 1, got {plain}.")
        self._rare, self._plain = rare, plain
        super().__init__(split, digits=2, limit=limit, seed=seed, slip=slip)

    def _prompt(self, a: int, b: int) -> Prompt:
        return Prompt(f"shortcut/{a}+{b}", text=f"{a}+{b}=", reference=str(a + b))

    def reward(self, response_text: str, reference: str | None) -> float:
        """1 for a correct result in the style "long", `plain` in another, 0 if it is incorrect."""
        correct = super().reward(response_text, reference)
        return correct * (1.0 if style_of(response_text) == "long" else self._plain)

    def demonstrations(self, n: int, seed: int) -> list[tuple[Prompt, str]]:
        """Draw prompts with replacement and let the demonstrator answer them."""
        rng = random.Random(seed)
        scale = (1 - self._rare) / sum(COMMON.values())
        weights = [self._rare, *(scale * share for share in COMMON.values())]
        pairs: list[tuple[Prompt, str]] = []
        for prompt in rng.choices(self.prompts, k=n):
            (style,) = rng.choices(["long", *COMMON], weights)
            slip = self.slip / STYLES[style]  # `demonstrate` multiplies by the factor of the style
            pairs.append((prompt, demonstrate(*numbers_of(prompt), style, slip, rng)))
        return pairs


def style_of(response_text: str) -> str | None:
    """The style that a response to a sum of two digits is written in.

    Args:
        response_text: The decoded response.

    Returns:
        One of `STYLES`, or None where it is written in none of them.
    """
    return next((s for s, p in _PATTERNS.items() if p.fullmatch(response_text)), None)
