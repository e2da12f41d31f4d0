"""The table of the responses of an evaluation, records.parquet."""

from dataclasses import dataclass
from typing import Annotated

from isentrope.nouns.columns import Column
from isentrope.nouns.saved import Absent


@dataclass(frozen=True, kw_only=True)
class RecordRow:
    """A response of an evaluation.

    Attributes:
        decoding: "sampled" or "greedy".
        prompt: The prompt draw.
        sample: Its place among the responses to the prompt.
        key: The prompt's key; None where it has none.
        reference: The reference answer; None where there is none.
        prompt_text: The prompt; None where there is no tokenizer.
        text: The response.
        length: Tokens, the end counted.
        truncated: Whether it has no end.
        reward: Its reward.
        right: Whether it is correct.
        format: Reward of its format; NaN where the task has none.
        unread: Whether no answer could be read, of a task that reads answers.
        group: The prompt's group.
        response_ids: Its tokens.
        entropy: Σ H_k, nats.
        surprisal: −Σ s_k, nats.
        logprobs: s_k of every token, nats.
        entropies: H_k of every token, nats.
    """

    decoding: Annotated[str, Column()] = "sampled"
    prompt: Annotated[int, Column()]
    sample: Annotated[int, Column()]
    key: Annotated[str | None, Column()]
    reference: Annotated[str | None, Column()]
    prompt_text: Annotated[str | None, Column()]
    text: Annotated[str, Column()]
    length: Annotated[int, Column()]
    truncated: Annotated[bool, Column()]
    reward: Annotated[float, Column()]
    right: Annotated[bool, Column()]
    format: Annotated[float, Column()]
    unread: Annotated[Absent[bool], Column()] = None
    group: Annotated[Absent[str], Column()] = None
    response_ids: Annotated[Absent[list[int]], Column()] = None
    entropy: Annotated[Absent[float], Column()] = None
    surprisal: Annotated[Absent[float], Column()] = None
    logprobs: Annotated[list[float] | None, Column()] = None
    entropies: Annotated[list[float] | None, Column()] = None
