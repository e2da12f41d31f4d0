"""What settings a measurement of a checkpoint has: its own, or else training's.

A key that the configuration does not set has training's value, where a file of the checkpoint says
it. One that is set otherwise is refused, and so is what training's step has and the computed one
has not. `estimator.ignore_training_settings` lists what may differ all the same; each then leaves a
warning in the result, and so does a default in place of a setting that no file says. The command
line and `ise.optimizer_step` both go through `settle`.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

from isentrope.checkpoint.facts import CheckpointFacts
from isentrope.checkpoint.files import CONTRACT, TRAINING_ARGS
from isentrope.checkpoint.in_force import ASSUMED, Origin, SettingsInForce
from isentrope.checkpoint.infer.fields import TRAINING_KEYS
from isentrope.checkpoint.infer.reward_functions import (
    RewardFunctions,
    logged_functions,
    order_by_sums,
)
from isentrope.checkpoint.infer.settings import (
    GivenBatch,
    Obstacle,
    Setting,
    batch_in_file,
    obstacles_of,
    of_another_step,
)
from isentrope.checkpoint.infer.step import Use
from isentrope.checkpoint.infer.unshown import notes_on_arguments
from isentrope.config.measure import BatchConfig, MeasureConfig
from isentrope.nouns.choices import ADVANTAGES_OF, RECORDED, SFT
from isentrope.sampling.tasks.names import function_names

_SECTIONS = ("sampling", "batch_config", "estimator")
_OBJECTIVE = "estimator.objective"
_OPTIONS = "batch_config.dataset_options"
_NULL_IS_UNSET = ("estimator.advantages", "estimator.max_response_length", "estimator.micro_batch")
"""Keys whose null leaves the value to others."""
_NEEDED = {
    RECORDED: "its token weights (next_update/rollouts.parquet of the checkpoint)",
    SFT: "its demonstrations, a jsonl with prompt and response in each line",
}


def settle(
    checkpoint: CheckpointFacts,
    config: MeasureConfig,
    batch: GivenBatch | None = None,
    reward_names: tuple[str, ...] = (),
) -> SettingsInForce:
    """Compare settings with training's, and fill in those that are not set.

    Args:
        checkpoint: The checkpoint.
        config: The settings.
        batch: U, where it is in memory; None: as the configuration says.
        reward_names: Names of reward functions in memory; empty: as the configuration says.

    Returns:
        What is in force; nothing is refused yet.
    """
    values, chosen = _read_sections(config)
    file = config.batch_config.U_file
    if batch is None:
        batch = batch_in_file(file, computed=config.estimator.advantages is not None)
    chosen_objective = values[_OBJECTIVE] if _OBJECTIVE in chosen else None
    uncontrolled = checkpoint.uncontrolled_objective(chosen_objective, drawn=batch.drawn)
    training = checkpoint.settings
    if uncontrolled is not None:
        training = checkpoint.settings_without_control(uncontrolled)
    objective, obstacles = _choose_objective(values, training, chosen, batch)
    functions = _find_reward_functions(checkpoint, config.batch_config, reward_names)
    use = Use(
        objective,
        off_policy=config.estimator.off_policy,
        own_advantages=batch.has_advantages,
        entropy_weights=batch.has_entropy_weights,
        rounding=config.precision.updating.rounding,
        reward_weights=() if batch.has_rewards else functions.summed_by,
    )
    sampled = batch.drawn or config.batch_config.E_file is None
    acting, assumed = _find_acting_keys(checkpoint, training, use, batch, chosen, sampled=sampled)
    if file is not None:
        obstacles += of_another_step(file, batch, checkpoint.files.step)
    origins, filled, conflicts = _compare_keys(
        values, training, objective, acting=acting, chosen=chosen, assumed=assumed
    )
    obstacles += conflicts
    if not checkpoint.contract.get("replayable", True):
        words = f"{CONTRACT} says that its steps cannot be replayed (replayable is false)"
        obstacles.append(Obstacle("replayable", words))
    if checkpoint.arguments is not None:
        obstacles += obstacles_of(checkpoint.arguments, use)
    prompts = checkpoint.prompts_per_step
    drawn = config.batch_config.B_U if batch.drawn else None
    notes = notes_on_arguments(checkpoint.argument_fields, use, uncontrolled, drawn, prompts)
    reward_notes: list[str] = []
    if functions.trained:
        computed = not (objective in _NEEDED or batch.has_rewards or batch.has_advantages)
        rewarded = computed or config.analysis.reward
        missing, reward_notes = functions.compare(obstacles, computed, rewarded)
        obstacles += missing
    if functions.trained_weights and (weights := functions.trained_weights_in_order):
        reward_notes += [functions.order_note] if functions.order_note else []
        filled[_OPTIONS] = {**config.batch_config.dataset_options, "weights": weights}
        origins[f"{_OPTIONS}.weights"] = Origin(weights, TRAINING_ARGS, weights)
    in_force = _fill(config, filled)
    notes += reward_notes
    return SettingsInForce(
        in_force, origins, tuple(obstacles), tuple(notes), tuple(reward_notes), prompts
    )


def _find_reward_functions(
    checkpoint: CheckpointFacts, data: BatchConfig, names: tuple[str, ...]
) -> RewardFunctions:
    """The reward functions of U beside training's, as far as names and files tell them.

    Args:
        checkpoint: The checkpoint; a contract of `isentrope train` names the task itself.
        data: Where the task of U is named.
        names: Of functions in memory; empty for those that the configuration names.

    Returns:
        The functions.
    """
    shared = data.U_dataset_name in (None, data.dataset_name)  # else the options are of E's task
    weights = data.dataset_options.get("weights") if shared else None
    chosen = tuple(weights) if isinstance(weights, list) else ()
    names = names or function_names(data.U_dataset_name or data.dataset_name)
    if not names or checkpoint.contract or checkpoint.arguments is None:
        return RewardFunctions(names, chosen)
    state = checkpoint.files.trainer_state
    saved_weights = checkpoint.argument_fields.get("reward_weights") if shared else None
    trained_weights = tuple(saved_weights or ())
    ordered = order_by_sums(state, trained_weights)
    trained = ordered or logged_functions(state)
    return RewardFunctions(names, chosen, trained, trained_weights, bool(ordered))


def _read_sections(config: MeasureConfig) -> tuple[dict[str, Any], set[str]]:
    """The settings by key, the clip as a pair, and the keys that the configuration itself sets."""
    values: dict[str, Any] = {}
    chosen: set[str] = set()
    for name in _SECTIONS:
        section = getattr(config, name)
        for field, value in section:
            key = f"{name}.{field}"
            values[key] = value
            unset = value is None and key in _NULL_IS_UNSET
            if key in TRAINING_KEYS and field in section.model_fields_set and not unset:
                chosen.add(key)
    return values | {"estimator.clip": config.estimator.clip_pair}, chosen


def _fill(config: MeasureConfig, values: Mapping[str, Any]) -> MeasureConfig:
    """The configuration with training's values."""
    sections: dict[str, Any] = {}
    for key, value in values.items():
        name, _, field = key.partition(".")
        section = sections.get(name, getattr(config, name))
        sections[name] = section.model_copy(update={field: value})
    return config.model_copy(update=sections)


def _compare_keys(
    values: Mapping[str, Any],
    training: Mapping[str, Setting],
    objective: str,
    *,
    acting: Collection[str],
    chosen: Collection[str],
    assumed: Collection[str],
) -> tuple[dict[str, Origin], dict[str, Any], list[Obstacle]]:
    """Where the value of each key comes from, what training fills in, and what is set otherwise."""
    origins: dict[str, Origin] = {}
    filled: dict[str, Any] = {}
    obstacles: list[Obstacle] = []
    for key in TRAINING_KEYS:
        setting = training.get(key) if key in acting else None
        if key in chosen:
            origins[key] = Origin(values[key], "configuration", setting and setting.value)
            if setting is not None and not _are_equal(values[key], setting.value):
                words = (
                    f"{key} is {_as_list(values[key])!r}, training had {_as_list(setting.value)!r} "
                    f"({setting.file})"
                )
                obstacles.append(Obstacle(key, words))
        elif setting is not None:
            origins[key] = Origin(setting.value, setting.file, setting.value)
            filled[key] = setting.value
        elif key in assumed:
            by_rule = key == "estimator.advantages"
            value = ADVANTAGES_OF[objective] if by_rule else values[key]
            origins[key] = Origin(value, ASSUMED)
        else:
            origins[key] = Origin(values[key], "default")
    return origins, filled, obstacles


def _choose_objective(
    values: Mapping[str, Any],
    training: Mapping[str, Setting],
    chosen: Collection[str],
    batch: GivenBatch,
) -> tuple[str, list[Obstacle]]:
    """The objective in force, and why training's is not where it cannot be."""
    configured = values[_OBJECTIVE]
    setting = training.get(_OBJECTIVE)
    if _OBJECTIVE in chosen or setting is None:
        return configured, []
    trained = setting.value
    if trained == RECORDED and values["estimator.off_policy"]:
        cause = "whose token weights hold the ratios already: leave estimator.off_policy out"
    elif trained != "dr_grpo" and values["estimator.max_response_length"] is not None:
        cause = "and estimator.max_response_length acts with dr_grpo only"
    elif trained in _NEEDED and batch.drawn:
        cause = f"which needs batch_config.U_file: {_NEEDED[trained]}"
    else:
        return trained, []
    words = f"training's objective is {trained} ({setting.file}), {cause}"
    return configured, [Obstacle(_OBJECTIVE, words)]


def _find_acting_keys(
    checkpoint: CheckpointFacts,
    training: Mapping[str, Setting],
    use: Use,
    batch: GivenBatch,
    chosen: Collection[str],
    *,
    sampled: bool,
) -> tuple[set[str], set[str]]:
    """Keys that act on the step in question or on its batches, and those that are assumed."""
    objective = use.objective
    trained = training[_OBJECTIVE].value if _OBJECTIVE in training else None
    agrees = trained in (None, objective)
    recorded = objective == RECORDED
    weighted = objective not in (RECORDED, SFT)
    acts = {
        "sampling.temperature": True,
        "sampling.max_new_tokens": sampled,
        "batch_config.chat_template_kwargs": True,
        "estimator.max_grad_norm": True,
        _OBJECTIVE: agrees and trained is not None if recorded else agrees or _OBJECTIVE in chosen,
        "batch_config.G": weighted and batch.drawn,
        "estimator.advantages": weighted and agrees and not use.own_advantages,
        "estimator.max_response_length": agrees and objective == "dr_grpo",
        "estimator.clip": weighted and agrees and (use.off_policy or objective == "cispo"),
        "estimator.micro_batch": (agrees and objective == "bnpo") or use.rounding is not None,
    }
    acting = set(filter(acts.get, acts))
    settled = {*chosen, *training}
    # the number of responses of a group and the length of those of E make no other step
    same_step = {"batch_config.G", "estimator.max_response_length"}
    same_step.add("batch_config.chat_template_kwargs")  # most prompts have none
    one_pass = "per_device_train_batch_size" in checkpoint.argument_fields  # which null says
    if objective != "bnpo" or one_pass:
        same_step.add("estimator.micro_batch")
    constant = objective == "dr_grpo" and "estimator.max_response_length" not in settled
    if batch.max_new_tokens or not (batch.drawn or constant):
        same_step.add("sampling.max_new_tokens")
    return acting, acting - settled - same_step


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _are_equal(value: Any, trained: Any) -> bool:
    if isinstance(value, (tuple, list)) and isinstance(trained, (tuple, list)):
        return len(value) == len(trained) and all(map(_are_equal, value, trained))
    if isinstance(value, (int, float)) and isinstance(trained, (int, float)):
        return math.isclose(value, trained, rel_tol=1e-9)
    return value == trained
