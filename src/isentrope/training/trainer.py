"""Dr. GRPO on TRL's GRPOTrainer, with reproducible batches, checkpoints and logs.

Only this file uses private methods of TRL (trl 1.16; tests/training/test_trl_contract.py checks
where each is called). TRL computes advantages, loss, gradient and step. This class provides the
input and records the output, by overriding:

    _prepare_inputs                       whole groups to each micro-batch, in the batch's order
    _generate_and_score_completions       the batch comes from `UpdateBatches`, with redraws
    _generate, _calculate_rewards         return that batch to TRL instead of drawing one
    _get_per_token_logps_and_entropies    records s, H and −∂loss/∂s of every token
    _compute_loss                         adds the loss term of a control
    _get_grad_norm, training_step         gradient norms before clipping
    _save_checkpoint                      complete folders `training_state/step_N` with a contract
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from isentrope.files import publish_folder
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.probe.requirements import require_known_optimizer
from isentrope.processes import barrier, rank, world_size
from isentrope.reading import read_json, read_tensors, reading
from isentrope.recording.contract import hyper_parameters, optimizer_names, write_contract
from isentrope.recording.observing import evaluating
from isentrope.recording.token_record import TokenRecorder
from isentrope.rollouts import Rollouts
from isentrope.sampling.generate import Drawn, sample_responses
from isentrope.training.control.isentropic import IsentropicStep
from isentrope.training.control.run_control import RunControl
from isentrope.training.divergence import require_finite_numbers, require_finite_state
from isentrope.training.resumable import CONTROL_STATE, STATE
from isentrope.training.run_files import RunFiles
from isentrope.training.step_log import StepLog
from isentrope.training.update_batches import UpdateBatch, UpdateBatches


class EntropyGRPOTrainer(GRPOTrainer):
    """GRPOTrainer over update batches from `UpdateBatches`.

    Attributes:
        policy: The live model as a policy.
        batches: Source of the update batches.
        files: Files of the run.
        batch: The update batch of the step in progress.
    """

    args: GRPOConfig
    model: Any
    max_completion_length: int

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        args: GRPOConfig,
        batches: UpdateBatches,
        files: RunFiles,
        *,
        sampling_batch: int = 128,
        longest_normaliser: bool = False,
        contract: Mapping[str, Any] | None = None,
        stateful: Mapping[str, Any] | None = None,
        step_control: IsentropicStep | None = None,
        keep: tuple[int | None, int | None] = (None, None),
        step_log: StepLog | None = None,
        control: RunControl | None = None,
    ) -> None:
        """Set up a run; nothing is sampled yet.

        Args:
            model: The model with its trainable set, dropout 0.
            tokenizer: Its tokenizer.
            args: TRL's configuration; its batch is `batches.n` groups over all processes.
            batches: The update batches.
            files: The run's files.
            sampling_batch: Sequences sampled at a time on this process.
            longest_normaliser: Divide the loss by the longest response of each group instead of
                `max_completion_length`.
            contract: Content of every checkpoint's contract.
            stateful: Parts with state_dict(), by name, saved with each checkpoint; the prompt
                sampler is always one of them.
            step_control: Step control; it is attached, and its state saved with each checkpoint.
            keep: `keep_last` and `keep_every` of the checkpoints.
            step_log: Output of each step.
            control: Token control; its state is saved with each checkpoint.

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
        if self.is_fsdp_enabled and not self.use_vllm:
            raise ValueError(
                "Responses cannot be sampled here from parameters that FSDP shards: set "
                "trainer.use_vllm=true, or train without FSDP."
            )
        if control is not None and (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            raise ValueError(
                "A control scores batches by itself and needs whole parameters: train without "
                "FSDP and DeepSpeed, or without control."
            )
        if control is not None and "influence" in control.controller.control.needs:
            require_known_optimizer(self, "The control 'influence'")
        inner = self.accelerator.unwrap_model(self.model)
        self.policy = Policy(inner, tokenizer, temperature=args.temperature, precision="as_is")
        self.batches, self.files = batches, files
        self.sampling_batch, self.longest_normaliser = sampling_batch, longest_normaliser
        self.recorder = TokenRecorder()
        self.batch: UpdateBatch | None = None
        self.gradient_norm = float("nan")
        self.contract = dict(contract or {})
        self.run_control, self._scored = control, cast(tuple[Tensor, Tensor] | None, None)
        parts = {} if control is None else {"control": control.controller}
        self.stateful = {"prompt_sampler": batches.sampler, **(stateful or {}), **parts}
        self.keep, self.step_log = keep, step_log or StepLog(files)
        self.noise_scale = self.stateful.get("noise_scale")
        self.step_control = step_control
        if step_control is not None:
            step_control.attach(self)

    # --- batches -----------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader:
        """Indices, one per micro-batch: prompts are selected when a step starts, not before."""
        count = self.args.max_steps * self.args.gradient_accumulation_steps
        return DataLoader(cast(Any, range(count)), collate_fn=list)

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        parts, uses = cast(int, self.args.steps_per_generation), self.num_iterations
        if self._step % (parts * uses) == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions([])
            self._buffered_inputs = split_tensor_dict(batch, parts)
        return self._buffered_inputs[self._step % parts]

    def _generate_and_score_completions(self, inputs: list[Any]) -> dict[str, Any]:
        self.batch = self.batches.draw(self.policy, self.state.global_step + 1, self._respond)
        keys = self._mine(self.batch).prompt_keys or []
        outputs = super()._generate_and_score_completions([{"prompt": key} for key in keys])
        if self.run_control is not None:
            outputs |= self._controlled(self.run_control, outputs)
        if self.longest_normaliser:
            factor = self._longest_factor(outputs)
            whole = outputs["advantages"].dim() == 1
            outputs["advantages"] = outputs["advantages"] * (factor if whole else factor[:, None])
        return outputs

    def _controlled(self, control: RunControl, outputs: dict[str, Any]) -> dict[str, Tensor]:
        """The columns that a control replaces or adds, for the rows of this process."""
        batch = cast(UpdateBatch, self.batch)
        inner = getattr(self.optimizer, "optimizer", self.optimizer)  # without accelerate's wrapper
        tokens, rewritten = control.rewrite(
            *(self.policy, batch.rollouts, cast(float, batch.report.entropy_drawn)),
            *(self.state.global_step + 1, cast(torch.optim.Optimizer, inner)),
        )
        share = len(batch.rollouts) // world_size()
        rows = slice(rank() * share, (rank() + 1) * share)
        width = outputs["completion_mask"].shape[1]
        return control.columns(tokens, rewritten, outputs["advantages"], rows, width)

    def _mine(self, batch: UpdateBatch) -> Any:
        share = len(batch.rollouts) // world_size()
        return batch.rollouts.select(range(rank() * share, (rank() + 1) * share))

    def _longest_factor(self, outputs: dict[str, Any]) -> Tensor:
        """L over the longest response of each sequence's group, exact while the ratio is 1."""
        lengths = outputs["completion_mask"].sum(1).view(-1, self.num_generations)
        longest = lengths.amax(1).repeat_interleave(self.num_generations)
        return self.max_completion_length / longest

    def _respond(self, prompt_ids: list[Tensor], uniforms: Tensor) -> Drawn:
        if self.use_vllm:
            ids = [p.tolist() for p in prompt_ids]
            ids_by_row, logprobs = super()._generate_single_turn(
                ids, None, {}, self.num_generations
            )
            assert logprobs is not None
            responses, sampled = ([torch.tensor(x) for x in y] for y in (ids_by_row, logprobs))
            return Drawn(responses, sampled, self._entropies(prompt_ids, responses))
        generating = unwrap_model_for_generation(
            self.model_wrapped,
            self.accelerator,
            gather_deepspeed3_params=self.args.ds3_gather_for_generation,
            gradient_checkpointing_kwargs=cast(Any, self.args.gradient_checkpointing_kwargs),
        )
        training = self.model.training
        whole = self._dist.summon_full_params(self.model_wrapped, recurse=False)
        with generating, whole:
            self.model.eval()
            try:
                return sample_responses(
                    *(self.policy, prompt_ids, uniforms, self.max_completion_length),
                    batch_size=self.sampling_batch,
                )
            finally:
                self.model.train(training)

    def _entropies(self, prompt_ids: list[Tensor], responses: list[Tensor]) -> list[Tensor] | None:
        """Entropies, which vLLM does not return, by a pass without gradient; only for a control."""
        if self.run_control is None:
            return None
        rollouts = Rollouts(prompt_ids, responses, torch.arange(len(responses)))
        with evaluating(self.policy.model):
            entropies = score(self.policy, rollouts).entropies
        return [row[: len(r)].clone() for row, r in zip(entropies, responses, strict=True)]

    def _generate(self, prompts: list) -> tuple:
        batch = cast(UpdateBatch, self.batch)
        whole, mine = batch.rollouts, self._mine(batch)
        tokens = sum(map(len, whole.prompt_ids)) + sum(map(len, whole.response_ids))
        self.state.num_input_tokens_seen += tokens
        return (
            [p.tolist() for p in mine.prompt_ids],
            [r.tolist() for r in mine.response_ids],
            None,
            mine.response_texts,
            [s.tolist() for s in mine.sampler_logprobs],
            {},
            None,
            [],
        )

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> Tensor:
        rewards = cast(Tensor, cast(UpdateBatch, self.batch).rollouts.rewards)
        return rewards.float()[:, None].to(self.accelerator.device)

    # --- the step ----------------------------------------------------------------------------

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple:
        logprobs, entropies, auxiliary = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if logprobs.requires_grad:
            self.recorder.watch(logprobs, entropies)
            self._scored = logprobs, entropies
        return logprobs, entropies, auxiliary

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        loss = super()._compute_loss(model, inputs)
        scored, self._scored = self._scored, None
        if self.run_control is None or scored is None:
            return loss
        return loss + self.run_control.loss_term(inputs, *scored)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One micro-batch, forward and backward."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.noise_scale is not None:
            self.noise_scale.after_backward(self.accelerator.sync_gradients)
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        self.gradient_norm = float(cast(float, norm))
        if getattr(self.accelerator, "scaler", None) is None:  # which skips such a step itself
            self._require_finite({"The gradient norm": self.gradient_norm}, next_step=True)
        return norm

    def _require_finite(self, numbers: dict[str, float], next_step: bool = False) -> None:
        step = self.state.global_step + next_step
        require_finite_numbers(step, numbers, self.files.latest())

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log a step; other logs of Trainer are passed on unchanged."""
        if "loss" not in logs:
            return super().log(logs, start_time)
        self._require_finite({"The loss": logs["loss"]})
        require_finite_state(
            self.state.global_step, self.model, self.optimizer, self.files.latest()
        )
        batch = cast(UpdateBatch, self.batch)
        record = self.recorder.collect(self._mine(batch).lengths.tolist())
        summary: dict[str, Any] = {
            "step": self.state.global_step,
            "loss": logs["loss"],
            "learning_rate": logs["learning_rate"],
            "gradient_norm": self.gradient_norm,
            "tokens": self.state.num_input_tokens_seen,
            "max_grad_norm": self.args.max_grad_norm or None,
        }
        ends = self.policy.eos_token_ids
        parts = [part.latest() for n, part in self.stateful.items() if n != "prompt_sampler"]
        step_control, component = self.step_control, None
        times = {} if self.run_control is None else self.run_control.times()
        if step_control is not None:
            parts.append(step_control.latest())
            times, component = {"control/seconds": step_control.seconds}, step_control.component
        line = self.step_log.finish(
            *(summary, batch, record, ends, {k: v for p in parts for k, v in p.items()}),
            seconds=times,
            control=component,
        )
        self._metrics["train"].clear()  # TRL's own metrics; the line has the exact ones
        super().log(line, start_time)

    # --- checkpoints -------------------------------------------------------------------------

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no model card: a run folder is described by its config.yaml."""

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.files.checkpoints / ".writing")

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = self.state.global_step
        target, writing = self.files.checkpoint(step), Path(self._get_output_dir(trial))
        partial = writing / f"checkpoint-{step}"
        require_finite_state(step, self.model, self.optimizer, self.files.latest())
        try:
            super()._save_checkpoint(model, trial)
            barrier()
            if rank() == 0:
                self._complete(partial)
                publish_folder(partial, target)
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(writing, ignore_errors=True)
            last = self.files.latest()
            good = f"the last good checkpoint is {last}" if last else "no checkpoint was saved yet"
            raise OSError(
                f"Step {step} could not be saved ({error}): {good}. Free disk space, then continue "
                f"with `isentrope train --resume {self.files.folder}`."
            ) from error
        if rank() == 0:
            shutil.rmtree(writing, ignore_errors=True)
            self.files.prune(*self.keep)
        barrier()

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
        state = {name: part.state_dict() for name, part in self.stateful.items()}
        if self.step_control is not None:
            state["step_control"] = self.step_control.state_dict()
            save_file(self.step_control.tensors(), partial / CONTROL_STATE)
        (partial / STATE).write_text(json.dumps(state) + "\n", encoding="utf-8")

    def restore(self, checkpoint: Path) -> None:
        """Restore the state of the parts besides model and optimizer from a checkpoint.

        Args:
            checkpoint: The folder passed to `train(resume_from_checkpoint=...)`.

        Raises:
            ValueError: If the checkpoint was saved with other parts; those of `_LATER_PARTS` may be
                missing in it.
        """
        state = read_json(checkpoint / STATE, finite=False)
        control = self.step_control
        parts = set(self.stateful) | ({"step_control"} if control else set())
        if not set(state) <= parts <= set(state) | _LATER_PARTS:
            raise ValueError(
                f"{checkpoint} holds the state of {sorted(state)}, the run has {sorted(parts)}: "
                "entropy_probe.enabled, alarm.enabled, noise_scale.enabled and control must be as "
                "when it was saved."
            )
        if control is not None:
            tensors = read_tensors(checkpoint / CONTROL_STATE)
            with reading(checkpoint / STATE):
                control.load_state_dict(state["step_control"], tensors)
        for name in set(state) & set(self.stateful):
            with reading(checkpoint / STATE):
                self.stateful[name].load_state_dict(state[name])
                _require_same_state(name, state[name], self.stateful[name].state_dict())


def _require_same_state(name: str, saved: Mapping[str, Any], restored: Mapping[str, Any]) -> None:
    """Refuse a state of which a part does not arrive as it was written."""
    for key in saved:
        if key not in restored or json.dumps(saved[key]) != json.dumps(restored[key]):
            raise ValueError(f"{name}.{key} is not as it was written")


_LATER_PARTS = {"alarm"}
"""Parts whose state older checkpoints lack; they start without observations."""


def _never_called(*_: Any, **__: Any) -> list[float]:
    raise RuntimeError(
        "TRL called the reward function, but rewards come with the batch: its methods have changed."
    )
