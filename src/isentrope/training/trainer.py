"""Dr. GRPO on TRL's GRPOTrainer, with reproducible batches, checkpoints and logs.

Only this file, `batch_trainer` and `smaller_pieces` use private methods of TRL (trl 1.16;
tests/training/test_trl_contract.py checks where each is called). TRL computes advantages, loss,
gradient and step. This class records what comes of a batch, by overriding:

    _get_per_token_logps_and_entropies    records s, H and −∂loss/∂s of every token
    _compute_loss                         adds the loss term of a control
    _get_grad_norm, training_step         gradient norms before clipping
    _load_optimizer_and_scheduler         settings of a run that begins at another's checkpoint
    _complete                             the contract of a checkpoint (`checkpoints`)
"""

import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from torch import Tensor
from trl.trainer.grpo_config import GRPOConfig

from isentrope.checkpoint.files import require_own_states
from isentrope.checkpoint.record.contract import hyper_parameters, optimizer_names, write_contract
from isentrope.checkpoint.record.next_update import pass_types, write_next_update
from isentrope.checkpoint.record.token_record import TokenRecorder, off_policy_warning
from isentrope.control.budget import EntropyBudget
from isentrope.control.requirements import (
    require_controllable,
    require_whole_parameters_to_sample,
)
from isentrope.models.float_types import rounding_bounds
from isentrope.policy.language_model import Policy
from isentrope.system.log import log
from isentrope.system.processes import rank
from isentrope.training.batch_trainer import BatchTrainer, RunOptions
from isentrope.training.checkpoints import (
    SaveStart,
    WholeCheckpoints,
    restore_state,
    write_state,
)
from isentrope.training.divergence import require_finite_number, require_finite_state
from isentrope.training.rollout_digests import write_rollouts
from isentrope.training.run_files import RunFiles
from isentrope.training.smaller_pieces import SmallerPieces
from isentrope.training.update_batches import UpdateBatches, rollout_table, step_metrics


class EntropyGRPOTrainer(WholeCheckpoints, SmallerPieces, BatchTrainer):
    """GRPOTrainer over update batches from `UpdateBatches`, with records of every step.

    Attributes:
        files: Files of the run.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        args: GRPOConfig,
        batches: UpdateBatches,
        files: RunFiles,
        options: RunOptions,
    ) -> None:
        """Set up a run; nothing is sampled yet.

        Args:
            model: The model with its trainable set, dropout 0.
            tokenizer: Its tokenizer.
            args: TRL's configuration; its batch is `batches.groups.n` groups over all processes.
            batches: The update batches.
            files: The run's files.
            options: How it samples and divides, what controls it, and what is written.

        Raises:
            ValueError: If parameters are sharded and TRL's vLLM does not sample, or there is a
                control; or a control that measures influence does not support the optimizer.
        """
        super().__init__(
            model=model,
            reward_funcs=cast(Any, _never_called),
            args=args,
            train_dataset=Dataset.from_dict({"prompt": [p.key for p in batches.prompts]}),
            processing_class=tokenizer,
        )
        require_whole_parameters_to_sample(self)
        inner = self.accelerator.unwrap_model(self.model)
        self.policy = Policy(inner, tokenizer, temperature=args.temperature, precision="as_is")
        self.batches = batches
        self.options = options
        self.run_control = options.observers.get("control")
        if self.run_control is not None:
            require_controllable(self, self.run_control.rule.needs)
        self.files = files
        self.keep = options.keep
        self.recorder = TokenRecorder()
        self.gradient_norm = float("nan")
        self.contract = dict(options.contract)
        self._scored: tuple[Tensor, Tensor] | None = None
        self._adaptive_strength: dict[str, float] = {}
        self._last_time = time.perf_counter()
        self._warned = False
        self.stateful = {"prompt_sampler": batches.sampler, **options.observers}
        self.branched = False
        self.step_control: EntropyBudget | None = options.observers.get("step_control")
        if self.step_control is not None:
            self.step_control.attach(self, checkpoints=False)
        if not (self.is_fsdp_enabled or self.is_deepspeed_enabled):  # whose states begin at a step
            self.add_callback(SaveStart(self))

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        logprobs, entropies, auxiliary = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if logprobs.requires_grad:
            self.recorder.watch(logprobs, entropies)
            self._scored = logprobs, entropies
        return logprobs, entropies, auxiliary

    def _compute_loss(self, model, inputs):
        if self.use_adaptive_entropy:  # the coefficient of this step; TRL then moves it
            acts = self._last_world_entropy <= self.args.entropy_target
            self._adaptive_strength = {"control/strength": self.entropy_coef if acts else 0.0}
        loss = super()._compute_loss(model, inputs)
        scored = self._scored
        self._scored = None
        if self.run_control is None or scored is None:
            return loss
        return loss + self.run_control.loss_term(inputs, *scored)

    def training_step(self, model, inputs, num_items_in_batch=None):
        """One micro-batch, forward and backward."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if noise_scale := self.options.observers.get("noise_scale"):
            noise_scale.after_backward(self.accelerator.sync_gradients)
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        norm = super()._get_grad_norm(model, grad_norm)
        self.gradient_norm = float(cast(float, norm))
        if getattr(self.accelerator, "scaler", None) is None:  # which skips such a step itself
            step = self.state.global_step + 1
            require_finite_number(step, "The gradient norm", self.gradient_norm, self.files)
        return norm

    def log(self, logs, start_time=None) -> None:
        """Log a step; other logs of Trainer are passed on unchanged."""
        if "loss" not in logs:
            return super().log(logs, start_time)
        step = self.state.global_step
        require_finite_number(step, "The loss", logs["loss"], self.files)
        require_finite_state(step, self.model, self.optimizer, self.files)
        batch = self.batch
        step_control = self.step_control
        record = self.recorder.collect(batch.share.lengths.tolist())
        line: dict[str, Any] = {
            "step": step,
            "loss": logs["loss"],
            "learning_rate": logs["learning_rate"],
            "gradient_norm": self.gradient_norm,
        }
        update = line | {"max_grad_norm": self.args.max_grad_norm or None}
        line["tokens"] = self.state.num_input_tokens_seen
        line |= step_metrics(batch, record, self.policy.eos_token_ids)
        for part in self.options.observers.values():
            line |= part.latest()
        line |= self._adaptive_strength
        now = time.perf_counter()
        elapsed = now - self._last_time
        self._last_time = now
        tokens = float(batch.rollouts.lengths.sum())
        timing = {"seconds": elapsed, "tokens_per_second": tokens / elapsed}
        if self.run_control is not None:
            timing |= self.run_control.times()
        if step_control is not None:
            timing |= {"control/seconds": step_control.seconds}
        explained = rounding_bounds(pass_types(self.policy.model, self.args)).logprob
        if (sentence := off_policy_warning(line, explained)) and not self._warned:
            self._warned = True
            log.warning(sentence)
        if rank() == 0:
            if self.options.rollouts_every and step % self.options.rollouts_every == 0:
                write_rollouts(self.files, step, rollout_table(step, batch, record).to_parquet)
            before = self.files.checkpoint(step - 1)
            if before.is_dir():
                replayable = batch.rollouts.with_columns(
                    token_weights=record.weights, entropy_weights=record.entropy_weights
                )
                component = None if step_control is None else step_control.component
                write_next_update(before, replayable, update, component)
            self.files.log(line, {"step": step} | timing)
            self.options.observe(line | timing)
        self._metrics["train"].clear()  # TRL's own metrics; the line has the exact ones
        super().log({k: v for k, v in (line | timing).items() if k != "step"}, start_time)

    def _complete(self, partial: Path) -> None:
        """Add the files that a measurement needs to a Hugging Face checkpoint."""
        optimizer = cast(torch.optim.Optimizer, self.optimizer)
        contract = self.contract | {
            "step": self.state.global_step,
            "learning_rate_next": float(optimizer.param_groups[0]["lr"]),
            "optimizer": type(getattr(optimizer, "optimizer", optimizer)).__name__,
            "param_groups": hyper_parameters(optimizer),
        }
        write_contract(partial, contract, optimizer_names(self.policy.model, optimizer))
        write_state(partial, self.stateful, self.state.global_step)

    def _load_optimizer_and_scheduler(self, checkpoint) -> None:
        """Load the states; a branch then has its own rates and hyper-parameters."""
        optimizer: Any = self.optimizer
        schedule: Any = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
        run_parameters = hyper_parameters(optimizer)
        base_rates = list(schedule.base_lrs)
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        # transformers takes the steps between checkpoints from trainer_state.json
        self.state.compute_steps(self.args, self.state.max_steps)
        if not self.is_deepspeed_enabled:
            steps = [float(state["step"]) for state in optimizer.state.values() if "step" in state]
            last_step = max(steps) if steps else self.state.global_step
            require_own_states(Path(checkpoint), last_step, schedule.last_epoch)
        if not self.branched:
            return
        schedule.base_lrs = base_rates
        schedule._last_lr = [
            rate * factor(schedule.last_epoch)
            for rate, factor in zip(base_rates, schedule.lr_lambdas, strict=True)
        ]
        for group, parameters, rate in zip(
            optimizer.param_groups, run_parameters, schedule._last_lr, strict=True
        ):
            group.update({**parameters, "lr": rate})

    def restore(self, checkpoint: Path, changed: Collection[str] | None = None) -> None:
        """Restore the state of the parts besides model and optimizer from a checkpoint.

        Args:
            checkpoint: The folder passed to `train(resume_from_checkpoint=...)`.
            changed: Settings that a run which begins there changes; None for the same run.

        Raises:
            ValueError: If the checkpoint was saved with other parts.
        """
        self.branched = changed is not None
        restore_state(checkpoint, self.stateful, changed, self.accelerator.device)


def _never_called(*_: Any, **__: Any) -> list[float]:
    raise RuntimeError(
        "TRL called the reward function, but rewards come with the batch: its methods have changed."
    )
