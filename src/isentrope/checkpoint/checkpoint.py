"""A checkpoint that knows itself: its settings, the policy in it, and the step from it."""

from collections.abc import Mapping
from typing import Any

from isentrope.checkpoint.facts import CheckpointFacts
from isentrope.checkpoint.in_force import refuse
from isentrope.checkpoint.infer.settings import GivenBatch
from isentrope.checkpoint.overrides import configure_step
from isentrope.checkpoint.settle import settle
from isentrope.checkpoint.step import CheckpointStep, take_step
from isentrope.config.io import load_config
from isentrope.nouns.choices import RECORDED
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.system.argument_types import refuse_other_types
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.parameter_names import Names

_BY_OBJECTIVE = {"objective", "advantages", "off_policy"}
"""Overrides of `step` that ask for weights other than those that were recorded."""


class StoredCheckpoint(CheckpointFacts):
    """A checkpoint on disk. Nothing is read before it is asked for, and each fact is read once.

    Example:
        >>> import isentrope as ise
        >>> checkpoint = ise.Checkpoint("runs/toy/training_state/step_20")  # doctest: +SKIP
        >>> checkpoint.settings["estimator.objective"].value  # doctest: +SKIP
        'dr_grpo'
        >>> policy = checkpoint.policy()  # doctest: +SKIP
        >>> step = checkpoint.step(policy, U)  # doctest: +SKIP

    Attributes:
        path: The folder.
        name: What results call it: step_40 for step_40 and checkpoint-40, else the folder's name.
        base_model: Base under the adapter; None for the one that the adapter names.
        allow_hub: Whether a base that the adapter names may come from the model hub.
    """

    def policy(
        self,
        device: str = "cpu",
        *,
        temperature: float | None = None,
        trainable: list[str] | None = None,
    ) -> Policy:
        """Load the policy in float32. A checkpoint keeps none, so that many fit into memory.

        Args:
            device: "cpu", "cuda" or "cuda:N".
            temperature: Of sampling; None for training's, or 1 where no file says it.
            trainable: Names of what was trained, with * and ?; None for the whole adapter, or all
                weights.

        Returns:
            The policy at θ.

        Raises:
            ValueError: If an argument does not fit, or the model cannot be measured.
            FileNotFoundError: If weights or the base model are not there.
        """
        setting = self.settings.get("sampling.temperature")
        if temperature is None:
            temperature = 1.0 if setting is None else setting.value
        config = load_config(
            {
                "checkpoint": {
                    "checkpoint_path": str(self.path),
                    "base_model": self.base_model,
                    "allow_hub": self.allow_hub,
                    "device_map": device,
                    "trainable": trainable,
                },
                "sampling": {"temperature": temperature},
            }
        )
        return self.load(config.checkpoint, config.sampling)

    @refuse_other_types
    def step(
        self,
        policy: Policy,
        U: Rollouts | None = None,
        overrides: Mapping[str, Any] | None = None,
        *,
        rule: str | None = None,
        names: Names | None = None,
    ) -> CheckpointStep:
        """The step that training would take from here on an update batch.

        Settings are training's, where a file of the checkpoint says them: what was recorded comes
        first, then the trainer's own arguments. Otherwise they are the defaults of the command
        line, and the step's warnings name them. The step has the precision of the policy.

        Args:
            policy: The policy at θ, at the temperature of training.
            U: The update batch, with advantages (or given responses for "sft"); where it has the
                weights that training recorded, these make the step, unless `overrides` names an
                objective. None for the batch that training recorded.
            overrides: Settings that differ, by name: objective, advantages, max_response_length,
                max_grad_norm, clip, micro_batch, off_policy, rounded_step, master_weights and
                ignore_training_settings.
            rule: "adamw", "adam", "sgd" or "rmsprop"; None infers it from the param groups.
            names: Names of the optimizer's parameters in its order, where they cannot be found.

        Returns:
            The step per unit learning rate, and what limits it.

        Raises:
            ValueError: If the step would not be training's, a setting or the optimizer does not
                fit, or there is no recorded step where no batch is given.
        """
        overrides = dict(overrides or {})
        if U is None:
            if self.recorded_step is None:
                raise ValueError(
                    f"{self.path} has no recorded step (next_update): give the update batch U."
                )
            U = self.recorded_step.rollouts
            overrides = {"objective": RECORDED} | overrides
        elif U.token_weights is not None and not overrides.keys() & _BY_OBJECTIVE:
            overrides["objective"] = RECORDED  # as `measure` takes it
        config = configure_step(self.path, policy, overrides)
        state = load_optimizer_state(policy, self.optimizer, rule=rule, names=names)
        batch = GivenBatch(
            has_advantages=U.advantages is not None,
            has_entropy_weights=U.entropy_weights is not None,
            max_new_tokens=U.max_new_tokens,
        )
        settings = settle(self, config, batch)
        refuse(settings.obstacles, settings.ignored, str(self.path))
        return take_step(self, policy, state, settings, U, U.max_new_tokens, drawn_here=False)
