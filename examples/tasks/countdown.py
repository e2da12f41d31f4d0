"""Countdown: reach a number from given ones, in the characters of the toy.

A prompt "3 5 8 2=10" gives four different digits and a target. It is answered by some of the
digits, each at most once, added and subtracted: "3+5+2#" or "8+5c3#", where "c" is minus (the
alphabet has no other sign). The first number is added, and the value must be the target. Prompts
have at least `fewest` correct answers (the difficulty); the order of an answer's numbers does not
matter. A demonstrator takes one of them at random, writes the added numbers first, and slips: it
replaces one number by another of the four.
"""

from __future__ import annotations

import random
import re
from itertools import combinations, product

from isentrope.sampling.prompt import Prompt
from isentrope.sampling.tasks.task import in_test, limited, require_probability, require_split

NUMBERS = 4
"""Digits that a prompt gives."""
LONGEST = 2 * NUMBERS + 1
"""Tokens of the longest answer, "#" and EOS counted."""

_ANSWER = re.compile(r"\d(?:[+c]\d)*#")


class Countdown:
    """Reach a target from four digits by adding and subtracting some of them.

    Attributes:
        prompts: The problems of the split, or `limit` of them in seeded order; keys
            "countdown/3 5 8 2=10".
    """

    def __init__(
        self,
        split: str = "train",
        *,
        fewest: int = 2,
        limit: int | None = None,
        seed: int = 0,
        slip: float = 0.35,
    ) -> None:
        """Choose the problems.

        Args:
            split: "train" or "test"; disjoint for all values of the other arguments.
            fewest: Correct answers that a problem has at least, 1 to 4.
            limit: Number of prompts, all by default.
            seed: Order in which `limit` takes them.
            slip: Probability that the demonstrator replaces a number.

        Raises:
            ValueError: If an argument is out of range.
        """
        require_split(split, "Countdown")
        require_probability("slip", slip)
        if not 1 <= fewest <= 4:
            raise ValueError(f"fewest must be 1 to 4, got {fewest}.")
        self._slip = slip
        texts: list[str] = []
        for numbers in combinations(range(1, 10), NUMBERS):
            values = _values(numbers)
            shuffled = random.Random(str(numbers)).sample(numbers, NUMBERS)
            targets = [v for v, answers in values.items() if len(answers) >= fewest]
            texts += [f"{' '.join(map(str, shuffled))}={value}" for value in sorted(targets)]
        texts = [text for text in texts if in_test(text) == (split == "test")]
        self.prompts = [
            Prompt(f"countdown/{text}", text=f"{text}=", reference=text)
            for text in limited(texts, limit, seed)
        ]

    def answers(self, reference: str) -> frozenset[str]:
        """All correct answers to a prompt, numbers in canonical order."""
        numbers, target = _parse(reference)
        return frozenset(_values(numbers)[target])

    def answer(self, response_text: str, reference: str | None) -> str | None:
        """The correct answer that a response gives, without its "#"; None where it gives none."""
        if reference is None:
            raise ValueError("A countdown reward needs a reference, got None.")
        if not _ANSWER.fullmatch(response_text):
            return None
        numbers, target = _parse(reference)
        signed = re.findall(r"([+c])(\d)", f"+{response_text}")
        added = [int(x) for sign, x in signed if sign == "+"]
        taken = [int(x) for sign, x in signed if sign == "c"]
        used = added + taken
        allowed = len(set(used)) == len(used) and set(used) <= set(numbers)
        return _written(added, taken) if allowed and sum(added) - sum(taken) == target else None

    def reward(self, response_text: str, reference: str | None) -> float:
        """1 for a correct answer, whichever it is, else 0."""
        return float(self.answer(response_text, reference) is not None)

    def demonstrations(self, n: int, seed: int) -> list[tuple[Prompt, str]]:
        """Draw prompts with replacement and let the demonstrator answer them."""
        rng = random.Random(seed)
        answers = {p.key: sorted(self.answers(str(p.reference))) for p in self.prompts}
        pairs: list[tuple[Prompt, str]] = []
        for prompt in rng.choices(self.prompts, k=n):
            text = rng.choice(answers[prompt.key])
            if rng.random() < self._slip:
                place = rng.randrange(0, len(text), 2)
                others = [d for d in _parse(str(prompt.reference))[0] if str(d) != text[place]]
                text = f"{text[:place]}{rng.choice(others)}{text[place + 1 :]}"
            pairs.append((prompt, f"{text}#"))
        return pairs


def _parse(reference: str) -> tuple[tuple[int, ...], int]:
    numbers, target = reference.split("=")
    return tuple(map(int, numbers.split())), int(target)


def _values(numbers: tuple[int, ...]) -> dict[int, list[str]]:
    """Every positive value that the numbers reach, and how."""
    expressions: dict[int, list[str]] = {}
    for signs in product((0, 1, -1), repeat=len(numbers)):
        added = [x for x, sign in zip(numbers, signs, strict=True) if sign == 1]
        subtracted = [x for x, sign in zip(numbers, signs, strict=True) if sign == -1]
        value = sum(added) - sum(subtracted)
        if added and value > 0:
            expressions.setdefault(value, []).append(_written(added, subtracted))
    return expressions


def _written(added: list[int], subtracted: list[int]) -> str:
    plus = "+".join(map(str, sorted(added, reverse=True)))
    return plus + "".join(f"c{x}" for x in sorted(subtracted, reverse=True))
