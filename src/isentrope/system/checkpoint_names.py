"""Names of checkpoints and their training step: the only pattern that reads them.

step_N                 what isentrope writes
checkpoint-N           transformers and TRL
global_step_N          veRL, OpenRLHF
"""

import re

_STEP = re.compile(r"(?:step|checkpoint|global_step)[-_]?(\d+)")


def step_name(step: int) -> str:
    """The name of a checkpoint.

    Returns:
        For example "step_40".
    """
    return f"step_{step}"


def step_of_folder(name: str) -> int | None:
    """The training step in the name of a checkpoint folder.

    Args:
        name: For example "step_40" or "checkpoint-40".

    Returns:
        The step; None for any other name.
    """
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def written_step(name: str) -> int | None:
    """The training step of a checkpoint that isentrope wrote.

    Args:
        name: Of a folder.

    Returns:
        The step; None for any name that `step_name` does not give, such as "step_04".
    """
    step = step_of_folder(name)
    return step if step is not None and name == step_name(step) else None


def step_within(name: str) -> int | None:
    """The training step in a longer name.

    Args:
        name: For example "step_40_repeat_2" or "second_run_step_40".

    Returns:
        The last step in it, 40; None if there is none.
    """
    steps = _STEP.findall(name)
    return int(steps[-1]) if steps else None
