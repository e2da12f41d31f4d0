r"""GSM8K with the R1 template (arXiv 2110.14168; template of arXiv 2501.12948).

The reward is 1 where the last <answer> … </answer> of the response holds the reference number.
Numbers are compared exactly ("1,080", "$18.00" and "18" are read); what is not one plain number
("\frac{36}{2}", "x = 18") goes to math-verify where that is installed, and counts as incorrect
where not.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import re
import threading
from collections.abc import Mapping
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from isentrope.sampling.prompts import Prompt
from isentrope.sampling.tasks.task import require_split, shuffled_epochs
from isentrope.system.reading import read_json_lines

R1_TEMPLATE = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant "
    "solves it. The Assistant first thinks about the reasoning process in the mind and then "
    "provides the User with the answer. The reasoning process is enclosed within <think> </think> "
    "and answer is enclosed within <answer> </answer> tags, respectively, i.e., <think> reasoning "
    "process here </think> <answer> answer here </answer>.\n"
    "User: {question}\n"
    "Assistant: <think>"
)
"""Where the question goes, and where the response begins."""

HUB_ID = "openai/gsm8k"

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_FORMAT = re.compile(
    r"(?:(?!</?(?:think|answer)>).)*</think>\s*"
    r"<answer>(?:(?!</?(?:think|answer)>).)+</answer>\s*",
    re.DOTALL,
)
_MARKS = re.compile(r"<<.*?>>")
"""Calculator annotations."""
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?")


class GSM8K:
    """Grade-school word problems.

    Attributes:
        prompts: The split in file order, keys "gsm8k/<split>/<row>".
    """

    def __init__(
        self,
        split: str = "train",
        path: str | Path | None = None,
        *,
        template: str = R1_TEMPLATE,
    ) -> None:
        """Read the problems.

        Args:
            split: "train" or "test".
            path: A jsonl file of {"question", "answer"}, or a folder with <split>.jsonl; without
                it the problems come through the `datasets` library.
            template: Text with a {question} in it.

        Raises:
            ValueError: If the split is unknown or a row has no question or no final answer.
        """
        require_split(split, "GSM8K")
        rows, source = _rows_from_hub(split) if path is None else _rows_from_file(Path(path), split)
        self.prompts = [_prompt(row, i, source, template) for i, row in enumerate(rows)]
        if not self.prompts:
            raise ValueError(f"The GSM8K split {split!r} in {path} is empty.")
        self._solutions = [_MARKS.sub("", row["answer"].rsplit("####", 1)[0]) for row in rows]

    def reward(self, response_text: str, reference: str | None) -> float:
        """1 if the response's answer equals the reference, else 0."""
        if reference is None:
            raise ValueError("A GSM8K reward needs a reference answer, got None.")
        answers = _ANSWER.findall(response_text)
        if not answers:
            return 0.0
        answer, correct = number(answers[-1]), number(reference)
        if answer is not None and correct is not None:
            return float(answer == correct)
        return float(find_spec("math_verify") is not None and _verified(answers[-1], reference))

    def demonstrations(self, n: int, seed: int) -> list[tuple[Prompt, str]]:
        """The data set's own solutions in the template's format, in passes of random order."""
        return [
            (
                self.prompts[i],
                f" {self._solutions[i].strip()} </think> "
                f"<answer>{self.prompts[i].reference}</answer>",
            )
            for i in shuffled_epochs(len(self.prompts), n, seed)
        ]

    def format_reward(self, response_text: str) -> float:
        """1 for reasoning, </think>, one <answer> … </answer> and no more, else 0."""
        return float(_FORMAT.fullmatch(response_text) is not None)


def number(text: str) -> Fraction | None:
    """Read a text that is one plain number, exactly.

    Args:
        text: For example " $1,080. " or "-3.50".

    Returns:
        The number, or None if the text is anything else.
    """
    body = text.strip().removesuffix(".").removeprefix("$").strip()
    if not any(c.isdigit() for c in body) or _NUMBER.fullmatch(body) is None:
        return None
    return Fraction(body.replace(",", ""))


def _verified(answer: str, reference: str) -> bool:
    from math_verify import parse, verify

    # The library's timeout is a signal, which only the main thread may use.
    seconds: Any = 5 if threading.current_thread() is threading.main_thread() else None
    gold, parsed = (parse(text, parsing_timeout=seconds) for text in (reference, answer))
    return bool(verify(gold, parsed, timeout_seconds=seconds))


def _prompt(row: Mapping[str, Any], i: int, split: str, template: str) -> Prompt:
    texts = all(isinstance(row.get(name), str) for name in ("question", "answer"))
    if not texts or "####" not in row["answer"]:
        raise ValueError(
            f"Row {i} of GSM8K {split} is not a problem: it needs a 'question' and an 'answer' "
            f"that ends in '#### number', both texts, and has the fields {sorted(row) or 'none'}."
        )
    reference = row["answer"].rsplit("####", 1)[1].strip().replace(",", "")
    text = template.replace("{question}", row["question"])
    return Prompt(f"gsm8k/{split}/{i}", text=text, reference=reference)


def _rows_from_file(path: Path, split: str) -> tuple[list[dict[str, Any]], str]:
    """The rows, and what they are called."""
    file = path / f"{split}.jsonl" if path.is_dir() else path
    rows = read_json_lines(file, "Correct the line.")
    return [row if isinstance(row, dict) else {} for _, row in rows], file.stem


def _rows_from_hub(split: str) -> tuple[list[dict[str, Any]], str]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError(
            "GSM8K without a path comes through datasets: pip install 'isentrope[gsm8k]', or give "
            "the path of a jsonl file."
        ) from error
    return list(cast(Any, load_dataset(HUB_ID, "main", split=split))), split
