"""What a fine-tuned model kept: format and reward of greedy responses to held-out prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isentrope.config.train import DataConfig, FineTuningConfig
from isentrope.evaluation.evaluate import score_records
from isentrope.evaluation.metrics import Metric, estimate_metrics
from isentrope.evaluation.responses import choose_prompts, draw_responses, random_numbers
from isentrope.nouns.estimate import Estimate
from isentrope.policy.language_model import Policy
from isentrope.sampling.prompts import Prompt
from isentrope.sampling.tasks.task import FormattedTask, Task
from isentrope.training.demonstrations import IGNORED


@dataclass(frozen=True)
class HeldOut:
    """Prompts that a fine-tuning does not train on.

    Attributes:
        policy: The model, before and while it is trained.
        task: Its task.
        prompts: A random subset of its held-out split.
        longest: Tokens of the longest demonstrated response: no greedy one is longer.
        seed: Of the subset.
    """

    policy: Policy
    task: Task
    prompts: list[Prompt]
    longest: int
    seed: int

    @classmethod
    def of(
        cls,
        data: DataConfig,
        tuning: FineTuningConfig,
        model: Any,
        tokenizer: Any,
        rows: dict[str, list[list[int]]],
    ) -> HeldOut:
        """Choose them; refuse what cannot be done before anything is trained."""
        n = tuning.adherence_prompts
        policy = Policy(model.eval(), tokenizer, precision="as_is")
        task = data.load_task(data.dataset_name, data.held_out_split, data.dataset_path)
        prompt_lengths = [labels.count(IGNORED) for labels in rows["labels"]]
        pairs = zip(rows["input_ids"], prompt_lengths, strict=True)
        trained = {tuple(ids[:length]) for ids, length in pairs}
        prompts = choose_prompts(task.prompts, None, tuning.seed, policy=policy)
        left = [prompt for prompt in prompts if prompt.token_ids not in trained]
        if len(left) < n:
            raise ValueError(
                f"fine_tuning.adherence_prompts={n}, and the split {data.held_out_split!r} has "
                f"{len(left)} prompts that are not trained on: lower it, or set "
                "data.held_out_split."
            )
        chosen = choose_prompts(left, n, tuning.seed, policy=policy)
        sizes = zip(rows["labels"], prompt_lengths, strict=True)
        longest = max(len(labels) - length for labels, length in sizes)
        return cls(policy, task, chosen, longest, tuning.seed)

    def adherence(self) -> dict[str, Estimate | None]:
        """Of greedy responses: mean reward, and the shares without an end and with the format."""
        self.policy.model.eval()
        responses = draw_responses(
            *(self.policy, self.prompts, 1, random_numbers(self.seed)),
            decoding="greedy",
            max_new_tokens=self.longest,
        )
        metrics: list[Metric] = ["reward", "truncated"]
        if isinstance(self.task, FormattedTask):
            metrics.append("format")
        records = score_records(
            self.policy, responses, self.task, metrics, "greedy", right_above=0.5
        )
        return estimate_metrics(records, metrics, (1,), sampled=False)
