"""A checkpoint in Python: its batches, and what the verbs of the command line say of them.

    with ise.Checkpoint("runs/mine/checkpoint-200") as checkpoint:
        E, U = checkpoint.draw(prompts, reward)
        change = checkpoint.measure(E, U)

`draw` and the verbs go the way of the command line: settings of training from the files, batches by
`Sampler`, the step by `prepare_checkpoint`, the answer by `loop.answer`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

from isentrope.checkpoint.checkpoint import StoredCheckpoint
from isentrope.checkpoint.folder_settings import PROMPT_SETTINGS, folder_settings, require_several
from isentrope.checkpoint.in_force import SettingsInForce, refuse
from isentrope.checkpoint.infer.settings import GivenBatch
from isentrope.checkpoint.settle import settle
from isentrope.config.io import load_config
from isentrope.config.measure import CheckpointConfig
from isentrope.config.stages import SamplingConfig
from isentrope.nouns.choices import RECORDED
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.results.result import Result
from isentrope.results.results import InfluenceResult, KernelResult, MeasureResult, NoiseResult
from isentrope.results.verbs import INFLUENCE, KERNEL, MEASURE, NOISE, Verb
from isentrope.sampling.prompts import PromptLike
from isentrope.sampling.tasks.load import RewardLike, list_rewards, names_of_rewards, task_of
from isentrope.sampling.tasks.task import Task
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.log import log
from isentrope.system.progress import Clock
from isentrope.verbs.answerable import require_prompt_groups, require_unrounded
from isentrope.verbs.batches import Sampler
from isentrope.verbs.before_work import require_memory
from isentrope.verbs.loop import answer
from isentrope.verbs.prepare import Prepared, prepare_checkpoint

SectionValues = Mapping[str, Mapping[str, Any]]
"""Settings by section and key."""


class Checkpoint(StoredCheckpoint):
    """A checkpoint on disk. Nothing is read before it is asked for, and each fact is read once.

    The policy is loaded by the first of `draw` and the verbs, and kept for the others, until
    `close` or the end of a `with` block. `policy` loads one that is not kept.

    Example:
        >>> import isentrope as ise
        >>> with ise.Checkpoint("runs/mine/checkpoint-200") as checkpoint:  # doctest: +SKIP
        ...     E, U = checkpoint.draw("prompts.jsonl", reward)
        ...     change = checkpoint.measure(E, U)
        ...     causes = checkpoint.influence(E, U)
        >>> print(change.sentences()[0].text)  # doctest: +SKIP
        One step from step_200 at the training rate lowers entropy by …

    Attributes:
        path: The folder.
        name: What results call it: step_40 for step_40 and checkpoint-40, else the folder's name.
        base_model: Base under the adapter; None for the one that the adapter names.
        allow_hub: Whether a base that the adapter names may come from the model hub.
    """

    _loaded: tuple[dict[str, Any], Policy] | None = None
    _on_batch: str | None = None  # fingerprint of an E on the prompts of the recorded batch

    __init__ = refuse_other_types(StoredCheckpoint.__init__)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the policy; the next method that needs one loads it again."""
        self._loaded = None

    @refuse_other_types
    def draw(
        self,
        prompts: str | Path | Sequence[PromptLike] | None = None,
        reward: RewardLike | Sequence[RewardLike] | None = None,
        *,
        E: int | None = None,
        U: int | None = None,
        settings: SectionValues | None = None,
    ) -> tuple[Rollouts, Rollouts]:
        """Draw E, on which entropy is measured, and draw or read U, which makes the step.

        The batches are those of `isentrope measure FOLDER --prompts FILE --reward NAME`. Where both
        are drawn from one list of prompts, one half of it is for E and the other for U.

        Args:
            prompts: Texts, `Prompt`s, conversations or token ids, or a file of prompts; None for
                those that training held out (the probe's, beside the batch that it recorded), or
                else those of that batch, 4 or more.
            reward: The reward function of training as TRL calls it, or one of a response and its
                reference; a task; a name, "file.py:name"; or a list of functions, which have
                training's weights. None for that of `isentrope train`, or for an E without rewards
                beside a recorded batch.
            E: Responses of E; None for 256.
            U: Prompt groups of U that have an advantage; None for the batch that training recorded,
                or else as many as training had, or 32.
            settings: SectionValues of a configuration, as in YAML: {"batch_config": {"seed": 1}}.

        Returns:
            E, with rewards where there is a reward; and U, with advantages or recorded weights.

        Raises:
            ValueError: If prompts or rewards are missing, or a setting is not training's.
        """
        chosen = [] if U is None else ["batch_config.repeats=1"]  # not the recorded batch
        if E is not None or "B_E" in ((settings or {}).get("batch_config") or ()):
            chosen.append("batch_config.B_E=")  # not so many for each recorded prompt
        sections = folder_settings(str(self.path), overrides=chosen)
        if prompts is None and not isinstance(reward, Task):
            require_several(sections, "give draw prompts for E.")
        batch = dict(sections["batch_config"])
        recorded = "U_file" in batch
        rewards = list_rewards(reward)
        source: Any = prompts
        if prompts is not None or reward is not None:
            if prompts is not None:
                batch = {k: x for k, x in batch.items() if k in ("U_file", "B_U", *PROMPT_SETTINGS)}
            elif not isinstance(reward, Task):
                source = batch.get("dataset_path")
            if reward is None and not recorded:
                raise ValueError(
                    f"{self.path} has no recorded batch of its next step, so U is drawn and needs "
                    "rewards: give draw the reward function of training."
                )
        elif "dataset_name" not in batch:
            raise ValueError(
                f"{self.path} says neither which prompts it was trained on nor which batch comes "
                "next: give draw prompts, and the reward function of training."
            )
        batch |= {name: size for name, size in {"B_U": U, "B_E": E}.items() if size is not None}
        names = names_of_rewards(rewards)
        in_force = self._settle(sections | {"batch_config": batch}, settings, reward_names=names)
        config = in_force.config
        for note in in_force.reward_notes:
            log.warning(note)
        tasks = None
        if prompts is not None or reward is not None:
            halves = 0.0 if recorded or source is None else 0.5
            how = halves, config.batch_config.dataset_options.get("weights")
            tasks = task_of(source, rewards, "test", *how), task_of(source, rewards, "train", *how)
        policy = self._load_once(config.checkpoint, config.sampling)
        sampler = Sampler(policy, config, self.path, tasks)
        drawn_E, drawn_U, _ = sampler.batches()
        if batch.get("fixed_prompts") == "E":
            self._on_batch = drawn_E.fingerprint
        rewarded = reward is not None or "reward" not in sections.get("analysis", {})
        if rewarded and (prompts is None or reward is not None):
            drawn_E = sampler.rewarded(drawn_E)
        return drawn_E, drawn_U

    @refuse_other_types
    def measure(
        self, E: Rollouts, U: Rollouts, settings: SectionValues | None = None
    ) -> MeasureResult:
        """How much the step on U changes the entropy of E, as `isentrope measure` says it.

        Args:
            E: What entropy is measured on, drawn independently of U.
            U: The update batch, with rewards, advantages or recorded weights.
            settings: SectionValues of a configuration, as in YAML: {"estimator": {"order": 1}}.

        Returns:
            The result.

        Raises:
            ValueError: If the step would not be training's, or a batch or a setting does not fit.
        """
        from isentrope.verbs.measure import find_change

        return cast(MeasureResult, self._answer(MEASURE, find_change, E, U, settings).as_saved())

    @refuse_other_types
    def influence(
        self, E: Rollouts, U: Rollouts, settings: SectionValues | None = None
    ) -> InfluenceResult:
        """Which sequences and tokens of U move the entropy, as `isentrope influence` says it.

        Args:
            E: What entropy is measured on, drawn independently of U.
            U: The update batch, with rewards, advantages or recorded weights.
            settings: SectionValues of a configuration, as in YAML: {"analysis": {"tokens": False}}.

        Returns:
            The result.

        Raises:
            ValueError: If the step would not be training's, or a batch or a setting does not fit.
        """
        from isentrope.verbs.influence import find_influence

        influence = self._answer(INFLUENCE, find_influence, E, U, settings).as_saved()
        return cast(InfluenceResult, influence)

    @refuse_other_types
    def noise(self, E: Rollouts, U: Rollouts, settings: SectionValues | None = None) -> NoiseResult:
        """How many prompts a step needs, as `isentrope noise` says it.

        Args:
            E: What entropy is measured on, drawn independently of U.
            U: The update batch, with rewards, advantages or recorded weights.
            settings: SectionValues of a configuration, as in YAML.

        Returns:
            The result.

        Raises:
            ValueError: If the step would not be training's, or a batch or a setting does not fit.
        """
        from isentrope.verbs.noise import find_noise

        return cast(NoiseResult, self._answer(NOISE, find_noise, E, U, settings).as_saved())

    @refuse_other_types
    def kernel(
        self, E: Rollouts, U: Rollouts, settings: SectionValues | None = None
    ) -> KernelResult:
        """How a step on one response changes the others, as `isentrope kernel` says it.

        Args:
            E: What entropy is measured on, drawn independently of U.
            U: The update batch, with rewards, advantages or recorded weights.
            settings: SectionValues of a configuration, as in YAML: {"fisher_kernel": {"rank": 3}}.

        Returns:
            The result; `fisher_kernel` gives the matrices.

        Raises:
            ValueError: If the step would not be training's, or a batch or a setting does not fit.
        """
        from isentrope.verbs.kernel import find_kernel

        # it keeps the matrices, which its figure shows and `save` writes
        return cast(KernelResult, self._answer(KERNEL, find_kernel, E, U, settings))

    def _answer(
        self,
        verb: Verb,
        analyse: Callable[[Prepared], Result],
        E: Rollouts,
        U: Rollouts,
        settings: SectionValues | None,
    ) -> Result:
        """The result of a verb on two batches."""
        sections: dict[str, Any] = {"analysis": {"reward": E.rewards is not None}}
        if self._on_batch and E.with_columns(rewards=None).fingerprint == self._on_batch:
            sections["batch_config"] = {"fixed_prompts": "E", "allow_overlap": True}
            sections["analysis"]["overlap"] = "independent"  # equal responses are chance
        if U.token_weights is not None:
            sections["estimator"] = {"objective": RECORDED}
        by_control = bool(self.contract.get("control")) and U.token_weights is None
        batch = GivenBatch(
            has_advantages=U.advantages is not None,
            has_entropy_weights=U.entropy_weights is not None,
            max_new_tokens=U.max_new_tokens,
            drawn=by_control,  # then the step is that of the objective without the control
        )
        in_force = self._settle(sections, settings, batch)
        config = in_force.config
        require_unrounded(verb, config.precision)
        require_prompt_groups(verb, U.n_prompts, f"U has {U.n_prompts}: draw it with U=16")
        require_memory(verb.name, self.name, self.path, config)
        policy = self._load_once(config.checkpoint, config.sampling)
        return answer(verb, analyse, prepare_checkpoint(self, in_force, Clock(), policy, (E, U)))

    def _settle(
        self,
        sections: Mapping[str, Mapping[str, Any]],
        settings: SectionValues | None,
        batch: GivenBatch | None = None,
        reward_names: tuple[str, ...] = (),
    ) -> SettingsInForce:
        """Sections and the settings that win over them, filled with those of training."""
        content = {name: dict(section) for name, section in sections.items()}
        content["checkpoint"] = {"checkpoint_path": str(self.path), "base_model": self.base_model}
        content["checkpoint"]["allow_hub"] = self.allow_hub
        for name, section in (settings or {}).items():
            mapped = isinstance(section, Mapping)  # else the configuration refuses it
            content[name] = {**content.get(name, {}), **section} if mapped else section
        in_force = settle(self, load_config(content), batch, reward_names)
        refuse(in_force.obstacles, in_force.ignored, self.name)
        return in_force

    def _load_once(self, section: CheckpointConfig, sampling: SamplingConfig) -> Policy:
        """The policy that is kept, loaded where there is none with these settings."""
        how = section.model_dump() | sampling.model_dump(exclude={"max_new_tokens", "batch_size"})
        if self._loaded is None or self._loaded[0] != how:
            self._loaded = None  # its memory is needed for the next one
            self._loaded = how, self.load(section, sampling)
        return self._loaded[1]
