"""Tasks: prompts with a reward for the response. `load_task` finds them by name."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from isentrope.sampling.tasks.python_file import NAME, load_python_task, require_options
from isentrope.sampling.tasks.task import Task

TASKS = ("gsm8k", "gsm8k_r1_template", "addition", "addition_chat", "prompts")
"""Names that `load_task` accepts."""


def is_task(name: str) -> bool:
    """Whether `load_task` accepts a name: one of `TASKS`, or "file.py:name"."""
    return name in TASKS or NAME.fullmatch(name) is not None


def load_task(
    name: str,
    split: str = "train",
    path: str | Path | None = None,
    **options: Any,
) -> Task:
    """Find a task by name.

    Args:
        name: "gsm8k" (or "gsm8k_r1_template"), "addition", "addition_chat", "prompts" for a jsonl
            file of your own, or "file.py:name" for a reward function or a task of your own.
        split: "train" or "test"; "prompts" has no splits and takes any.
        path: For "gsm8k" a jsonl file or folder (without it: the `datasets` library); needed for
            "prompts" and for reward functions; "addition" is generated and takes none.
        **options: Keyword-only arguments of the task's class (`digits`, `limit`, `template`, ...).

    Returns:
        The task.

    Raises:
        ValueError: If the name or an option is unknown, or `path` is missing or has no effect.
    """
    # Imported here: a configuration asks for names alone.
    from isentrope.sampling.tasks.addition import Addition, ChatAddition
    from isentrope.sampling.tasks.custom import PromptFile
    from isentrope.sampling.tasks.gsm8k import GSM8K

    if NAME.fullmatch(name):
        return load_python_task(name, split, path, options)
    if name.startswith("addition") and path is not None:
        raise ValueError(f"The task {name!r} is generated and reads no file, got path={path}.")
    if name == "prompts" and path is None:
        raise ValueError('The task "prompts" needs the path of a jsonl file.')
    sources: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "gsm8k": (GSM8K, (split, path)),
        "gsm8k_r1_template": (GSM8K, (split, path)),
        "addition": (Addition, (split,)),
        "addition_chat": (ChatAddition, (split,)),
        "prompts": (PromptFile, (path,)),
    }
    if name not in sources:
        nearest = get_close_matches(name, TASKS, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"Unknown task {name!r}: the nearest is {nearest!r}; choose one of "
            f"{', '.join(TASKS)}, or file.py:name."
        )
    kind, arguments = sources[name]
    require_options(name, kind, options)
    return kind(*arguments, **options)
