"""Names of tasks, and of what rewards.

A task of the user's own is a function or a class in a Python file, named "file.py:name".
"package.module:name" names one of an installed package. Nothing is imported here, so that a
configuration is read without the libraries of tasks.
"""

import re

TASKS = {
    "gsm8k": "isentrope.sampling.tasks.gsm8k:GSM8K",
    "gsm8k_r1_template": "isentrope.sampling.tasks.gsm8k:GSM8K",
    "addition": "isentrope.sampling.tasks.addition:Addition",
    "addition_chat": "isentrope.sampling.tasks.addition:ChatAddition",
    "prompts": "isentrope.sampling.tasks.prompt_file:PromptFile",
}
"""Names that `load_task` accepts, and their classes."""

NAME = re.compile(r"(?:(?P<file>.+\.py)|(?P<module>[A-Za-z_][\w.]*)):(?P<name>[A-Za-z_]\w*)")
"""A task of the user's own."""


def is_task(name: str) -> bool:
    """Whether `load_task` accepts a name: one of `TASKS`, or "file.py:name" (several, by ", ")."""
    return name in TASKS or all(NAME.fullmatch(part) for part in name.split(", "))


def files_of_task(name: str) -> list[str]:
    """The parts of a name that are of Python files, "file.py:name"; none of names and modules."""
    matches = [NAME.fullmatch(part) for part in name.split(", ")]
    return [match[0] for match in matches if match and match["file"]]


def function_names(name: str) -> tuple[str, ...]:
    """Names of the functions of a task as a trainer logs them; empty for a task of the library."""
    return () if name in TASKS else tuple(part.rpartition(":")[2] for part in name.split(", "))


def describe_reward(task: object) -> str:
    """What messages call that which rewards.

    Args:
        task: A task, or a function of rollouts.

    Returns:
        The names of reward functions, or that of the class of a task.
    """
    name = getattr(task, "reward_name", None) or getattr(task, "__name__", type(task).__name__)
    return str(name)
