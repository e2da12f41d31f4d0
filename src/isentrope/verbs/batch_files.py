"""Batches of responses from files: saved ones, and those that a trainer logged or a user wrote."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from isentrope.checkpoint.infer.logged_texts import OF_TEXTS, are_logged_texts, read_logged_texts
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.sampling.tasks.custom import read_responses
from isentrope.sampling.tasks.task import Task
from isentrope.system.log import log
from isentrope.system.reading import reading


def read_rollouts(
    policy: Policy,
    path: str | Path,
    task: Callable[[], Task],
    max_new_tokens: int | None = None,
    template: Mapping[str, Any] | None = None,
) -> Rollouts:
    """Read a batch: saved, logged by TRL (.parquet) or verl (.jsonl), or by hand (.jsonl).

    Args:
        policy: Encodes texts; its vocabulary and context must fit the batch.
        path: The file.
        task: Has the prompts of texts that verl logged.
        max_new_tokens: Length at which a trainer's sampler cut completions.
        template: Arguments of the chat template for the conversations of a file.

    Returns:
        The rollouts.

    Raises:
        ValueError: If the file is of another kind, its texts cannot be encoded, or a token or a
            length does not fit the model.
    """
    kind = Path(path).suffix
    if kind not in (".parquet", ".jsonl"):
        raise ValueError(f"{path} is neither .parquet nor .jsonl: a batch is one of these.")
    if are_logged_texts(path):
        log.warning("%s: %s", path, OF_TEXTS)
        rollouts = read_logged_texts(policy, path, task, max_new_tokens, template)
    elif kind == ".jsonl":
        rollouts = read_responses(policy, path, template)
    else:
        rollouts = Rollouts.load(path)
    with reading(path, "Give a batch that this model could have drawn."):
        vocabulary = policy.model.get_input_embeddings().weight.shape[0]
        rollouts.require_fit(vocabulary, policy.context)
    return rollouts
