"""Addition: an offline task with everything a reasoning task has, small enough for a laptop.

A prompt "47+85=" is answered by column work and a result, in one of three styles:

    long     7+5=12 4+8+1=13 #132
    sums     12 13 #132
    digits   2c1 3c1 #132

A demonstrator picks a style at random and slips in a column (one too many or too few) with a given
probability, which is lower for styles with more written work; the slip is carried on. A policy
fine-tuned on it is correct about as often as incorrect, in many ways, so it has entropy that
reinforcement learning can reduce.

The split of a pair (a, b) depends on a digest of the pair alone: train and test are disjoint.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from fractions import Fraction
from string import Formatter
from typing import TYPE_CHECKING, Any

from isentrope.sampling.prompt import Prompt
from isentrope.sampling.tasks.task import (
    in_test,
    limited,
    require_probability,
    require_split,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

STYLES = {"long": 0.5, "sums": 1.0, "digits": 1.5}
"""How column work is written; the demonstrator takes each with probability 1/3, and slips more
often by this factor the less is written down."""

CHARACTERS = "0123456789+=# c"
PAD_ID = 0
EOS_ID = 1

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


class Addition:
    """Sums of two numbers of `digits` digits, written "47+85=" for the character tokenizer.

    Attributes:
        prompts: All pairs of the split, or `limit` of them in seeded order; keys
            "addition/47+85".
        slip: Probability of a demonstrator's slip per column, on average over styles.
    """

    def __init__(
        self,
        split: str = "train",
        *,
        digits: int = 2,
        limit: int | None = None,
        seed: int = 0,
        slip: float = 0.18,
    ) -> None:
        """Choose the pairs.

        Args:
            split: "train" or "test"; disjoint for all values of the other arguments.
            digits: Digits of each number, 1 to 3.
            limit: Number of prompts, all by default.
            seed: Order in which `limit` takes them.
            slip: Probability of a demonstrator's slip per column, on average over styles.

        Raises:
            ValueError: If an argument is out of range.
        """
        self.require_values(split, {"digits": digits, "slip": slip, "seed": seed})
        self.slip = slip
        numbers = range(0 if digits == 1 else 10 ** (digits - 1), 10**digits)
        for_test = split == "test"
        pairs = [(a, b) for a in numbers for b in numbers if in_test(f"{a}+{b}") == for_test]
        self.prompts = [self._make_prompt(a, b) for a, b in limited(pairs, limit, seed)]

    @staticmethod
    def require_values(split: str, options: Mapping[str, Any]) -> None:
        """Refuse a split or options that there are not."""
        require_probability("slip", options.get("slip", 0))
        require_split(split, "Addition")
        seed = options.get("seed", 0)
        if not isinstance(seed, int):
            raise ValueError(f"seed must be a whole number, got {seed!r}.")
        digits = options.get("digits", 1)
        if digits not in (1, 2, 3):
            raise ValueError(f"digits must be 1, 2 or 3, got {digits}.")
        if "question" in options:
            _require_question(options["question"])

    def _make_prompt(self, a: int, b: int) -> Prompt:
        return Prompt(f"addition/{a}+{b}", text=f"{a}+{b}=", reference=str(a + b))

    def reward(self, response_text: str, reference: str | None) -> float:
        """1 if the last number in the response is the sum, else 0."""
        if reference is None:
            raise ValueError("An addition reward needs a reference answer, got None.")
        numbers = _NUMBER.findall(response_text)
        return float(
            bool(numbers) and Fraction(numbers[-1].replace(",", "")) == Fraction(reference)
        )

    def demonstrations(self, n: int, seed: int) -> list[tuple[Prompt, str]]:
        """Draw prompts with replacement and let the demonstrator answer them."""
        rng = random.Random(seed)
        chosen = rng.choices(self.prompts, k=n)
        return [
            (p, demonstrate(*numbers_of(p), rng.choice(list(STYLES)), self.slip, rng))
            for p in chosen
        ]


def _require_question(question: Any) -> None:
    """Refuse a question that cannot be filled in with two numbers and no more."""
    form = "question is a text with {a} and {b} in it"
    if not isinstance(question, str):
        raise ValueError(f"{form}, not {question!r}.")
    try:
        question.format(a=0, b=0)
        names = {part[1] for part in Formatter().parse(question)}
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{form} and nothing else in braces, not {question!r} (braces are {{{{ and }}}})."
        ) from error
    if not {"a", "b"} <= names:
        raise ValueError(f"{form}, not {question!r}.")


class ChatAddition(Addition):
    """The same sums asked in plain words through a chat template, for an instruction-tuned model.

    Attributes:
        prompts: Keys "addition_chat/3+4".
    """

    def __init__(
        self,
        split: str = "train",
        *,
        digits: int = 1,
        limit: int | None = None,
        seed: int = 0,
        question: str = "What is {a} + {b}?",
    ) -> None:
        """Choose the pairs.

        Args:
            split: "train" or "test".
            digits: Digits of each number, 1 to 3.
            limit: Number of prompts, all by default.
            seed: Order in which `limit` takes them.
            question: Text with {a} and {b} in it.

        Raises:
            ValueError: If an argument is out of range.
        """
        self.require_values(split, {"question": question})
        self._question = question
        super().__init__(split, digits=digits, limit=limit, seed=seed)

    def demonstrations(self, n: int, seed: int) -> list[tuple[Prompt, str]]:
        """Draw prompts with replacement, answered in one short sentence without slips."""
        chosen = random.Random(seed).choices(self.prompts, k=n)
        return [(p, f"{a} + {b} = {a + b}.") for p in chosen for a, b in [numbers_of(p)]]

    def _make_prompt(self, a: int, b: int) -> Prompt:
        messages = ({"role": "user", "content": self._question.format(a=a, b=b)},)
        return Prompt(f"addition_chat/{a}+{b}", reference=str(a + b), messages=messages)


def demonstrate(
    a: int, b: int, style: str, slip: float, rng: random.Random, *, carries: bool = True
) -> str:
    """Add two numbers by columns, units first, as an imperfect teacher would.

    Args:
        a: First number.
        b: Second number.
        style: One of `STYLES`.
        slip: Probability of a slip per column, times the factor of the style.
        rng: Random numbers.
        carries: Whether a carry is added to the next column, or dropped.

    Returns:
        Column work and result.
    """
    work: list[str] = []
    result = ""
    carry = 0
    for x, y in columns(a, b):
        total = x + y + carry
        if rng.random() < slip * STYLES[style]:
            total += rng.choice((1, -1)) if total else 1
        plus = f"+{carry}" if carry else ""
        tens, digit = divmod(total, 10)
        carry = tens if carries else 0
        result = f"{digit}{result}"
        written = {"long": f"{x}+{y}{plus}={total}", "sums": f"{total}"}
        work.append(written.get(style, f"{digit}c{tens}"))
    return f"{' '.join(work)} #{carry or ''}{result}"


def longest_response(digits: int) -> int:
    """Tokens of the longest demonstration, EOS counted.

    Args:
        digits: Digits of each number.

    Returns:
        A length that fits every style.
    """
    return (len("9+9+1=19 ") * digits) + len("#1") + digits + 1


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character; <pad> is 0, <eos> is 1.

    Returns:
        A tokenizer that `save_pretrained` writes as tokenizer.json.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


def numbers_of(prompt: Prompt) -> tuple[int, int]:
    """The two numbers of a prompt.

    Args:
        prompt: A prompt with a key such as "addition/47+85".

    Returns:
        (a, b).
    """
    a, b = prompt.key.rsplit("/", 1)[1].split("+")
    return int(a), int(b)


def columns(a: int, b: int) -> list[tuple[int, int]]:
    """The digits of two numbers, column by column, units first.

    Args:
        a: First number.
        b: Second number.

    Returns:
        Pairs of digits.
    """
    places = range(len(str(max(a, b))))
    return [(a // 10**k % 10, b // 10**k % 10) for k in places]
