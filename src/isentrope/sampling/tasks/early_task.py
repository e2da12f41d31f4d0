"""A task that is made before the work, where that takes no library of tensors and little time.

Its class refuses what it always refuses, and verbs look whether it has the prompts that they need.
None stands for a task that the work alone can make: of a large file, of a table of csv, of the hub,
or one that a Python file of the user's defines.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from isentrope.sampling.prompt import Prompt, name_prompts
from isentrope.sampling.tasks.lines import NO_REFERENCE
from isentrope.sampling.tasks.names import TASKS
from isentrope.sampling.tasks.prompt_file import PromptFile
from isentrope.sampling.tasks.requirements import are_functions
from isentrope.sampling.tasks.task import Task

_MOST_BYTES = 2**20
"""Size of a file that is read in a quarter of a second."""
_MOST_DIGITS = 2
"""Digits of the longest sums that are listed as fast."""


def early_task(name: str, split: str, path: str | None, options: Mapping[str, Any]) -> Task | None:
    """Make a task, or leave it to the work.

    Args:
        name: As `load_task` takes it.
        split: Of the data set.
        path: File or folder of the data set.
        options: Of the task.

    Returns:
        The task; of reward functions that of their prompts, which rewards by references.

    Raises:
        ValueError: What the task refuses.
    """
    task = _made(name, split, path, options)
    if task is not None:
        name_prompts(task.prompts)
    return task


def _made(name: str, split: str, path: str | None, options: Mapping[str, Any]) -> Task | None:
    """The task by its class; None where that takes time."""
    if name == "prompts" or (name not in TASKS and are_functions(name)):
        if path is None or not _is_small(Path(path)):
            return None
        return PromptFile(path, split, test_share=options.get("test_share", 0.0))
    if name not in TASKS or options.get("digits", 0) > _MOST_DIGITS:
        return None
    make = resolve_name(TASKS[name])
    if path is not None:
        file = Path(path, f"{split}.jsonl") if Path(path).is_dir() else Path(path)
        return make(split, path, **options) if _is_small(file) else None
    return None if name.startswith("gsm8k") else make(split, **options)


def _is_small(file: Path) -> bool:
    """Whether a file is read at once; one that is missing is refused at once."""
    return file.suffix != ".csv" and (not file.is_file() or file.stat().st_size <= _MOST_BYTES)


def require_references_of(name: str, prompts: Sequence[Prompt], number: int | None = None) -> None:
    """Refuse prompts without references where these reward the responses.

    Args:
        name: Of the task.
        prompts: Its prompts.
        number: How many of them are drawn; None for all.

    Raises:
        ValueError: If one that is drawn has no reference, whichever they are.
    """
    without = sum(prompt.reference is None for prompt in prompts)
    drawn = len(prompts) if number is None else number
    if name == "prompts" and without + drawn > len(prompts):
        raise ValueError(NO_REFERENCE)
