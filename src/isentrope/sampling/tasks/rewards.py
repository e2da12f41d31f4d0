"""Reward functions of a user's own, called as the trainer that they were written for calls them.

A function has one of two forms, which the names of its parameters tell:

    def f(completions, prompts, answer, **kwargs) -> list[float | None]   a batch at a time, as TRL
    def f(response, answer) -> float                                      one response at a time

In the first form every argument is a list with one entry per response of the batch as it was drawn:
`prompts`, `completions`, `completion_ids` and every column of the data; `trainer_state` is that of
the checkpoint. Prompts that are conversations come as lists of messages, and completions are then
[{"role": "assistant", "content": text}]. In the second form the response is a parameter called by
one of `RESPONSES`, its reference by one of `REFERENCES`; `prompt` and columns are given by name.
verl's `compute_score` is of the second form; "score" of a dictionary is the reward.

Rewards of several functions are combined as in TRL: Σ_j w_j r_ij over the functions that apply to
response i; None says that one does not. A response to which none applies has the reward nan
(`advantages`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

import asyncio
import inspect
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from isentrope.sampling.tasks.reward_form import (
    FORMS,
    LOGGERS,
    OF_BATCHES,
    REFERENCES,
    RESPONSES,
    VERLS_RESPONSE,
    RewardForm,
)
from isentrope.system.python_file import importing_from


@dataclass(frozen=True)
class ResponseBatch:
    """What reward functions may be called with; lists have one entry per response.

    Attributes:
        texts: The responses.
        references: Their references as texts.
        prompts: Texts or messages; None where they are not known.
        columns: Of the data, by name.
        completion_ids: Token ids of the responses; None where they are not known.
        trainer_state: Of the checkpoint; None where it has none.
    """

    texts: Sequence[str]
    references: Sequence[str | None]
    prompts: Sequence[Any] | None = None
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    completion_ids: Sequence[Sequence[int]] | None = None
    trainer_state: Any = None

    @property
    def conversational(self) -> bool:
        """Whether prompts are lists of messages."""
        return bool(self.prompts) and not isinstance((self.prompts or [""])[0], str)

    def lists(self) -> dict[str, Any]:
        """The arguments of a function of batches."""
        completions: list[Any] = list(self.texts)
        if self.conversational:
            completions = [[{"role": "assistant", "content": text}] for text in self.texts]
        arguments: dict[str, Any] = {"completions": completions}
        if any(reference is not None for reference in self.references):
            arguments["reference"] = list(self.references)
        optional = {name: getattr(self, name) for name in OF_BATCHES if name != "completions"}
        arguments |= {name: value for name, value in optional.items() if value is not None}
        loggers: dict[str, Any] = dict.fromkeys(LOGGERS, _ignore)
        return arguments | {name: list(values) for name, values in self.columns.items()} | loggers

    def of_response(self, i: int) -> dict[str, Any]:
        """The arguments of a function of one response."""
        reference = dict.fromkeys(REFERENCES, self.references[i])
        columns = {name: values[i] for name, values in self.columns.items() if name != "reference"}
        prompt = {} if self.prompts is None else {"prompt": self.prompts[i]}
        return reference | columns | prompt | dict.fromkeys(RESPONSES, self.texts[i])


def _ignore(*_: Any) -> None:
    """What a function wants to log."""


class RewardCall:
    """A reward function and how it is called.

    Attributes:
        name: What messages call it.
        form: What it is called with.
    """

    def __init__(self, function: Callable[..., Any], name: str, folder: Path | None = None) -> None:
        """Find the form of a function.

        Args:
            function: The function, or an object that can be called.
            name: What messages call it.
            folder: Of its file, from which it may import.

        Raises:
            ValueError: If its parameters have neither form.
        """
        self.name = name
        self._function = function
        self._folder = folder
        if isinstance(function, torch.nn.Module):
            raise ValueError(f"{name} is a model, and only functions are called: {FORMS}.")
        try:
            self._signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The parameters of {name} cannot be read ({error}). {FORMS}."
            ) from error
        self.form = RewardForm(name, self._signature)

    def rewards(self, batch: ResponseBatch) -> list[float]:
        """The rewards of a batch.

        Args:
            batch: What the function may be called with.

        Returns:
            One per response; nan where the function does not apply.

        Raises:
            ValueError: If the function fails, or does not return one number per response.
        """
        if not self.form.of_batches:
            calls = [batch.of_response(i) for i in range(len(batch.texts))]
            return [
                self._as_number(self._call(call, f"the response {text!r}", batch))
                for call, text in zip(calls, batch.texts, strict=True)
            ]
        values = self._call(batch.lists(), f"a batch of {len(batch.texts)} responses", batch)
        try:
            rewards = list(values)
        except TypeError as error:
            raise ValueError(
                f"The reward function {self.name} returned {values!r:.80}: a function of batches "
                "returns a list with one number per response."
            ) from error
        if len(rewards) != len(batch.texts):
            raise ValueError(
                f"The reward function {self.name} returned {len(rewards)} rewards for "
                f"{len(batch.texts)} responses: it must return one per response, None where it "
                "does not apply."
            )
        return [self._as_number(reward) for reward in rewards]

    def _as_number(self, value: Any) -> float:
        of_verl = VERLS_RESPONSE in self.form.names and isinstance(value, dict)
        reward: Any = value.get("score", value) if of_verl else value
        if reward is None:
            return math.nan
        try:
            if isinstance(reward, (str, bytes)):
                raise TypeError("a text is not a number")
            number = float(reward)
            if math.isnan(number):
                raise ValueError("nan is not a number")
            return number
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The reward function {self.name} returned {value!r:.80} for a response, which is "
                "not a number: it returns a number, or None where it does not apply."
            ) from error

    def _call(self, offered: Mapping[str, Any], subject: str, batch: ResponseBatch) -> Any:
        """What the function returns for those of the arguments that it takes."""
        arguments = {name: offered[name] for name in self.form.names if name in offered}
        bound = self._signature.bind_partial()
        bound.arguments.update(arguments)
        if self.form.open is not None and self.form.of_batches:
            extra = {name: value for name, value in offered.items() if name not in arguments}
            bound.arguments[self.form.open] = extra
            arguments |= extra
        try:
            with importing_from(self._folder):
                value = self._function(*bound.args, **bound.kwargs)
                return _await(value) if inspect.isawaitable(value) else value
        except Exception as error:  # any error of the user's function
            form = "conversations" if batch.conversational else "texts"
            frames = traceback.extract_tb(error.__traceback__)
            file = getattr(getattr(self._function, "__code__", None), "co_filename", None)
            frame = [x for x in frames if x.filename == file or file is None][-1:] or frames[-1:]
            line = f"{Path(frame[0].filename).name}, line {frame[0].lineno}"
            raise ValueError(
                f"The reward function {self.name} failed on {subject}: {type(error).__name__}: "
                f"{error} ({line}). It was called with {', '.join(arguments)}; prompts and "
                f"completions are {form} (conversations where prompts are messages or "
                f"chat_template is true). {FORMS}."
            ) from error


def combined(
    calls: Sequence[RewardCall], weights: Sequence[float], batch: ResponseBatch
) -> list[float]:
    """The weighted sum of the rewards of several functions.

    Args:
        calls: The functions.
        weights: One per function.
        batch: What they may be called with.

    Returns:
        One reward per response; nan where no function applies.

    Raises:
        ValueError: If a function fails.
    """
    columns = [call.rewards(batch) for call in calls]
    rewards = list[float]()
    for row in zip(*columns, strict=True):
        pairs = zip(weights, row, strict=True)
        terms = [weight * reward for weight, reward in pairs if not math.isnan(reward)]
        rewards.append(sum(terms) if terms else math.nan)
    return rewards


def _await(value: Any) -> Any:
    """The result of an async function, also where an event loop runs already."""

    async def result() -> Any:
        return await value

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, result()).result()
