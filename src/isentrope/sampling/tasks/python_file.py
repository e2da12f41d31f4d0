"""A task of the user's own: a function or a class in a Python file, named "file.py:name".

A function rewards the prompts of a jsonl file. It has one of two forms:

    def reward(response_text: str, reference: str | None) -> float
    def reward(completions: list[str], reference: list, **kwargs) -> list[float]      as in TRL

A class (called with the split, if it takes an argument, and with options by keyword) or an object
with `prompts` and `reward` is a whole task. The file is run when the task is loaded, as any script
of the user's own.
"""

import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from isentrope.sampling.tasks.custom import PromptFile
from isentrope.sampling.tasks.task import Task

NAME = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")


def load_python_task(
    name: str, split: str, path: str | Path | None, options: Mapping[str, Any]
) -> Task:
    """Load a task from a Python file.

    Args:
        name: "file.py:name".
        split: Split that a class is called with.
        path: jsonl file with the prompts of a reward function.
        options: Keyword arguments of a class.

    Returns:
        The task.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file does not run, has no such name, the name is not a task, or an option
            is unknown.
    """
    match = NAME.fullmatch(name)
    assert match is not None
    file = Path(match["file"]).expanduser()
    target = getattr(_run(file, name), match["name"], None)
    if target is None:
        raise ValueError(f"{file} defines no {match['name']!r} (task {name}).")
    require_options(name, target, options)
    if isinstance(target, type):
        takes_split = len(inspect.signature(target).parameters) > len(_keywords(target))
        target = target(split, **options) if takes_split else target(**options)
    if isinstance(target, Task):
        return target
    if not callable(target):
        raise ValueError(
            f"The task {name} is neither a reward function nor an object with prompts and reward."
        )
    if path is None:
        raise ValueError(
            f"The task {name} is a reward function, which needs prompts: set dataset_path to a "
            'jsonl file of {"prompt": ..., "reference": ...}.'
        )
    return RewardedPrompts(path, target, name)


def require_options(name: str, target: Any, options: Mapping[str, Any]) -> None:
    """Refuse options that a task does not have.

    Args:
        name: The task's name.
        target: Its class, whose keyword-only arguments are its options; anything else has none.
        options: Options by name.

    Raises:
        ValueError: Naming the first unknown option, and those that exist.
    """
    accepted = _keywords(target) if isinstance(target, type) else []
    if unknown := [option for option in options if option not in accepted]:
        has = f"its options are {', '.join(accepted)}" if accepted else "it has none"
        raise ValueError(f"The task {name!r} has no option {unknown[0]!r}: {has}.")


def _keywords(target: Any) -> list[str]:
    every = inspect.signature(target).parameters.items()
    return [name for name, p in every if p.kind is p.KEYWORD_ONLY]


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


def _run(file: Path, name: str) -> ModuleType:
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file} (task {name}).")
    spec = importlib.util.spec_from_file_location(f"isentrope_task_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # any error of the user's file
        raise ValueError(f"{file} does not run: {type(error).__name__}: {error}") from error
    return module
