"""The held-out prompts of a run as lines of a file of prompts, kept beside its recorded step.

next_update/held_out.jsonl    one prompt per line (`sampling.tasks.custom`), from which E is drawn
"""

import json
from collections.abc import Sequence
from typing import Any

from isentrope.policy.language_model import Policy
from isentrope.sampling.prompts import Prompt, as_prompts
from isentrope.sampling.tasks.custom import PROMPT_FIELDS


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
    if prompt.token_ids is None and prompt.messages is not None and not prompt.template:
        try:
            json.dumps(prompt.messages)
        except (TypeError, ValueError):
            pass  # a message with more than JSON holds: its tokens say what the policy reads
        else:
            return {"messages": prompt.messages}
    (encoded,) = as_prompts(policy, [prompt])
    return {"prompt_ids": list(encoded.token_ids or ())}


def _labels(prompt: Prompt) -> dict[str, Any]:
    """The key, and what reward functions and tables read of a prompt."""
    labels = {"key": prompt.key, "reference": prompt.reference, "group": prompt.group}
    lines: dict[str, Any] = {name: value for name, value in labels.items() if value is not None}
    for name, value in prompt.columns.items():
        if name in PROMPT_FIELDS:
            continue
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            continue
        lines[name] = value
    return lines
