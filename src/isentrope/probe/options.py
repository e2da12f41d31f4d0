"""What a reading of the probe is, and what of it the trainer's arguments set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from isentrope.nouns.choices import Method, Per, PerOption, Preconditioning
from isentrope.sampling.advantages import RewardFunction
from isentrope.sampling.prompts import Prompt
from isentrope.sampling.tasks.load import RewardLike, list_rewards, takes_responses, task_of
from isentrope.sampling.tasks.task import Task
from isentrope.system.one_line import changed_fields, one_line


def setting(args: Any, field: str, option: str, chosen: Any = None) -> Any:
    """A setting of the probe, by default from the trainer's arguments.

    Args:
        args: The trainer's arguments.
        field: Its name there.
        option: Its name as an option of `EntropyProbe`.
        chosen: The probe's own, or None.

    Returns:
        The value.

    Raises:
        ValueError: If neither has it, or the temperatures differ.
    """
    trained = getattr(args, field, None)
    if option == "temperature" and chosen is not None and trained not in (None, chosen):
        raise ValueError(
            f"EntropyProbe's temperature is {chosen}, and the trainer's is {trained}: the probe "
            "would read another policy than the one that is trained. Omit temperature."
        )
    value = trained if chosen is None else chosen
    if value is None:
        raise ValueError(
            f"The trainer's arguments have no {field}: give EntropyProbe its {option} yourself."
        )
    return value


@dataclass(frozen=True)
class ProbeOptions(PerOption):
    """What a reading is.

    Attributes:
        log_every: Also predict every so many steps, by the gradient of the last reading
            (`kept_gradient`): one backward pass per reading, and O(d) per prediction.
        per: "token" (h) or "sequence" (ℋ), of every change.
        method: "prefix" or "sequence".
        second_order: Also δH₂ and the linear range, at about twice the cost.
        fresh: Also measure ΔH on a second mini-batch, independent of the prediction.
        preconditioning: Predict the step as taken, or with second moments of before it; then the
            first step has no reading.
        seed: Fixes prompts and tokens of every reading.
        decay: β of the exponential moving averages over readings, in [0, 1).
        temperature: Sampling temperature; by default the trainer's.
        max_new_tokens: Longest response in tokens; by default the trainer's.
        reward: Rewards the mini-batch, for the price of a step: a reward function as TRL calls it,
            or a list of them, whose weights are the trainer's (`reward_weights`); a task; or a
            function of the rollouts. None for none.
        position_pattern: A regular expression; where a response so far ends in it, the price has a
            class of positions of its own.
    """

    log_every: int | None = None
    per: Per = "token"
    method: Method = "prefix"
    second_order: bool = False
    fresh: bool = False
    preconditioning: Preconditioning = "this_step"
    seed: int = 0
    decay: float = 0.9
    temperature: float | None = None
    max_new_tokens: int | None = None
    reward: Task | RewardLike | RewardFunction | Sequence[RewardLike] | None = None
    position_pattern: str | None = None

    def __repr__(self) -> str:
        return one_line(self, *changed_fields(self))

    def rewards_of(
        self, prompts: Sequence[Prompt], weights: Sequence[float] | None = None
    ) -> Task | RewardFunction | None:
        """What rewards responses to prompts.

        Args:
            prompts: With the columns that a reward function takes.
            weights: One per function of a list; None for 1 each.

        Returns:
            A task, a function of the rollouts, or None.

        Raises:
            ValueError: If a function takes what the prompts do not have.
        """
        rewards = list_rewards(cast(Any, self.reward))
        alone = len(rewards) == 1
        if not rewards or (alone and not takes_responses(rewards[0])):
            return cast(Any, self.reward)
        return task_of(prompts, rewards, "test", weights=None if alone else weights)

    def sampling(self, args: Any) -> tuple[float, int]:
        """Temperature and longest response: those given, or of a trainer's arguments."""
        temperature = setting(args, "temperature", "temperature", self.temperature)
        length = setting(args, "max_completion_length", "max_new_tokens", self.max_new_tokens)
        return temperature, length
