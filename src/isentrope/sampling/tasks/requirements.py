"""What a task needs of its options, its file and the columns of its data, judged before the work.

`load` and `rewarded` refuse the same by the same functions, when the file of a task has been run.
Here a function or a class is known by its source alone, so that no library of tensors is loaded
before a mistake is named. What the source does not show is left to them: decorators, names that are
bound twice, tasks of installed packages.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from csv import reader
from importlib.util import find_spec
from inspect import Parameter
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

from isentrope.sampling.tasks.lines import (
    NO_COLUMNS,
    NO_REFERENCE_OF_U,
    VERL_REFERENCE,
    PromptLine,
    read_rows,
    require_response,
    require_splittable,
    source_of,
)
from isentrope.sampling.tasks.names import TASKS, files_of_task
from isentrope.sampling.tasks.reward_form import RewardForm, require_free_names, require_weights
from isentrope.sampling.tasks.task import require_share
from isentrope.system.file_contents import read_schema
from isentrope.system.manifest import read_once
from isentrope.system.python_file import (
    SourceDefinition,
    defines_function,
    read_definition,
    require_defined,
)
from isentrope.system.reading import parse_json, read_json_lines

MOST_BYTES = 4 * 2**20
"""Size of a file of prompts whose every line is read before the work; a larger one takes time."""


def require_task(
    name: str, path: str | None, options: Mapping[str, Any], split: str = "train"
) -> None:
    """Refuse a task that cannot be made, as far as names, sources and its file tell.

    Args:
        name: As `load_task` takes it.
        path: File or folder of the data set.
        options: Of the task.
        split: Of the data set.

    Raises:
        FileNotFoundError: If a Python file is missing.
        ValueError: In a sentence.
    """
    for part in files_of_task(name):
        require_defined(part, "task")
    parts = name.split(", ")
    sources = [_source_of_task(part) for part in parts]
    functions = [source for source in sources if source is not None and not source.is_class]
    if name in TASKS or (sources[0] is not None and sources[0].is_class):
        if sources[0] is not None:
            require_arguments(name, sources[0].signature.parameters, path, options)
        if name in TASKS and name != "prompts":
            resolve_name(TASKS[name]).require_values(split, options)
    elif len(functions) == len(parts):
        require_reward_options(name, options)
        if path is None:
            raise ValueError(needs_prompts(parts[0]))
        if options.get("weights") is not None:
            require_weights(options["weights"], len(parts))
    of_file = name == "prompts" or len(functions) == len(parts)
    if of_file and (share := options.get("test_share")):
        require_share(share, split, path)
    if path is None or not Path(path).is_file():
        return
    forms = [
        RewardForm(part, source.signature)
        for part, source in zip(parts, sources, strict=True)
        if source is not None and not source.is_class
    ]
    file = Path(path)
    is_small = file.suffix not in (".parquet", ".csv") and file.stat().st_size <= MOST_BYTES
    if is_small and (name == "prompts" or forms):
        different = read_once(file, _count_different)
        share = options.get("test_share")
        if share and isinstance(share, float):
            require_splittable(str(file), different, share)
    if forms:
        _require_columns(path, forms)


def require_arguments(
    name: str, takes: Mapping[str, Parameter], path: str | Path | None, options: Collection[str]
) -> None:
    """Refuse options and a path that the class of a task does not take.

    Args:
        name: The task.
        takes: The parameters of its class.
        path: Of its data set.
        options: Names of the options that are given.

    Raises:
        ValueError: In a sentence.
    """
    if name not in TASKS and path is not None:  # before options that go with a file
        raise ValueError(
            f"The task {name} has prompts of its own and reads no file, got path={path}: a reward "
            "of the prompts of a file is a function."
        )
    accepted = [option for option, p in takes.items() if p.kind is p.KEYWORD_ONLY]
    if unknown := [option for option in options if option not in accepted]:
        has = f"its options are {', '.join(accepted)}" if accepted else "it has none"
        raise ValueError(f"The task {name!r} has no option {unknown[0]!r}: {has}.")
    if name not in TASKS:
        return
    if "path" not in takes and path is not None:
        raise ValueError(f"The task {name!r} is generated and reads no file, got path={path}.")
    if path is None and "path" in takes and takes["path"].default is Parameter.empty:
        raise ValueError(f'The task "{name}" needs the path of a jsonl file.')


def require_reward_options(name: str, options: Collection[str]) -> None:
    """Refuse options that reward functions of a file of prompts do not have.

    Args:
        name: The functions.
        options: Names of the options that are given.

    Raises:
        ValueError: Naming one.
    """
    if unknown := [o for o in options if o not in ("weights", "test_share", "split")]:
        raise ValueError(
            f"The task {name!r} has no option {unknown[0]!r}: its options are weights, one per "
            "reward function, and test_share."
        )


def needs_prompts(part: str) -> str:
    """The refusal of a function that has no file of prompts.

    Args:
        part: The function.

    Returns:
        A sentence.
    """
    return (
        f"The task {part} is neither an object with prompts and reward, nor a reward "
        "function with prompts: set dataset_path to a file (jsonl, parquet or csv) of "
        '{"prompt": ..., "reference": ...}.'
    )


def _source_of_task(part: str) -> SourceDefinition | None:
    """The source of a part of a task's name; None where it does not tell."""
    if part in TASKS:
        module, _, name = TASKS[part].partition(":")
        spec = find_spec(module)
        return read_definition(f"{spec.origin}:{name}", "task") if spec and spec.origin else None
    return read_definition(part, "task") if files_of_task(part) else None


def _count_different(file: Path) -> int:
    """The different prompts in a file of JSON lines, each of which must be a prompt."""
    rows = read_rows(file, PromptLine)
    return len({json.dumps(row[source_of(row, place)]) for place, row in rows})


def _require_columns(path: str, forms: Sequence[RewardForm]) -> None:
    """Refuse data whose columns do not fit the parameters of reward functions."""
    columns = _columns_of_first(Path(path))
    if any(form.missing(columns, prompts=True) for form in forms):
        columns = _columns_of_all(Path(path))
    require_free_names(path, columns)
    for form in forms:
        form.require(columns, prompts=True)


def require_demonstrations(name: str, path: str | None) -> None:
    """Refuse prompts of a file, of which one has no response that could be learned from.

    Args:
        name: Of the task.
        path: Its file; a large one is left to who reads it.

    Raises:
        ValueError: Naming the line.
    """
    of_file = name == "prompts" or (name not in TASKS and are_functions(name))
    if not of_file or path is None or not Path(path).is_file():
        return
    if Path(path).suffix in (".parquet", ".csv") or Path(path).stat().st_size > MOST_BYTES:
        return
    for place, row in read_rows(Path(path), PromptLine):
        require_response(place, row.get("response"))


def are_functions(name: str) -> bool:
    """Whether sources show that all parts of a task's name are functions.

    Args:
        name: As `load_task` takes it.

    Returns:
        False where a part is a task, or only running its file tells.
    """
    files = files_of_task(name)
    return len(files) == len(name.split(", ")) and all(map(defines_function, files))


def require_references(path: str | Path | None) -> None:
    """Refuse prompts of which none has the reference that its responses are rewarded by.

    Args:
        path: A file of prompts.

    Raises:
        ValueError: In a sentence.
    """
    if path is None or not Path(path).is_file():
        return
    file = Path(path)
    holders = {"reference", VERL_REFERENCE}
    if not holders & {*_columns_of_first(file)} and not holders & {*_columns_of_all(file)}:
        raise ValueError(NO_REFERENCE_OF_U)


def _columns_of_first(file: Path) -> list[str]:
    """The columns of the first line of a file, in order."""
    if file.suffix == ".parquet":
        names = list[str](read_schema(file).names)
    elif file.suffix == ".csv":
        with file.open(encoding="utf-8-sig", newline="") as lines:  # of Excel, which pandas reads
            names = next(reader(lines), list[str]())
    else:
        with file.open(encoding="utf-8") as lines:
            first = next(filter(str.strip, lines), "{}")
        try:
            names = _names_in(parse_json(first))
        except ValueError:
            return list[str]()  # who reads all lines says where and what is wrong
    return [name for name in names if name not in NO_COLUMNS]


def _columns_of_all(file: Path) -> list[str]:
    """The columns that any line of a file has, in order."""
    if file.suffix in (".parquet", ".csv"):
        return _columns_of_first(file)
    rows = [row for _, row in read_json_lines(file, "Correct the line.")]
    names = dict.fromkeys(name for row in rows for name in _names_in(row))
    return [name for name in names if name not in NO_COLUMNS]


def _names_in(row: Any) -> list[str]:
    """The names in a line; none where it is no object."""
    return [*cast(dict[str, Any], row)] if isinstance(row, dict) else []
