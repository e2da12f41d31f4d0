"""The held-out prompts of a run as lines of a file of prompts, kept beside its recorded step.

next_update/held_out.jsonl    one prompt per line (`tasks.prompt_file`), from which E is drawn
"""

import json
from collections.abc import Sequence
from typing import Any

from isentrope.policy.language_model import Policy
from isentrope.sampling.prompt import Prompt
from isentrope.sampling.prompts import as_prompts
from isentrope.sampling.tasks.lines import PROMPT_FIELDS


def held_out_lines(policy: Policy, prompts: Sequence[Prompt]) -> list[str]:
    """Prompts as JSON lines: texts and conversations as they are, others by their token ids.

    Args:
        policy: Encodes the conversations that have template arguments of their own, which a file
            of prompts does not hold.
        prompts: The prompts, as they were given.

    Returns:
        One line per prompt; columns that JSON cannot hold are left out.
    """
    return [json.dumps(_content(policy, prompt) | _labels(prompt)) for prompt in prompts]


def _content(policy: Policy, prompt: Prompt) -> dict[str, Any]:
    if prompt.token_ids is None and prompt.text is not None:
        return {"prompt": prompt.text}
    plain = prompt.token_ids is None and not prompt.template
    if plain and prompt.messages is not None and _is_json(prompt.messages):
        return {"messages": prompt.messages}
    (encoded,) = as_prompts(policy, [prompt])  # its tokens say what the policy reads
    return {"prompt_ids": list(encoded.token_ids or ())}


def _labels(prompt: Prompt) -> dict[str, Any]:
    """The key, and what reward functions and tables read of a prompt."""
    labels = {"key": prompt.key, "reference": prompt.reference, "group": prompt.group}
    lines: dict[str, Any] = {name: value for name, value in labels.items() if value is not None}
    columns = prompt.columns.items()
    return lines | {x: y for x, y in columns if x not in PROMPT_FIELDS and _is_json(y)}


def _is_json(value: Any) -> bool:
    """Whether JSON can hold a value."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
