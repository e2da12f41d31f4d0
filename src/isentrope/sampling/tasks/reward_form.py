"""The form of a reward function, which the names of its parameters tell (`rewards`).

Nothing heavy is imported, so that a signature in the source of a file is judged before the
libraries of the work are loaded (`requirements`).
"""

from collections.abc import Sequence
from inspect import Signature
from typing import Any, cast

VERLS_RESPONSE = "solution_str"
"""The response in verl's `compute_score`."""
RESPONSES = (
    "response_text",
    "response",
    "text",
    "completion",
    "completion_text",
    "output",
    VERLS_RESPONSE,
)
"""Names of the response in a function of one."""
REFERENCES = ("reference", "answer", "solution", "ground_truth", "target", "label", "expected")
OF_BATCHES = ("prompts", "completions", "completion_ids", "trainer_state")
LOGGERS = ("log_extra", "log_metric")

FORMS = (
    "A reward function is f(completions, …) of lists, with prompts, completion_ids, trainer_state "
    "and columns of the data by name, as TRL calls it; or f(response, reference) of one response, "
    f"whose parameters are named: {', '.join(RESPONSES)}; {', '.join(REFERENCES)}; prompt; columns "
    "of the data"
)


class RewardForm:
    """What a reward function is called with.

    Attributes:
        names: Parameters that are filled by name.
        open: The parameter that takes all other arguments; None where there is none.
        of_batches: Whether it is called with lists, and not for each response.
    """

    def __init__(self, name: str, signature: Signature) -> None:
        """Find the form of a signature.

        Args:
            name: What messages call the function.
            signature: Its signature.

        Raises:
            ValueError: If its parameters have neither form.
        """
        self._name = name
        self._signature = signature
        parameters = signature.parameters.values()
        self.names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        self.open = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
        filled = [p for p in parameters if p.name in self.names]
        self._required = [p.name for p in filled if p.default is p.empty]
        only_open = not self.names and self.open is not None
        self.of_batches = only_open or any(name in OF_BATCHES for name in self.names)
        responses = [name for name in self.names if name in RESPONSES]
        if not self.of_batches and len(responses) != 1:
            raise ValueError(
                f"The reward function {name}{signature} does not name the response that it "
                f"rewards. {FORMS}."
            )

    def missing(self, columns: Sequence[str], *, prompts: bool) -> list[str]:
        """The parameters that the data cannot give.

        Args:
            columns: Names of the data's columns.
            prompts: Whether the data has prompts as texts or messages.

        Returns:
            Names without a default.
        """
        offered = {*columns, "reference", *LOGGERS}
        if self.of_batches:
            offered |= {*OF_BATCHES} - (set() if prompts else {"prompts"})
        else:
            offered |= {*RESPONSES, *REFERENCES} | ({"prompt"} if prompts else set())
        return [name for name in self._required if name not in offered]

    def require(self, columns: Sequence[str], *, prompts: bool) -> None:
        """Refuse a function whose parameters the data cannot give.

        Args:
            columns: Names of the data's columns.
            prompts: Whether the data has prompts as texts or messages.

        Raises:
            ValueError: Naming the parameter.
        """
        if missing := self.missing(columns, prompts=prompts):
            raise ValueError(
                f"The reward function {self._name}{self._signature} needs {missing[0]!r}, and the "
                f"data has the columns {', '.join(columns) or 'none'}: add the column, or rename "
                f"the parameter. {FORMS}."
            )


def require_free_names(source: str, columns: Sequence[str]) -> None:
    """Refuse columns that are called as the own arguments of a reward function.

    Args:
        source: What messages call the data.
        columns: Names of the data's columns.

    Raises:
        ValueError: Naming the column.
    """
    if clashes := [name for name in columns if name in OF_BATCHES]:
        raise ValueError(
            f"{source} has the column {clashes[0]!r}, which is a name of the reward function's own "
            "arguments: rename the column."
        )


def require_weights(weights: object, functions: int) -> None:
    """Refuse weights that are not one number per reward function.

    Args:
        weights: What is given.
        functions: How many there are.

    Raises:
        ValueError: In a sentence.
    """
    numbers = cast(list[Any], weights) if isinstance(weights, (list, tuple)) else None
    if numbers is None or not all(isinstance(weight, (int, float)) for weight in numbers):
        raise ValueError(f"weights is a list of numbers, one per function, not {weights!r}.")
    if len(numbers) != functions:
        raise ValueError(
            f"{len(numbers)} weights are given for {functions} reward functions: give one per "
            "function."
        )
