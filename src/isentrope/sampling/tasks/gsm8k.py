r"""GSM8K with the R1 template (arXiv 2110.14168; template of arXiv 2501.12948).

The reward is 1 where the response's last answer is the reference number. Where an answer stands is
the option `answer`: in <answer> … </answer> (`tag`), in \boxed{…} (`boxed`), after ####
(`hash`), or the last number of the response (`last_number`). Which texts are a number:
`answers.read_number`.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from isentrope.sampling.prompt import Prompt
from isentrope.sampling.tasks.answers import PLACES, read_number
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

_FORMAT = re.compile(
    r"(?:(?!</?(?:think|answer)>).)*</think>\s*"
    r"<answer>(?:(?!</?(?:think|answer)>).)+</answer>\s*",
    re.DOTALL,
)
_MARKS = re.compile(r"<<.*?>>")
"""Calculator annotations."""

_ENDINGS = {
    "tag": " {solution} </think> <answer>{answer}</answer>",
    "boxed": " {solution} \\boxed{{{answer}}}",
    "hash": " {solution}\n#### {answer}",
    "last_number": " {solution} The answer is {answer}",
}
"""How a demonstration ends, by the place of its answer."""

_MARKED = {"boxed": "\\boxed{", "hash": "####"}


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
        answer: str = "tag",
    ) -> None:
        """Read the problems.

        Args:
            split: "train" or "test".
            path: A jsonl file of {"question", "answer"}, or a folder with <split>.jsonl; without
                it the problems come through the `datasets` library.
            template: Text with a {question} in it.
            answer: Where the answer of a response stands: "tag", "boxed", "hash" or "last_number".
                The template should ask for it.

        Raises:
            ValueError: If the split or the place is unknown, or a row has no question or no final
                answer that is one number.
        """
        self.require_values(split, {"template": template, "answer": answer})
        rows = _rows_from_hub(split) if path is None else _rows_from_file(Path(path), split)
        if not rows:
            raise ValueError(f"The GSM8K split {split!r} in {path} is empty.")
        self._place = answer
        self.prompts = [_prompt(row, key, place, template) for key, place, row in rows]
        self._solutions = [_MARKS.sub("", row["answer"].rsplit("####", 1)[0]) for *_, row in rows]

    @staticmethod
    def require_values(split: str, options: Mapping[str, Any]) -> None:
        """Refuse a split or options that there are not."""
        require_split(split, "GSM8K")
        answer = options.get("answer", "tag")
        if answer not in [*PLACES]:
            raise ValueError(
                f"answer says where the answer stands, one of {', '.join(PLACES)}, not {answer!r}."
            )
        template = options.get("template", R1_TEMPLATE)
        if not isinstance(template, str) or "{question}" not in template:
            raise ValueError(f"template is a text with a {{question}} in it, not {template!r}.")

    def reward(self, response_text: str, reference: str | None) -> float:
        """1 if the response's answer equals the reference, else 0."""
        if reference is None:
            raise ValueError("A GSM8K reward needs a reference answer, got None.")
        if (correct := read_number(reference)) is None:
            raise ValueError(
                f"The reference {reference[:80]!r} of a GSM8K reward is not one number: correct it."
            )
        answer = PLACES[self._place](response_text)
        return float(answer is not None and read_number(answer) == correct)

    def readable(self, response_text: str) -> bool:
        """Whether the response has an answer that is one number, correct or not."""
        answer = PLACES[self._place](response_text)
        return answer is not None and read_number(answer) is not None

    def demonstrations(self, n: int, seed: int) -> list[tuple[Prompt, str]]:
        """The data set's own solutions in the template's format, in passes of random order."""
        ending = _ENDINGS[self._place]
        return [
            (
                self.prompts[i],
                ending.format(
                    solution=self._solutions[i].strip(), answer=self.prompts[i].reference
                ),
            )
            for i in shuffled_epochs(len(self.prompts), n, seed)
        ]

    def format_reward(self, response_text: str) -> float:
        """1 for the form of the answer's place, whatever the answer is, else 0.

        Args:
            response_text: The decoded response.

        Returns:
            With "tag" 1 for reasoning, </think>, one <answer> … </answer> and no more; with "boxed"
            and "hash" for one such mark with a text; with "last_number" for a number.
        """
        if self._place == "tag":
            return float(_FORMAT.fullmatch(response_text) is not None)
        marks = response_text.count(_MARKED[self._place]) if self._place in _MARKED else 1
        return float(marks == 1 and bool(PLACES[self._place](response_text)))


def _prompt(row: Mapping[str, Any], key: str, place: str, template: str) -> Prompt:
    texts = all(isinstance(row.get(name), str) for name in ("question", "answer"))
    if not texts or "####" not in row["answer"]:
        raise ValueError(
            f"{place} is not a problem of GSM8K: it needs a 'question' and an 'answer' that ends "
            f"in '#### number', both texts, and has the fields {sorted(row) or 'none'}."
        )
    reference = row["answer"].rsplit("####", 1)[1].strip().replace(",", "")
    if read_number(reference) is None:
        raise ValueError(
            f"{place} has the answer {reference[:80]!r} after '####', which is not one number: "
            "correct the line, or omit it."
        )
    text = template.replace("{question}", row["question"])
    return Prompt(key, text=text, reference=reference)


_Rows = list[tuple[str, str, Mapping[str, Any]]]
"""Key, what messages call it, and content of each row."""


def _rows_from_file(path: Path, split: str) -> _Rows:
    file = path / f"{split}.jsonl" if path.is_dir() else path
    rows = read_json_lines(file, "Correct the line.")
    return [
        (f"gsm8k/{file.stem}/{i}", f"{file}, line {line},", row if isinstance(row, dict) else {})
        for i, (line, row) in enumerate(rows)
    ]


def _rows_from_hub(split: str) -> _Rows:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError(
            "GSM8K without a path comes through datasets: pip install 'isentrope[gsm8k]', or give "
            "the path of a jsonl file."
        ) from error
    rows = cast(Any, load_dataset(HUB_ID, "main", split=split))
    return [(f"gsm8k/{split}/{i}", f"Row {i} of {HUB_ID}", row) for i, row in enumerate(rows)]
