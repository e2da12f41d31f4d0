"""Reward functions of a user's own, called as the trainer that they were written for calls them.

A function has one of two forms, which the names of its parameters tell:

    def f(completions, prompts, answer, **kwargs) -> list[float | None]   a batch at a time, as TRL
    def f(response, answer) -> float                                      one response at a time

In the first form every argument is a list with one entry per response of the batch as it was drawn:
`prompts`, `completions`, `completion_ids` and every column of the data; `trainer_state` is that of
the checkpoint. Prompts that are conversations come as lists of messages, and completions are then
[{"role": "assistant", "content": text}]. In the second form the response is a parameter called by
one of `RESPONSES`, its reference by one of `REFERENCES`; `prompt` and columns are given by name.

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

from isentrope.system.python_file import importing_from

RESPONSES = ("response_text", "response", "text", "completion", "completion_text", "output")
REFERENCES = ("reference", "answer", "solution", "ground_truth", "target", "label", "expected")
OF_BATCHES = ("prompts", "completions", "completion_ids", "trainer_state")
_LOGGERS = ("log_extra", "log_metric")

FORMS = (
    "A reward function is f(completions, …) of lists, with prompts, completion_ids, trainer_state "
    "and columns of the data by name, as TRL calls it; or f(response, reference) of one response, "
    f"whose parameters are named: {', '.join(RESPONSES)}; {', '.join(REFERENCES)}; prompt; columns "
    "of the data"
)


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
        loggers: dict[str, Any] = dict.fromkeys(_LOGGERS, _ignore)
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
        parameters = self._signature.parameters.values()
        named = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        self._open = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
        self._required = [p.name for p in parameters if p.name in named and p.default is p.empty]
        self._names = named
        only_open = not named and self._open is not None
        self._of_batches = only_open or any(name in OF_BATCHES for name in named)
        responses = [name for name in named if name in RESPONSES]
        if not self._of_batches and len(responses) != 1:
            raise ValueError(
                f"The reward function {name}{self._signature} does not name the response that it "
                f"rewards. {FORMS}."
            )

    def require(self, columns: Sequence[str], prompts: bool) -> None:
        """Refuse a function whose parameters the data cannot give.

        Args:
            columns: Names of the data's columns.
            prompts: Whether the data has prompts as texts or messages.

        Raises:
            ValueError: Naming the parameter.
        """
        offered = {*columns, "reference", *_LOGGERS}
        if self._of_batches:
            offered |= {*OF_BATCHES} - (set() if prompts else {"prompts"})
        else:
            offered |= {*RESPONSES, *REFERENCES} | ({"prompt"} if prompts else set())
        missing = [name for name in self._required if name not in offered]
        if missing:
            raise ValueError(
                f"The reward function {self.name}{self._signature} needs {missing[0]!r}, and the "
                f"data has the columns {', '.join(columns) or 'none'}: add the column, or rename "
                f"the parameter. {FORMS}."
            )

    def rewards(self, batch: ResponseBatch) -> list[float]:
        """The rewards of a batch.

        Args:
            batch: What the function may be called with.

        Returns:
            One per response; nan where the function does not apply.

        Raises:
            ValueError: If the function fails, or does not return one number per response.
        """
        if not self._of_batches:
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
        if value is None:
            return math.nan
        try:
            if isinstance(value, (str, bytes)):
                raise TypeError("a text is not a number")
            number = float(value)
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
        arguments = {name: offered[name] for name in self._names if name in offered}
        bound = self._signature.bind_partial()
        bound.arguments.update(arguments)
        if self._open is not None and self._of_batches:
            rest = {name: value for name, value in offered.items() if name not in arguments}
            bound.arguments[self._open] = rest
            arguments |= rest
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
