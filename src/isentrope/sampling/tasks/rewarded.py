"""Prompts of a file, rewarded by functions of the user's own."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from collections import Counter
from collections.abc import Sequence
from typing import Any

from isentrope.nouns.rollouts import Rollouts
from isentrope.sampling.prompt import Prompt, name_prompts
from isentrope.sampling.tasks.prompt_file import PromptFile, PromptSource, describe_source
from isentrope.sampling.tasks.reward_form import require_free_names, require_weights
from isentrope.sampling.tasks.rewards import ResponseBatch, RewardCall, combined


class RewardedPrompts(PromptFile):
    """Prompts of a file, rewarded by the weighted sum of functions.

    Attributes:
        reward_name: The names of the functions.
        columns: Names of the data's columns.
    """

    def __init__(
        self,
        path: PromptSource,
        calls: Sequence[RewardCall],
        weights: Any = None,
        split: str = "train",
        test_share: float = 0.0,
    ) -> None:
        """Read the prompts.

        Args:
            path: A file of jsonl, parquet or csv; or prompts.
            calls: The reward functions.
            weights: One per function; None for 1 each.
            split: "train" or "test", where the file has both; else any.
            test_share: Share of the different prompts that are those of "test"; 0: no splits.

        Raises:
            ValueError: If a function needs what the file does not have, the weights are not one
                number per function, or two lines of one prompt differ.
        """
        super().__init__(path, split, test_share=test_share)
        self._calls = calls
        self.reward_name = ", ".join(call.name for call in calls)
        self._weights = [1.0] * len(calls) if weights is None else weights
        require_weights(self._weights, len(calls))
        self.columns = list(dict.fromkeys(name for p in self.prompts for name in p.columns))
        require_free_names(describe_source(path), self.columns)
        readable = all(p.text is not None or p.messages is not None for p in self.prompts)
        for call in calls:
            call.form.require(self.columns, prompts=readable)
        first = dict[str, int]()
        for i, prompt in enumerate(self.prompts):
            earlier = first.setdefault(prompt.key, i)
            if prompt.columns != self.prompts[earlier].columns:
                raise ValueError(
                    f"{self.places[i]} and {self.places[earlier]} are one prompt with different "
                    "columns: give each a 'key' of its own."
                )
        self._index: tuple[Sequence[Prompt], dict[str, Prompt]] | None = None

    def reward(self, response_text: str, reference: str | None) -> float:
        """The reward of one response alone, without columns of its prompt.

        Args:
            response_text: The decoded response.
            reference: The prompt's reference answer.

        Returns:
            Its reward.
        """
        batch = ResponseBatch([response_text], [reference])
        return combined(self._calls, self._weights, batch)[0]

    def batch_rewards(
        self,
        rollouts: Rollouts,
        texts: Sequence[str],
        trainer_state: Any = None,
        prompts: Sequence[Prompt] | None = None,
    ) -> list[float]:
        """The rewards of a batch, each function called once for all of it.

        Args:
            rollouts: n sequences.
            texts: (n) their texts.
            trainer_state: Of the checkpoint, if it has one.
            prompts: The prompts as they were put to the policy; None for those of the file.

        Returns:
            n numbers.

        Raises:
            ValueError: If a function fails, or needs a prompt that is not in the file.
        """
        prompts = self.prompts if prompts is None else prompts
        if self._index is None or self._index[0] is not prompts:
            self._index = prompts, _index_by_key(prompts)
        n = len(rollouts)
        index = self._index[1]
        matches = [index.get(key) for key in rollouts.prompt_keys or [""] * n]
        rows = [prompt for prompt in matches if prompt is not None]
        complete = len(rows) == n
        contents = [p.text if p.messages is None else [dict(m) for m in p.messages] for p in rows]
        columns = self.columns if complete else []
        batch = ResponseBatch(
            texts,
            rollouts.references or [None] * n,
            contents if complete and None not in contents else None,
            {name: [p.columns.get(name) for p in rows] for name in columns},
            [ids.tolist() for ids in rollouts.response_ids],
            trainer_state,
        )
        if complete:
            return combined(self._calls, self._weights, batch)
        try:
            return combined(self._calls, self._weights, batch)
        except ValueError as error:
            missing = next(i for i, prompt in enumerate(matches) if prompt is None)
            key = rollouts.prompt_keys[missing] if rollouts.prompt_keys else "without a key"
            raise ValueError(
                f"{error} The prompt {key} of the batch is not in the data set, so prompts and "
                "columns are not known: give the data set that has it, with the same keys."
            ) from error


def _index_by_key(prompts: Sequence[Prompt]) -> dict[str, Prompt]:
    """Prompts by their keys, and by their content where that is of one prompt alone."""
    contents = [p.messages if p.messages is not None else p.text for p in prompts]
    sources = [list(c) if isinstance(c, tuple) else c for c in contents]
    names = [name_prompts([source])[0].key if source is not None else None for source in sources]
    counts = Counter(names)
    index = {n: p for n, p in zip(names, prompts, strict=True) if n is not None and counts[n] == 1}
    return index | {p.key: p for p in prompts}
