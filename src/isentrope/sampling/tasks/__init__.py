"""Tasks: prompts with a reward for the response. `load_task` finds them by name.

A task of the user's own is a function or a class in a Python file, named "file.py:name". A function
rewards the prompts of a jsonl file. It has one of two forms:

    def reward(response_text: str, reference: str | None) -> float
    def reward(completions: list[str], reference: list, **kwargs) -> list[float]      as in TRL

A class (called with the split, if it takes an argument, and with options by keyword) or an object
with `prompts` and `reward` is a whole task. The file is run when the task is loaded, as any script
of the user's own.
"""

import inspect
import re
import runpy
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from isentrope.sampling.tasks.addition import Addition, ChatAddition
from isentrope.sampling.tasks.custom import PromptFile
from isentrope.sampling.tasks.gsm8k import GSM8K
from isentrope.sampling.tasks.task import Task

TASKS: dict[str, Callable[..., Task]] = {
    "gsm8k": GSM8K,
    "gsm8k_r1_template": GSM8K,
    "addition": Addition,
    "addition_chat": ChatAddition,
    "prompts": PromptFile,
}
"""Names that `load_task` accepts, and their classes."""

NAME = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")
"""A task of the user's own."""


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
        FileNotFoundError: If there is no such Python file.
        ValueError: If the name or an option is unknown, `path` is missing or has no effect, or the
            file does not run or holds no such task.
    """
    match = NAME.fullmatch(name)
    if not is_task(name):
        nearest = get_close_matches(name, TASKS, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"Unknown task {name!r}: the nearest is {nearest!r}; choose one of "
            f"{', '.join(TASKS)}, or file.py:name."
        )
    target = _of_file(Path(match["file"]).expanduser(), match["name"]) if match else TASKS[name]
    takes: Mapping[str, inspect.Parameter] = {}
    if isinstance(target, type):
        takes = inspect.signature(target).parameters
    accepted = [option for option, p in takes.items() if p.kind is p.KEYWORD_ONLY]
    if unknown := [option for option in options if option not in accepted]:
        has = f"its options are {', '.join(accepted)}" if accepted else "it has none"
        raise ValueError(f"The task {name!r} has no option {unknown[0]!r}: {has}.")
    if match:
        if isinstance(target, type):
            arguments = (split,) if len(takes) > len(accepted) else ()
            target = target(*arguments, **options)
        if isinstance(target, Task):
            return target
        if not callable(target) or path is None:
            raise ValueError(
                f"The task {name} is neither an object with prompts and reward, nor a reward "
                "function with prompts: set dataset_path to a jsonl file of "
                '{"prompt": ..., "reference": ...}.'
            )
        return RewardedPrompts(path, target, name)
    if "path" not in takes and path is not None:
        raise ValueError(f"The task {name!r} is generated and reads no file, got path={path}.")
    if "split" not in takes and path is None:
        raise ValueError(f'The task "{name}" needs the path of a jsonl file.')
    given = {"split": split, "path": path}
    return target(**{key: given[key] for key in takes if key in given}, **options)


def _of_file(file: Path, name: str) -> Any:
    """What a Python file defines."""
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file} (task {file}:{name}).")
    try:
        defined = runpy.run_path(str(file), run_name=f"isentrope_task_{file.stem}")
    except Exception as error:  # any error of the user's file
        raise ValueError(f"{file} does not run: {type(error).__name__}: {error}") from error
    if name not in defined:
        raise ValueError(f"{file} defines no {name!r} (task {file}:{name}).")
    return defined[name]


class RewardedPrompts(PromptFile):
    """Prompts of a jsonl file, rewarded by a function."""

    def __init__(self, path: str | Path, function: Callable[..., Any], name: str) -> None:
        """Read the prompts.

        Args:
            path: A jsonl file.
            function: The reward function, of either form.
            name: What messages call it.

        Raises:
            ValueError: If the function needs arguments that are not known here.
        """
        super().__init__(path)
        self._function, self._name = function, name
        try:
            self._bound("", "")
        except TypeError as error:
            raise ValueError(
                f"The reward function {name} cannot be called ({error}): it is called as "
                "reward(response_text, reference), or with completions and reference as lists."
            ) from error

    def _bound(self, text: str, reference: str | None) -> inspect.BoundArguments:
        """The arguments of a call, in the form that the function has."""
        signature = inspect.signature(self._function)
        parameters = signature.parameters
        if "completions" not in parameters:
            return signature.bind(text, reference)
        lists = {"completions": [text], "reference": [reference]}
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        return signature.bind(**{k: v for k, v in lists.items() if takes_all or k in parameters})

    def reward(self, response_text: str, reference: str | None) -> float:
        """The function's reward of one response.

        Args:
            response_text: The decoded response.
            reference: The prompt's reference answer.

        Returns:
            Its reward.

        Raises:
            ValueError: If the function fails or does not return a number.
        """
        try:
            bound = self._bound(response_text, reference)
            value = self._function(*bound.args, **bound.kwargs)
            return float(value[0] if "completions" in bound.arguments else value)
        except Exception as error:  # any error of the user's function
            raise ValueError(
                f"The reward function {self._name} failed on the response {response_text!r}: "
                f"{type(error).__name__}: {error}"
            ) from error
