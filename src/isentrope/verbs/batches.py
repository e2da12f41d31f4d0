"""E and U as a configuration wants them: sampled, or read from a file; apart where they must be."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Literal

import torch

from isentrope.config.measure import BatchConfig, MeasureConfig
from isentrope.models.precision import Precision
from isentrope.models.sharding import exchange_as_stored, put_back
from isentrope.nouns.choices import RECORDED, SFT
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.sampling.advantages import refuse_unscored, rewarding, with_advantages, with_rewards
from isentrope.sampling.batches import Groups, UpdateBatchReport, update_batch
from isentrope.sampling.generate import respond
from isentrope.sampling.prompt import Prompt, first_prompts, name_prompts
from isentrope.sampling.prompts import PromptLike, as_prompts
from isentrope.sampling.tasks.task import Task
from isentrope.system.progress import progress
from isentrope.training.prompt_sampler import difficulty_weights
from isentrope.verbs.batch_files import read_rollouts
from isentrope.verbs.prompts_in_turn import by_distinct_prompt

PromptIds = tuple[int, ...]


@contextmanager
def at_precision(policy: Policy, precision: str | Precision) -> Iterator[Policy]:
    """Run a block at another precision, then restore every weight and buffer exactly (T13).

    The tensors of before are kept, not recomputed, so a shorter type in between costs nothing but
    the memory of both.

    Args:
        policy: The policy.
        precision: Precision of the block.

    Yields:
        The policy itself, converted.
    """
    before = policy.precision
    parameters = [(p, p.detach()) for p in policy.model.parameters() if p.is_floating_point()]
    buffers = [
        (module._buffers, name, buffer)
        for module in policy.model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.is_floating_point()
    ]
    try:
        yield policy.convert(precision)
    finally:
        for parameter, data in parameters:
            put_back(parameter, data)
        for owner, name, buffer in buffers:
            owner[name] = buffer
        exchange_as_stored(policy.model)
        policy.precision = before


@dataclass(frozen=True)
class Sampler:
    """Draws and reads the batches of a checkpoint.

    Attributes:
        policy: The policy; it has the sampler's precision for as long as responses are drawn.
        config: Where prompts and rewards come from, how many of them, and how responses are drawn.
        checkpoint: Its folder, which has the pass rates of its training.
        tasks: Those of E and U in memory; None for those that the configuration names.
    """

    policy: Policy
    config: MeasureConfig
    checkpoint: Path
    tasks: tuple[Task, Task] | None = None

    @property
    def data(self) -> BatchConfig:
        """Where prompts and rewards come from, and how many of them."""
        return self.config.batch_config

    def evaluation_task(self) -> Task:
        """The task that E's prompts and rewards come from."""
        return self.data.evaluation_task() if self.tasks is None else self.tasks[0]

    def update_task(self) -> Task:
        """The task that U's prompts and rewards come from."""
        return self.data.update_task() if self.tasks is None else self.tasks[1]

    def batches(self) -> tuple[Rollouts, Rollouts, UpdateBatchReport | None]:
        """Sample or read E and U.

        Returns:
            E, on which entropy is measured; U, from which the step is computed, with advantages;
            and what was drawn to fill U, None if it came from a file.

        Raises:
            ValueError: If a prompt is in both although the configuration forbids it.
        """
        data = self.data
        shared = data.allow_overlap
        E = U = report = None
        if data.E_file is not None:
            E = self.read_evaluation(data.E_file)
        if data.U_file is not None:
            max_new_tokens = self.config.sampling.max_new_tokens
            template = data.chat_template_kwargs
            U = read_rollouts(self.policy, data.U_file, self.update_task, max_new_tokens, template)
            U = self._rewarded_update(U)
        if E is None:
            E = self.evaluation(() if shared or U is None else prompts_of(U))
        if U is None:
            U, report = self._update(() if shared else prompts_of(E))
        self._require_apart(E, U)
        return E, U, report

    def accept(self, E: Rollouts, U: Rollouts) -> tuple[Rollouts, Rollouts]:
        """Batches in memory, checked as those of files are.

        Args:
            E: What entropy is measured on.
            U: What the step is computed from, with rewards, advantages or recorded weights.

        Returns:
            E, and U with advantages.

        Raises:
            ValueError: If one does not fit the model, a prompt is in both although the
                configuration forbids it, or U has nothing that weights its responses.
        """
        vocabulary = self.policy.model.get_input_embeddings().weight.shape[0]
        for batch in (E, U):
            batch.require_fit(vocabulary, self.policy.context)
        weighted = any(x is not None for x in (U.rewards, U.advantages, U.token_weights))
        if not weighted and self.config.estimator.objective != SFT:
            raise ValueError(
                "U has neither rewards nor advantages: give draw the reward function of training, "
                "or use isentrope.with_rewards."
            )
        self._require_apart(E, U)
        return E, self._rewarded_update(U)

    def _require_apart(self, E: Rollouts, U: Rollouts) -> None:
        """Refuse prompts that are in both batches, unless the configuration allows them."""
        if not self.data.allow_overlap and (shared := prompts_of(E) & prompts_of(U)):
            raise ValueError(
                f"{len(shared)} prompts are in both E and U: use other prompts, or set "
                "batch_config.allow_overlap=true, which measures the step on prompts that made it."
            )

    def read_evaluation(self, path: str | Path) -> Rollouts:
        """E from a file, checked against the policy."""
        max_new_tokens = self.config.sampling.max_new_tokens
        template = self.data.chat_template_kwargs
        E = read_rollouts(self.policy, path, self.evaluation_task, max_new_tokens, template)
        return E if Path(path).suffix == ".parquet" else by_distinct_prompt(E)

    def longest(self, rollouts: Rollouts) -> int:
        """Tokens after which responses were cut: as the batch says, or as they are drawn here."""
        return rollouts.max_new_tokens or self.config.sampling.max_new_tokens

    def evaluation(self, exclude: Collection[PromptIds] = ()) -> Rollouts:
        """Sample E; prompts with the token ids in `exclude` are not drawn."""
        data = self.data
        prompts = _exclude(self.policy, self.evaluation_task().prompts, exclude, "E")
        if data.fixed_prompts:
            return by_distinct_prompt(self.in_turn("E", prompts))
        generator = torch.Generator().manual_seed(data.seeds["E"])
        draws = torch.randint(len(prompts), (data.B_E,), generator=generator).tolist()
        return self.respond([prompts[k] for k in draws], data.G_E, generator, "sampling E")

    def in_turn(self, name: Literal["E", "U"], prompts: Sequence[PromptLike]) -> Rollouts:
        """Responses to the first prompts, from the first one again where there are too few."""
        data = self.data
        n, group = (data.B_E, data.G_E) if name == "E" else (data.B_U, data.G)
        generator = torch.Generator().manual_seed(data.seeds[name])
        return self.respond(list(islice(cycle(prompts), n)), group, generator, f"sampling {name}")

    def respond(
        self,
        prompts: Sequence[PromptLike],
        group: int,
        generator: torch.Generator,
        stage: str,
        max_new_tokens: int | None = None,
    ) -> Rollouts:
        """Draw responses to given prompts.

        Args:
            prompts: The prompts.
            group: Responses per prompt.
            generator: Of the draws.
            stage: What the progress bar says.
            max_new_tokens: Longest response; None for the configured length.

        Returns:
            The rollouts, prompt by prompt.
        """
        sampling = self.config.sampling
        precision = self.config.precision.sampling
        with at_precision(self.policy, precision), progress().bar(stage) as advance:
            return respond(
                self.policy,
                as_prompts(self.policy, prompts),
                group,
                generator,
                max_new_tokens=max_new_tokens or sampling.max_new_tokens,
                batch_size=sampling.batch_size,
                progress=advance,
            )

    def rewarded(self, E: Rollouts) -> Rollouts:
        """E with the rewards of its task, where it has none of its own.

        Returns:
            E with rewards.

        Raises:
            ValueError: If the task cannot reward it.
        """
        try:
            if E.rewards is None:
                return self.rewarded_by(self.evaluation_task(), E)
            if unscored := refuse_unscored(E):
                raise ValueError(unscored)
            return E
        except ValueError as error:
            raise ValueError(
                f"E cannot be rewarded ({error}): set analysis.reward=false to attribute entropy "
                "alone."
            ) from error

    def _update(self, exclude: Collection[PromptIds]) -> tuple[Rollouts, UpdateBatchReport]:
        data = self.data
        task = self.update_task()
        sampling = self.config.sampling
        advantages = self.config.estimator.advantage_rule
        precision = self.config.precision.sampling
        prompts = _exclude(self.policy, task.prompts, exclude, "U")
        with at_precision(self.policy, precision), progress().bar("sampling U") as advance:
            return update_batch(
                self.policy,
                first_prompts(prompts, data.B_U) if data.fixed_prompts is True else prompts,
                rewarding(task, self.policy, self.checkpoint),
                Groups(data.B_U, data.G, sampling.max_new_tokens, advantages, data.redraw_limit),
                seed=data.seeds["U"],
                weights=self.weights_of(prompts),
                batch_size=sampling.batch_size,
                progress=advance,
            )

    def weights_of(self, prompts: Sequence[Prompt]) -> list[float] | None:
        """How likely each is to be drawn for U, by the checkpoint's pass rates; None: equally."""
        if self.data.U_weighting != "difficulty":
            return None
        return difficulty_weights(self.checkpoint, [p.key for p in prompts])

    def _rewarded_update(self, U: Rollouts) -> Rollouts:
        """Rewards from the task where the file has none; its own advantages, or of rewards."""
        estimator = self.config.estimator
        has_advantages = U.advantages is not None
        uses_them = has_advantages and (U.rewards is None or estimator.advantages is None)
        needs_none = estimator.objective == RECORDED and U.rewards is None
        if uses_them or needs_none or estimator.objective == SFT:
            return U
        if U.rewards is None:
            U = self.rewarded_by(self.update_task(), U, unscored=True)
        return with_advantages(U, estimator.advantage_rule)

    def rewarded_by(self, task: Task, batch: Rollouts, *, unscored: bool = False) -> Rollouts:
        """A batch with the rewards of a task, which the first process gives."""
        reward = rewarding(task, self.policy, self.checkpoint)
        return self.policy.from_first(lambda: with_rewards(batch, reward, unscored=unscored))


def _exclude(
    policy: Policy, prompts: Iterable[Prompt], exclude: Collection[PromptIds], batch: str
) -> list[Prompt]:
    """The prompts whose tokens are none of the other batch's, whatever either is called by."""
    named_prompts = name_prompts(prompts)
    encoded = as_prompts(policy, named_prompts) if exclude else named_prompts
    remaining = [prompt for prompt in encoded if prompt.token_ids not in exclude]
    if not remaining:
        raise ValueError(
            f"None of the {len(named_prompts)} prompts is left for {batch}: the other batch has "
            "them all. Use another split, smaller batches, or batch_config.allow_overlap=true, "
            "which measures the step on prompts that made it."
        )
    return remaining


def prompts_of(rollouts: Rollouts) -> set[PromptIds]:
    """Token ids of the prompts of a batch."""
    return {tuple(ids.tolist()) for ids in rollouts.prompt_ids}
