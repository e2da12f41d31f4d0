"""Split: many correct answers, of which training needs only one, and a test that needs others.

A prompt "138=" is answered by two numbers with that sum, "8+130#": the first is 1 to 16, and its
remainder modulo 16/m is that of the sum, which leaves m correct answers (`answers`, the
difficulty). The reward does not depend on which of them is written. A demonstrator takes a small
first number in most cases and slips in a digit of the second.

A prompt "138c7=" is of a second kind: neither number may have the digit 7. It is rare among the
demonstrations and, with `forbidden` at its default, never trained on by reinforcement. A policy
that kept several answers to the first kind can still answer the second.

The split of a sum depends on a digest of it: train and test are disjoint for every kind.
"""

from __future__ import annotations

import random
import re
from collections import Counter

from isentrope.sampling.prompt import Prompt
from isentrope.sampling.tasks.task import in_test, limited, require_probability, require_split

LARGEST = 16
"""Largest first number, and the largest number of correct answers."""
SUMS = range(101, 1000)
"""Sums in the prompts."""
SMALL = range(1, 4)
"""First numbers that the demonstrator prefers."""
LONGEST = len("16+983#") + 1
"""Tokens of the longest answer, EOS counted."""

_ANSWER = re.compile(r"([1-9]\d*)\+([1-9]\d*)#")


class Split:
    """Write a number as a sum of two.

    Attributes:
        prompts: All sums of the split, or `limit` of them in seeded order; keys "split/138" and,
            of the second kind, "split/138c7".
        modulus: 16 / m.
    """

    def __init__(
        self,
        split: str = "train",
        *,
        answers: int = LARGEST,
        forbidden: bool = False,
        limit: int | None = None,
        seed: int = 0,
        slip: float = 0.12,
        habit: float = 0.6,
        forbidden_share: float = 0.1,
    ) -> None:
        """Choose the sums.

        Args:
            split: "train" or "test"; disjoint for all values of the other arguments.
            answers: m, correct answers to a prompt of the first kind; divides 16.
            forbidden: Whether the prompts are of the second kind, with a forbidden digit.
            limit: Number of prompts, all by default.
            seed: Order in which `limit` takes them.
            slip: Probability of a demonstrator's slip per column, units and tens.
            habit: Probability that the demonstrator takes a small first number, if one is correct.
            forbidden_share: Share of demonstrations that are of the second kind.

        Raises:
            ValueError: If an argument is out of range.
        """
        require_split(split, "Split")
        if answers < 1 or LARGEST % answers:
            raise ValueError(f"answers must divide {LARGEST}, got {answers}.")
        rates = {"slip": slip, "habit": habit, "forbidden_share": forbidden_share}
        for name, value in rates.items():
            require_probability(name, value)
        self.modulus = LARGEST // answers
        self._slip, self._habit, self._forbidden_share = slip, habit, forbidden_share
        sums = [n for n in SUMS if in_test(str(n)) == (split == "test")]
        kinds = {False: [str(n) for n in sums], True: self._restricted(sums)}
        self._kinds = {kind: [_prompt(r) for r in texts] for kind, texts in kinds.items()}
        self.prompts = limited(self._kinds[forbidden], limit, seed)

    def _restricted(self, sums: list[int]) -> list[str]:
        """Sums with a forbidden digit that leaves a quarter of the answers, and not all."""
        texts: list[str] = []
        for total in map(str, sums):
            answers = self.answers(total)
            lost = Counter(digit for text in answers for digit in set(text) - {"+"})
            few = [digit for digit in "0123456789" if 0 < lost[digit] <= 0.75 * len(answers)]
            texts += [f"{total}c{digit}" for digit in few]
        return texts

    def answers(self, reference: str) -> frozenset[str]:
        """All correct answers to a prompt."""
        total, _, digit = reference.partition("c")
        first = (a for a in range(1, LARGEST + 1) if (int(total) - a) % self.modulus == 0)
        written = (f"{a}+{int(total) - a}" for a in first)
        return frozenset(text for text in written if not digit or digit not in text)

    def answer(self, response_text: str, reference: str | None) -> str | None:
        """The correct answer that a response gives, without its "#"; None where it gives none."""
        if reference is None:
            raise ValueError("A split reward needs a reference, got None.")
        if not (match := _ANSWER.fullmatch(response_text)):
            return None
        total, _, digit = reference.partition("c")
        a, b = int(match[1]), int(match[2])
        correct = a <= LARGEST and a + b == int(total) and b % self.modulus == 0
        return None if not correct or (digit and digit in f"{a}{b}") else f"{a}+{b}"

    def reward(self, response_text: str, reference: str | None) -> float:
        """1 for a correct answer, whichever it is, else 0."""
        return float(self.answer(response_text, reference) is not None)

    def demonstrations(self, n: int, seed: int) -> list[tuple[Prompt, str]]:
        """Draw prompts with replacement, some of the second kind, and answer them."""
        rng = random.Random(seed)
        pairs: list[tuple[Prompt, str]] = []
        for _ in range(n):
            prompt = rng.choice(self._kinds[rng.random() < self._forbidden_share])
            pairs.append((prompt, self._demonstrate(str(prompt.reference), rng)))
        return pairs

    def _demonstrate(self, reference: str, rng: random.Random) -> str:
        first = sorted(int(text.split("+")[0]) for text in self.answers(reference))
        small = [a for a in first if a in SMALL]
        a = rng.choice(small if small and rng.random() < self._habit else first)
        b = int(reference.partition("c")[0]) - a
        for place in (1, 10):
            if rng.random() < self._slip:
                step = rng.choice((place, -place))
                b += step if b + step > 0 else place
        return f"{a}+{b}#"


def _prompt(reference: str) -> Prompt:
    return Prompt(f"split/{reference}", text=f"{reference}=", reference=reference)
