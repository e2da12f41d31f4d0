"""What an entropy budget reads of its trainer: its responses and their weights in the loss.

The responses that a TRL trainer drew for the coming step have weights in its loss,

    c_ik = −∂loss/∂s_ik,     d_ik = −∂loss/∂H_ik

that come from the trainer's own backward passes, so they hold for every loss of TRL. Groups without
an advantage that the trainer redrew (`training.update_batches`) belong to what was drawn, with
weights of 0: without them E would be filtered.
"""

from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer

from isentrope.checkpoint.infer.fields import EVERY_RESPONSE
from isentrope.checkpoint.record.token_record import TokenRecorder
from isentrope.nouns.rollout_columns import numbered
from isentrope.nouns.rollouts import Rollouts, concatenate
from isentrope.parallel.ranks import gather_lists

LEAST_PROMPTS = 4
"""Prompts of a step: two halves of two groups."""


class OwnRollouts:
    """Watches the passes of a TRL trainer."""

    def __init__(self, trainer: Any) -> None:
        """Watch a trainer from now on.

        Args:
            trainer: TRL's GRPOTrainer, or a subclass.

        Raises:
            ValueError: If its batches are not what its policy drew for one step.
        """
        _require_own_rollouts(trainer)
        self._trainer = trainer
        self._recorder = TokenRecorder()
        self._pieces: list[tuple[list[Tensor], list[Tensor]]] = []
        self._inputs: Any = None
        self._norm: float | None = None
        compute_loss = trainer._compute_loss
        compute_scores = trainer._get_per_token_logps_and_entropies
        compute_norm = trainer._get_grad_norm

        def watch_loss(model: Any, inputs: Any) -> Tensor:
            self._inputs = inputs
            return compute_loss(model, inputs)

        def watch_scores(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
            scores = compute_scores(*args, **kwargs)
            logprobs, entropies = scores[:2]
            if logprobs.requires_grad:
                if "tool_mask" in self._inputs:
                    raise ValueError(
                        "An entropy budget needs responses that the policy alone wrote: train "
                        "without tools and environments."
                    )
                self._recorder.watch(logprobs, entropies)
                self._pieces.append((self._unpad("prompt"), self._unpad("completion")))
            return scores

        def watch_norm(*args: Any, **kwargs: Any) -> Any:
            norm = compute_norm(*args, **kwargs)
            self._norm = None if norm is None else float(norm)
            return norm

        trainer._compute_loss = watch_loss
        trainer._get_per_token_logps_and_entropies = watch_scores
        trainer._get_grad_norm = watch_norm

    def _unpad(self, name: str) -> list[Tensor]:
        pairs = zip(self._inputs[f"{name}_ids"], self._inputs[f"{name}_mask"], strict=True)
        return [ids[mask.bool()].cpu() for ids, mask in pairs]

    def take(self) -> Rollouts:
        """All responses drawn for the coming step; every process must call this, once per step.

        Returns:
            The responses of all processes, those of a prompt together, with the entropies of the
            policy at θ and their weights in the loss.
        """
        pieces = self._pieces
        self._pieces = []
        record = self._recorder.collect([len(x) for _, responses in pieces for x in responses])
        of_all_processes = gather_lists(pieces)
        prompts = [ids for prompt_ids, _ in of_all_processes for ids in prompt_ids]
        responses = [ids for _, response_ids in of_all_processes for ids in response_ids]
        batch = getattr(self._trainer, "batch", None)  # of isentrope's own trainer
        trained = Rollouts(
            prompts,
            responses,
            torch.arange(len(prompts)),
            sampler_entropies=record.entropies,
            rewards=None if batch is None else batch.rollouts.rewards,
            token_weights=record.weights,
            entropy_weights=record.entropy_weights,
        )
        rejected = [
            part.with_columns(token_weights=[torch.zeros(len(x)) for x in part.response_ids])
            for part in (() if batch is None else batch.rejected)
        ]
        drawn = concatenate([trained, *rejected])
        index = torch.tensor(numbered(drawn.prompt_ids))
        return drawn.with_columns(prompt_index=index).select(index.argsort(stable=True))

    @property
    def clip(self) -> float:
        """What the clipping of the gradient of the coming step multiplies it by."""
        limit = self._trainer.args.max_grad_norm
        if not limit or self._norm is None:
            return 1.0
        return min(1.0, limit / (self._norm + 1e-6))  # as torch.nn.utils.clip_grad_norm_


def _require_own_rollouts(trainer: Any) -> None:
    """Refuse a trainer whose step is not one of its own policy's fresh responses.

    Raises:
        ValueError: Naming the setting.
    """
    if not isinstance(trainer, GRPOTrainer):
        raise ValueError(
            f"An entropy budget reads the rollouts of TRL's GRPOTrainer, and this is a "
            f"{type(trainer).__name__}."
        )
    args: Any = trainer.args
    passes = args.gradient_accumulation_steps
    uses = args.steps_per_generation * args.num_iterations
    if passes % uses:
        raise ValueError(
            "An entropy budget needs responses drawn at the θ of each step, and here one batch "
            f"serves {uses} micro-batches where a step has {passes}: set num_iterations=1 and "
            "steps_per_generation=gradient_accumulation_steps."
        )
    for field in EVERY_RESPONSE:
        if getattr(args, field, False):
            raise ValueError(
                f"An entropy budget needs every response with its log-probabilities: set "
                f"{field}=false."
            )
    prompts = args.generation_batch_size // args.num_generations * passes // uses
    if prompts < LEAST_PROMPTS:
        raise ValueError(
            f"A step has {prompts} prompts, and a budget leaves each one out in turn: it needs "
            f"{LEAST_PROMPTS} or more (per_device_train_batch_size, gradient_accumulation_steps)."
        )
