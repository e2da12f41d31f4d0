"""The sections that say how responses are drawn, and what is written (`config`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_args

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from isentrope.config.paths import PATHS
from isentrope.config.values import AnyValues, Name, PathText, Text
from isentrope.sampling.tasks.names import TASKS, is_task
from isentrope.sampling.tasks.requirements import require_task
from isentrope.system.manifest import verification
from isentrope.system.number_types import Count, Real, Temperature, Whole

if TYPE_CHECKING:
    from isentrope.sampling.tasks.task import Task

LogLevel = Literal["minimal", "standard", "detailed", "debug"]


Refusals = Iterable[tuple[object, str]]
"""(whether settings are impossible together, the words about it)."""


class Section(BaseModel):
    """A frozen group of keys; numbers are finite, and only numbers."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        strict=True,
        allow_inf_nan=False,
    )

    @model_validator(mode="after")
    def _refuse_impossible(self) -> Self:
        for impossible, words in self.refusals():
            if impossible:
                raise ValueError(words)
        return self

    def refusals(self) -> Refusals:
        """What cannot be set together, and the words about it."""
        return ()


_NAMES = {"task": "dataset_name", "backbone": "base_model"}
OTHER_NAME = _NAMES | {name: other for other, name in _NAMES.items()}
"""The other name of each key that has two."""


def under_one_name(content: Any, alias: str, name: str) -> Any:
    """Replace another name of a key by the key's own.

    Args:
        content: Of a section, as it was read.
        alias: The other name.
        name: The key's own.

    Returns:
        The content with the key's own name; unchanged where the other one is not in it.

    Raises:
        ValueError: If both are given.
    """
    if not isinstance(content, Mapping) or alias not in content:
        return content
    if name in content:
        raise ValueError(f"{alias} and {name} are two names of one key: give one of them")
    return {k: v for k, v in content.items() if k != alias} | {name: content[alias]}


class PromptsConfig(Section):
    """How the prompts of a task are put to the policy."""

    chat_template: bool = False
    """Put each prompt into the tokenizer's chat template, as the user's turn."""
    system_prompt: Text | None = None
    """First message of every conversation (with chat_template); null: none."""
    chat_template_kwargs: AnyValues = {}
    """Arguments of the chat template, such as enable_thinking: false, also for files' messages."""
    dataset_options: AnyValues = {}
    """Options of the task of dataset_name, such as digits: 3 of addition."""

    @model_validator(mode="before")
    @classmethod
    def _task_is_another_name(cls, content: Any) -> Any:
        """Accept `task` for `dataset_name`, and a list of reward functions."""
        renamed = under_one_name(content, "task", "dataset_name")
        if not isinstance(renamed, Mapping):
            return renamed
        lists = {
            name: ", ".join(renamed[name])
            for name in ("dataset_name", "U_dataset_name")
            if isinstance(renamed.get(name), list)
            and all(isinstance(x, str) for x in renamed[name])
        }
        return {**renamed, **lists} if lists else renamed

    @field_validator("dataset_name", "U_dataset_name", check_fields=False)
    @classmethod
    def _known_task(cls, value: str | None) -> str | None:
        if value is not None and not is_task(value):
            raise ValueError(f"choose one of {', '.join(TASKS)}, or file.py:name, not {value!r}")
        return value

    def refusals(self) -> Refusals:
        """A system prompt without conversations."""
        has_prompt = self.system_prompt is not None
        yield has_prompt and not self.chat_template, "system_prompt acts with chat_template: true"

    def require_files(self, section: str = "data") -> None:
        """Refuse files that are missing, before any work is done.

        Args:
            section: The name of this section.

        Raises:
            FileNotFoundError: Naming the key and the path.
            ValueError: If the file of a task does not define its name.
        """
        for key in PATHS[section]:
            path = getattr(self, key)
            if path is not None and not Path(path).exists():
                raise FileNotFoundError(f"There is no file {path} ({section}.{key}).")
        with verification(False):  # the work itself verifies what it reads
            for name, path, split in self.tasks():
                require_task(name, path, self._options_of(name), split)

    def tasks(self) -> list[tuple[str, str | None, str]]:
        """The name, the file and the split of each task that the work makes."""
        raise NotImplementedError

    def load_task(self, name: str, split: str, path: str | None) -> Task:
        """Load a task with its prompts as this section wants them."""
        from isentrope.sampling.tasks.load import load_task

        return self._put(load_task(name, split, path, **self._options_of(name)))

    def early_task(self, name: str, split: str, path: str | None) -> Task | None:
        """The same before the work; None where only the work can load it."""
        from isentrope.sampling.tasks.early_task import early_task

        task = early_task(name, split, path, self._options_of(name))
        return None if task is None else self._put(task)

    def _options_of(self, name: str) -> dict[str, Any]:
        """The options of a task; a data set of U may be another than these are for."""
        return dict(self.dataset_options) if name == cast(Any, self).dataset_name else {}

    def _put(self, task: Task) -> Task:
        """A task whose prompts are put to the policy as this section wants them."""
        from isentrope.sampling.tasks.task import Conversations

        if not (self.chat_template or self.chat_template_kwargs):
            return task
        template = self.chat_template_kwargs
        return Conversations(task, self.system_prompt, template, texts=self.chat_template)


class TaskConfig(PromptsConfig):
    """Which task, and where its problems are."""

    dataset_name: Name = "gsm8k_r1_template"
    """A task by name (docs/tasks.md), prompts (a jsonl), or file.py:name."""
    dataset_path: PathText | None = None
    """File or folder of the data set; null: the task's own source."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the work reads."""
        raise NotImplementedError

    def tasks(self) -> list[tuple[str, str | None, str]]:
        """The one task, of each split."""
        return [(self.dataset_name, self.dataset_path, split) for split in self.splits]

    def task(self, split: str) -> Task:
        """The task, with the prompts of a split."""
        return self.load_task(self.dataset_name, split, self.dataset_path)


TOKENS_AT_ONCE = 8192
"""Padded tokens scored at a time where the settings leave it open."""
TOKENS_OF_A_CARD = 16_384
"""The same on a GPU, which waits for its host at half as many (docs/scale.md)."""


class SamplingConfig(Section):
    """How responses are drawn and scored."""

    temperature: Temperature = 1.0
    """Sampling temperature, also that of every log-probability and entropy."""
    max_new_tokens: Count = 150
    """Longest response, in tokens."""
    batch_size: Count = 64
    """Sequences sampled at a time; on a GPU the least, where its free memory holds more."""
    top_k: Whole = 0
    """0, always: a filtered sampler is not the policy that is measured."""
    top_p: Real = 1.0
    """1.0, always, for the same reason."""
    max_tokens: Count | None = None
    """Padded tokens scored at a time; null: 8192, on a GPU up to 16384 that its memory holds."""
    vocab_chunk: Count = 8192
    """Vocabulary entries whose logits are held at a time."""

    def refusals(self) -> Refusals:
        """Filters of the sampler."""
        yield (
            self.top_k != 0 or self.top_p != 1.0,
            f"top_k={self.top_k} and top_p={self.top_p} would sample from another policy than "
            "the one that is measured; only top_k=0 and top_p=1.0 are possible",
        )

    def most_tokens(self, *, on_card: bool) -> int:
        """Padded tokens that are scored at a time at most, where memory holds as many."""
        return self.max_tokens or (TOKENS_OF_A_CARD if on_card else TOKENS_AT_ONCE)


class LoggingConfig(Section):
    """A log of each measurement, from its numbers to its tokens."""

    enabled: bool = True
    """Write a log beside the results."""
    level: LogLevel = "standard"
    """minimal: results, timing; standard: + batches, weights; detailed: + sequences; debug: all."""
    log_sequences: bool | None = None
    """Table of sequences; null: from level detailed on."""
    log_tokens: bool | None = None
    """Table of tokens; null: at level debug."""
    log_raw_tensors: bool | None = None
    """The direction, its components and the scores as safetensors; null: at level debug."""
    output_directory: PathText | None = None
    """Where logs go; null: logs/ in the run folder."""
    compress: bool = False
    """gzip the log and its tables."""
    max_files: Whole = 0
    """Logs kept in the directory, the oldest go first, with their tables; 0: all."""

    def wants(self, part: Literal["statistics", "sequences", "tokens", "raw_tensors"]) -> bool:
        """Whether a part of the log is to be written: its own key says so, or else the level."""
        rank = get_args(LogLevel).index(self.level)
        needed = {"statistics": 1, "sequences": 2, "tokens": 3, "raw_tensors": 3}[part]
        choice = None if part == "statistics" else getattr(self, f"log_{part}")
        return self.enabled and (rank >= needed if choice is None else choice)


class OutputConfig(Section):
    """Where results go and how much is said on the way."""

    directory: PathText | None = None
    """Run folder; null: runs/run_YYYY-MM-DD_HH-MM-SS."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """What is said on the way; DEBUG also shows where an error was raised."""
