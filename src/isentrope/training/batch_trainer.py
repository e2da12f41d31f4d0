"""TRL's GRPOTrainer over batches that `UpdateBatches` draws.

TRL asks for a batch in pieces; these methods answer from the one batch of the step, by overriding:

    _prepare_inputs                       whole groups to each micro-batch, in the batch's order
    _generate_and_score_completions       the batch comes from `UpdateBatches`, with redraws
    _generate, _calculate_rewards         return that batch to TRL instead of drawing one
    _wrap_model (`SpreadBase`)            DDP over the adapter of a base that is spread
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from isentrope.checkpoint.record.observing import evaluating
from isentrope.control.run_control import RunControl
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.sampling.draw import DrawnResponses, sample_responses
from isentrope.training.models import SpreadBase
from isentrope.training.update_batches import UpdateBatch, UpdateBatches


@dataclass(frozen=True)
class RunOptions:
    """How a run samples and divides, and what is written of it.

    Attributes:
        sampling_batch: Sequences sampled at a time on this process.
        longest_normaliser: Divide the loss by the longest response of each group instead of
            `max_completion_length`.
        contract: Content of every checkpoint's contract.
        observers: What watches and corrects the run, by name; their latest() goes to the log, their
            state_dict() into each checkpoint. "control" is the token control, "step_control" a step
            control, which is attached, and "noise_scale" sees each backward pass.
        keep: `keep_last` and `keep_every` of the checkpoints.
        rollouts_every: Number of steps between tables of rollouts; 0 for no tables.
        observe: Called on the first process with the metrics and times of each step.
    """

    sampling_batch: int = 128
    longest_normaliser: bool = False
    contract: Mapping[str, Any] = field(default_factory=dict)
    observers: Mapping[str, Any] = field(default_factory=dict)
    keep: tuple[int | None, int | None] = (None, None)
    rollouts_every: int = 1
    observe: Callable[[dict[str, float]], None] = lambda metrics: None


class BatchTrainer(SpreadBase, GRPOTrainer):
    """GRPOTrainer whose batches are drawn, and may be rewritten by a control, outside of TRL.

    Attributes:
        policy: The live model as a policy.
        batches: Source of the update batches.
        run_control: The token control, if there is one.
        options: How the run samples and divides.
        batch: The update batch of the step in progress; there is none before the first step.
    """

    args: GRPOConfig
    policy: Policy
    batches: UpdateBatches
    run_control: RunControl | None
    options: RunOptions
    batch: UpdateBatch
    model: Any
    max_completion_length: int

    def get_train_dataloader(self) -> DataLoader:
        """Indices, one per micro-batch: prompts are selected when a step starts, not before."""
        count = self.args.max_steps * self.args.gradient_accumulation_steps
        return DataLoader(cast(Any, range(count)), collate_fn=list)

    def _prepare_inputs(self, generation_batch):
        micro_batches = cast(int, self.args.steps_per_generation)
        passes = micro_batches * self.num_iterations  # over one batch
        if self._step % passes == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions([])
            self._buffered_inputs = split_tensor_dict(batch, micro_batches)
        return self._buffered_inputs[self._step % micro_batches]

    def _generate_and_score_completions(self, inputs):
        self.batch = self.batches.draw(self.policy, self.state.global_step + 1, self._respond)
        keys = self.batch.share.prompt_keys or []
        outputs = super()._generate_and_score_completions([{"prompt": key} for key in keys])
        if self.run_control is not None:
            outputs |= self._apply_control(self.run_control, outputs)
        if self.options.longest_normaliser:
            factor = self._length_factor(outputs)
            if outputs["advantages"].dim() == 2:  # per token
                factor = factor[:, None]
            outputs["advantages"] = outputs["advantages"] * factor
        return outputs

    def _apply_control(self, control: RunControl, outputs: dict[str, Any]) -> dict[str, Tensor]:
        """The columns that a control replaces or adds, for the rows of this process."""
        batch = self.batch
        tokens, rewritten = control.rewrite(
            self.policy,
            batch.rollouts,
            cast(float, batch.report.entropy_drawn),
            self.state.global_step + 1,
            cast(torch.optim.Optimizer, self.optimizer),
        )
        return control.columns(
            tokens,
            rewritten,
            outputs["advantages"],
            batch.rows_of_process,
            width=outputs["completion_mask"].shape[1],
        )

    def _length_factor(self, outputs: dict[str, Any]) -> Tensor:
        """L over the longest response of each sequence's group, exact while the ratio is 1."""
        size = cast(int, self.num_generations)
        lengths = outputs["completion_mask"].sum(1).view(-1, size)
        return self.max_completion_length / lengths.amax(1).repeat_interleave(size)

    def _respond(self, prompt_ids: list[Tensor], uniforms: Tensor) -> DrawnResponses:
        if self.use_vllm:
            return self._respond_by_vllm(prompt_ids)
        generating = unwrap_model_for_generation(
            self.model_wrapped,
            self.accelerator,
            gather_deepspeed3_params=self.args.ds3_gather_for_generation,
            gradient_checkpointing_kwargs=cast(Any, self.args.gradient_checkpointing_kwargs),
        )
        training = self.model.training
        whole_parameters = self._dist.summon_full_params(self.model_wrapped, recurse=False)
        with generating, whole_parameters:
            self.model.eval()
            try:
                return sample_responses(
                    self.policy,
                    prompt_ids,
                    uniforms,
                    self.max_completion_length,
                    batch_size=self.options.sampling_batch,
                )
            finally:
                self.model.train(training)

    def _respond_by_vllm(self, prompt_ids: list[Tensor]) -> DrawnResponses:
        ids = [p.tolist() for p in prompt_ids]
        response_ids, logprobs = super()._generate_single_turn(ids, None, {}, self.num_generations)
        assert logprobs is not None
        unknown = sum(logprob is None for row in logprobs for logprob in row)
        if unknown:  # TRL's name for NaN
            raise RuntimeError(
                f"vLLM gave no log-probability for {unknown} of {sum(map(len, logprobs))} tokens: "
                "what they were drawn with is not known. Use a longer model.dtype, or leave out "
                "trainer.use_vllm."
            )
        responses = [torch.tensor(x) for x in response_ids]
        entropies = None
        if self.run_control or "step_control" in self.options.observers:
            # vLLM does not return entropies, which controls need
            rollouts = Rollouts(prompt_ids, responses, torch.arange(len(responses)))
            with evaluating(self.policy.model):
                rows = rollouts.ragged(score(self.policy, rollouts).entropies)
            entropies = [row.clone() for row in rows]
        return DrawnResponses(responses, [torch.tensor(x) for x in logprobs], entropies)

    def _generate(self, prompts):
        rollouts = self.batch.rollouts
        tokens = sum(map(len, rollouts.prompt_ids)) + sum(map(len, rollouts.response_ids))
        self.state.num_input_tokens_seen += tokens
        share = self.batch.share
        return (
            [p.tolist() for p in share.prompt_ids],
            [r.tolist() for r in share.response_ids],
            None,
            share.response_texts,
            [s.tolist() for s in cast(list[Tensor], share.sampler_logprobs)],
            {},
            None,
            [],
        )

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = cast(Tensor, self.batch.rollouts.rewards)
        return rewards.float()[:, None].to(self.accelerator.device)
