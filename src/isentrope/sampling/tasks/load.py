"""Loading a task by its name (`isentrope.sampling.tasks.names`).

A function of the user's own rewards the prompts of a file, in a form of
`isentrope.sampling.tasks.rewards`; several, separated by ", ", are summed with the option
`weights`. With the option `test_share` the file has the splits train and test.

A class (called with the split, if it takes an argument, and with options by keyword) or an object
with `prompts` and `reward` is a whole task. The file is run when the task is loaded, as any script
of the user's own.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

from isentrope.sampling.tasks.names import NAME, TASKS, function_names, is_task
from isentrope.sampling.tasks.prompt_file import PromptFile, PromptSource
from isentrope.sampling.tasks.requirements import (
    needs_prompts,
    require_arguments,
    require_reward_options,
)
from isentrope.sampling.tasks.reward_form import RewardForm
from isentrope.sampling.tasks.rewarded import RewardedPrompts
from isentrope.sampling.tasks.rewards import RewardCall
from isentrope.sampling.tasks.task import RewardsBatches, Task
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.python_file import load_file_name

RewardLike = Callable[..., Any] | Task | str
"""A reward function, a task, or the name of either."""


@refuse_other_types
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
        split: "train" or "test"; a file of prompts has them with the option `test_share`, and
            takes any without.
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
    if not is_task(name):
        nearest = get_close_matches(name, TASKS, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"Unknown task {name!r}: the nearest is {nearest!r}; choose one of "
            f"{', '.join(TASKS)}, or file.py:name."
        )
    is_own = name not in TASKS
    targets = [
        _load_target(part) if is_own else resolve_name(TASKS[part]) for part in name.split(", ")
    ]
    target: Any = targets[0]
    if not isinstance(target, (type, Task)):
        return _reward_prompts(targets, name, path, {**options, "split": split})
    if len(targets) > 1:
        raise ValueError(f"{name}: only reward functions can be summed, and the first is a task.")
    takes: Mapping[str, inspect.Parameter] = {}
    if isinstance(target, type):
        takes = inspect.signature(target).parameters
    require_arguments(name, takes, path, options)
    if is_own:
        if isinstance(target, type):
            positional = any(p.kind is not p.KEYWORD_ONLY for p in takes.values())
            arguments = (split,) if positional else ()
            _require_call(name, target, *arguments, **options)
            target = target(*arguments, **options)
        if not isinstance(target, Task):
            raise ValueError(f"The class {name} has no prompts and no reward: it is not a task.")
        if not isinstance(target, RewardsBatches):
            _require_call(f"{name}.reward", target.reward, "a response", "its reference")
        prompts: Any = target.prompts
        if not isinstance(prompts, Sequence):
            kind = type(prompts).__name__
            raise ValueError(f"The task {name} has a {kind} as its prompts: make them a list.")
        return target
    source = {"split": split, "path": path}
    return cast(Callable[..., Task], target)(
        **{key: source[key] for key in takes if key in source}, **options
    )


def _require_call(name: str, function: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Refuse a call that the parameters of a function of the user's do not take."""
    try:
        parameters = inspect.signature(function)
    except (TypeError, ValueError):
        return  # of a library in another language
    try:
        parameters.bind(*args, **options)
    except TypeError as error:
        words = ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in options.items())])
        raise ValueError(
            f"{name}{parameters} cannot be called as {name}({words}), as tasks are: {error}."
        ) from error


def task_of(
    prompts: PromptSource | None,
    rewards: Sequence[RewardLike],
    split: str,
    test_share: float = 0.0,
    weights: Sequence[float] | None = None,
) -> Task:
    """A task from prompts and rewards, each by name or in memory.

    Args:
        prompts: A file of prompts, or prompts; None where the reward is a task with its own.
        rewards: Reward functions in a form of `rewards`, or one task, or the names of either; none
            where responses are not rewarded.
        split: "train" or "test".
        test_share: Share of the different prompts that are those of "test"; 0: no splits.
        weights: One per reward function; None for 1 each.

    Returns:
        The task.

    Raises:
        ValueError: If prompts are missing, or given beside a task that has its own.
    """
    shared: dict[str, Any] = {"test_share": test_share} if test_share else {}
    shared |= {} if weights is None else {"weights": list(weights)}
    names = [_name_reward(reward) for reward in rewards]
    by_name = bool(rewards) and all(isinstance(reward, str) for reward in rewards)
    if by_name and (prompts is None or isinstance(prompts, (str, Path))):
        return load_task(", ".join(names), split, prompts, **shared)
    if rewards and isinstance(task := rewards[0], Task) and len(rewards) == 1:
        if prompts is not None:
            raise ValueError(f"The task {names[0]} has prompts of its own: give none beside it.")
        return task
    if prompts is None:
        raise ValueError(
            f"The reward {', '.join(names) or None} needs prompts: give a list of them, or a file."
        )
    if not rewards or rewards == ["prompts"]:
        return PromptFile(prompts, split, **shared)
    calls = [
        RewardCall(_load_function(reward), name)
        for reward, name in zip(rewards, names, strict=True)
    ]
    return RewardedPrompts(prompts, calls, split=split, **shared)


def list_rewards(reward: RewardLike | Sequence[RewardLike] | None) -> list[RewardLike]:
    """Take rewards that are given as one or as several.

    Args:
        reward: One, a list, or None.

    Returns:
        Each by itself; none for None.

    Raises:
        ValueError: If a list is empty.
    """
    if reward is None:
        return []
    if isinstance(reward, (list, tuple)) and not reward:
        raise ValueError("reward is an empty list: give reward functions, or None.")
    return [*reward] if isinstance(reward, (list, tuple)) else [cast(RewardLike, reward)]


def takes_responses(reward: RewardLike) -> bool:
    """Whether a reward is a name, or a function in a form of `rewards`."""
    if isinstance(reward, str):
        return True
    if isinstance(reward, Task):
        return False
    try:
        RewardForm(_name_reward(reward), inspect.signature(reward))
    except (TypeError, ValueError):
        return False
    return True


def names_of_rewards(rewards: Sequence[RewardLike]) -> tuple[str, ...]:
    """Names of reward functions as a trainer logs them; empty where one is a whole task."""
    are_tasks = (x in TASKS if isinstance(x, str) else isinstance(x, Task) for x in rewards)
    if any(are_tasks):
        return ()
    return tuple(name for reward in rewards for name in function_names(_name_reward(reward)))


def _name_reward(reward: Any) -> str:
    """What messages and logs call a reward: its name, or that of its class, as TRL does."""
    if isinstance(reward, str):
        return reward
    while isinstance(reward, partial):
        reward = reward.func
    return getattr(reward, "__name__", type(reward).__name__)


def _load_function(reward: Any) -> Any:
    """A reward function for prompts in memory, from itself or its name."""
    if isinstance(reward, str) and (not is_task(reward) or reward in TASKS):
        raise ValueError(
            f"{reward!r} is not a reward of a list of prompts: give a function, or the name of "
            "one as file.py:name."
        )
    function = _load_target(reward) if isinstance(reward, str) else reward
    if isinstance(function, Task):
        raise ValueError(
            f"The task {_name_reward(reward)} has prompts of its own: give none beside it, and no "
            "other reward."
        )
    return function


def _reward_prompts(
    functions: list[Any], name: str, path: str | Path | None, options: Mapping[str, Any]
) -> Task:
    """The prompts of a file, rewarded by functions."""
    require_reward_options(name, options)
    names = name.split(", ")
    for part, function in zip(names, functions, strict=True):
        if not callable(function) or isinstance(function, (type, Task)) or path is None:
            raise ValueError(needs_prompts(part))
    matches = [NAME.fullmatch(part) for part in names]
    files = [match["file"] if match else None for match in matches]
    calls = [
        RewardCall(function, part, Path(file).expanduser().parent if file else None)
        for function, part, file in zip(functions, names, files, strict=True)
    ]
    assert path is not None
    return RewardedPrompts(path, calls, **options)


def _load_target(text: str) -> Any:
    """What a Python file, or a module of a package, defines under a name."""
    match = NAME.fullmatch(text)
    assert match is not None
    name = match["name"]
    if match["module"]:
        try:
            return getattr(import_module(match["module"]), name)
        except Exception as error:  # any error of the module
            raise ValueError(
                f"{text} cannot be imported ({type(error).__name__}: {error}): install its "
                "package, or name a file as file.py:name."
            ) from error
    return load_file_name(text, "task")
