"""`isentrope check`: can this checkpoint, sampler and scorer be measured?

Runs every check of `isentrope.checks` on the batches and settings a measurement would use, and
compares those settings with the ones the checkpoint says it was trained with.

The batches need no data set and no rewards. E and U are responses of the policy to the prompts of
the configured task, or else to questions of the library's own. U's advantages are the task's where
a group has one, else random: most checks ask for a direction of the size of a step, not for the
step itself. What the rewards say is a finding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from isentrope.checkpoint.checkpoint import StoredCheckpoint
from isentrope.checkpoint.files import CONTRACT, TRAINING_ARGS
from isentrope.checkpoint.in_force import SettingsInForce, ways_on
from isentrope.checkpoint.limits import (
    model_obstacles,
    stale_batch,
    training_dropout,
    unlike_advantages,
)
from isentrope.checkpoint.settle import settle
from isentrope.checkpoint.step import WAYS_OUT, rounding_of, step_of_files, step_on_batch
from isentrope.checks import (
    Finding,
    check_adapter,
    check_instrument,
    check_optimizer,
    check_rates,
    check_sampler,
)
from isentrope.checks.instrument import BATCH, SAME_LOGITS
from isentrope.config.measure import MeasureConfig
from isentrope.models.adapter import stored_types
from isentrope.nouns.choices import RECORDED
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import norm
from isentrope.planning.plan import DoesNotFitError
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy
from isentrope.policy.sampler_record import check_logprobs
from isentrope.results.verbs import MEASURE
from isentrope.run.study import other_base, require_inputs
from isentrope.sampling.advantages import with_advantages
from isentrope.sampling.prompts import PromptLike
from isentrope.system.manifest import verification
from isentrope.system.outputs import require_writable
from isentrope.system.processes import join_processes
from isentrope.system.progress import progress
from isentrope.update.objective import entropy_weights, token_weights
from isentrope.update.optimizer_state import OptimizerState, load_optimizer_state
from isentrope.update.rounding import MAX_ROUNDING
from isentrope.update.saved_state import MissingStateError
from isentrope.update.step import Step
from isentrope.verbs.batches import Sampler, at_precision
from isentrope.verbs.before_work import require_memory
from isentrope.verbs.own_prompts import own_prompts

FEW = 32
"""Responses that show what the scorer does; the tests of the sampler need them all."""


def check(config: MeasureConfig) -> dict[str, list[Finding]]:
    """Check every checkpoint of a configuration."""
    join_processes()
    findings = {}
    if config.output.directory is not None:
        require_writable(config.output.directory, "--out (output.directory)")
    with verification(config.checkpoint.verify):
        for checkpoint in require_inputs(config):
            settings = settle(checkpoint, config)
            obstacles = (*settings.obstacles, *other_base(checkpoint, checkpoint.digests))
            settings = replace(settings, obstacles=obstacles)
            in_force = settings.config
            memory: list[Finding] = []
            with progress().bar(f"loading {checkpoint.name}"):
                try:
                    require_memory(MEASURE.name, checkpoint.name, checkpoint.path, in_force)
                except DoesNotFitError as error:
                    memory.append(Finding("memory", False, str(error)))
                policy = checkpoint.load(in_force.checkpoint, in_force.sampling)
                policy.share_work()
            sampler = Sampler(policy, in_force, checkpoint.path)
            findings[checkpoint.name] = [*memory, *_check_one(checkpoint, settings, sampler)]
    return findings


def _check_one(
    checkpoint: StoredCheckpoint, settings: SettingsInForce, sampler: Sampler
) -> list[Finding]:
    """The findings of one checkpoint."""
    policy = sampler.policy
    config = settings.config
    estimator = config.estimator
    precision = config.precision
    with progress().bar("comparing settings and optimizer with the model"):
        adapter = check_adapter(policy, checkpoint.path, checkpoint.optimizer)
        findings = [_compare_settings(policy, checkpoint, settings), adapter]
    E, U, rewarded = _batches(sampler)
    findings.append(rewarded)
    with (
        at_precision(policy, precision.updating),
        progress().bar("taking the step of the optimizer"),
    ):
        findings += _check_batch(sampler, U, checkpoint, settings)
        longest = sampler.longest(U)
        more: list[Finding] = []
        refusal = ""
        objective = estimator.objective
        if U.token_weights is None and objective == RECORDED:
            objective = "dapo"
        # the checks need any direction like a step's, also where U's record is faulty
        direct = estimator.model_copy(update={"objective": objective, "off_policy": False})
        state = stepped = None
        directed = replace(settings, config=config.model_copy(update={"estimator": direct}))
        try:
            state = load_optimizer_state(policy, checkpoint.optimizer)
        except (ValueError, FileNotFoundError):  # check_optimizer says why
            pass
        else:
            stepped = _try_step(checkpoint, policy, state, directed, U, longest)
        if state is None or stepped is None:
            weights = token_weights(U, direct.objective, **direct.weighting(longest))
            gradient = weighted_gradient(policy, U, weights, entropy_weights(U, direct.objective))
            along = gradient
        else:
            step, refusal = stepped
            gradient = {name: -x for name, x in step.loss_gradient.items()}
            along = gradient if norm(gradient) else step.direction  # at A = B = 0, say
            rounding = _check_rounding(checkpoint, policy, state, directed, step)
            more = [check_rates(state, checkpoint.path), rounding]
        fits = check_optimizer(policy, gradient, checkpoint.optimizer, bool(rewarded.passed))
        findings += [fits, *more]
        if refusal and all(finding.passed is not False for finding in (fits, *more)):
            findings.append(Finding("the step of the optimizer", False, refusal))
    dropped = {}
    if "dropout" not in settings.ignored:
        dropped = training_dropout(policy.model, checkpoint.argument_fields)
    with at_precision(policy, precision.measuring):
        sample = E.select(range(min(FEW, len(E))))
        with progress().bar("testing the scorer"):
            findings += check_instrument(policy, sample, along, training_rates=dropped)
        if all(f.passed is not False for f in findings if f.name in (BATCH, SAME_LOGITS)):
            with progress().bar("testing the sampler"):
                findings += check_sampler(policy, E, along)
    return findings


_OTHER_STEP = "The step would not be the one that training takes"


def _compare_settings(
    policy: Policy, checkpoint: StoredCheckpoint, settings: SettingsInForce
) -> Finding:
    """Compare a configuration with what the checkpoint says it was trained with."""
    name = "settings of training"
    of_model = [o for o in model_obstacles(policy, checkpoint) if o.name != "dropout"]
    obstacles = (*settings.obstacles, *of_model)
    conflicts = [o.words for o in obstacles if o.name not in settings.ignored]
    compared = [key for key, origin in settings.origins.items() if origin.training is not None]
    if not compared and not settings.filled and not conflicts:
        return Finding(name, None, f"no {CONTRACT} and no {TRAINING_ARGS} say how it was trained")
    advice = f"{_OTHER_STEP}. {ways_on(o for o in obstacles if o.name not in settings.ignored)}"
    ignored = f"; ignored: {', '.join(settings.ignored)}" if settings.ignored else ""
    sound = f"as in training: {', '.join(compared)}{ignored}"
    return Finding.judged(name, "; ".join(conflicts), advice, sound)


def _check_batch(
    sampler: Sampler, U: Rollouts, checkpoint: StoredCheckpoint, settings: SettingsInForce
) -> Iterator[Finding]:
    """Is U a draw of the policy, and has it training's advantages?"""
    name = "U is a draw of the policy"
    estimator = settings.config.estimator
    if sampler.data.U_file is None:
        yield Finding(name, None, "U is drawn here")
        return
    stale, _ = stale_batch(sampler.policy, U, estimator)
    for obstacle in (*unlike_advantages(U, checkpoint, settings), *stale):
        aspect = name if obstacle in stale else "advantages of U"
        passed = None if obstacle.name in settings.ignored else False
        yield Finding(aspect, passed, obstacle.words, f"{_OTHER_STEP}.")
    if U.sampler_logprobs is None:
        yield Finding(name, None, "U has no log-probabilities of its sampler")
    elif not stale:  # a faulty record is one of `stale` wherever the step depends on it
        record = check_logprobs(sampler.policy, U)
        advice = "" if record.sound else "The step is of recorded weights and does not use them."
        yield Finding(name, True if record.sound else None, record.sentence.rstrip("."), advice)


def _try_step(
    checkpoint: StoredCheckpoint,
    policy: Policy,
    state: OptimizerState,
    settings: SettingsInForce,
    U: Rollouts,
    longest: int,
) -> tuple[Step, str] | None:
    """The step on U, and why a measurement would refuse it; empty where it would not.

    Returns:
        None where a part of the optimizer's state is missing, which check_optimizer says.
    """
    try:
        return step_of_files(checkpoint, policy, state, settings, U, longest), ""
    except MissingStateError:
        return None
    except ValueError as error:
        refusal = str(error)
    try:
        return step_on_batch(policy, U, state, settings.config.estimator, longest)[1], refusal
    except MissingStateError:
        return None


def _check_rounding(
    checkpoint: StoredCheckpoint,
    policy: Policy,
    state: OptimizerState,
    settings: SettingsInForce,
    step: Step,
) -> Finding:
    """Is v the step that training takes in the type of its weights?"""
    name = "the step survives rounding"
    rounding = rounding_of(checkpoint, policy, state, settings, step)
    if rounding is None:
        stored = set(stored_types(checkpoint.path, policy.names).values())
        kinds = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in stored))
        short = stored & {torch.bfloat16, torch.float16}
        note = "; training kept a float32 copy of them" if short else ""
        return Finding(name, True, f"weights on disk are {kinds}{note}")
    if settings.config.estimator.rounded_step:
        return Finding(name, True, f"{rounding}; the rounded step is measured")
    detail = f"{rounding} (bound {MAX_ROUNDING:g})"
    failure = detail if rounding.error > MAX_ROUNDING else ""
    return Finding.judged(name, failure, WAYS_OUT, detail)


def _batches(sampler: Sampler) -> tuple[Rollouts, Rollouts, Finding]:
    """Draw or read E and U for the checks.

    Returns:
        E, U with advantages, and what is known of prompts and rewards: where it has passed, the
        advantages are those of rewards, so that U's gradient is like those of training.
    """
    data = sampler.data
    policy = sampler.policy
    name = "prompts and rewards"
    if data.U_file is not None:
        E, U, _ = sampler.batches()
        return E, U, Finding(name, True, f"U is {data.U_file}")
    names_prompts = bool({"dataset_name", "U_dataset_name"} & data.model_fields_set)
    sampling = sampler.config.sampling
    task = data.update_task() if names_prompts else None
    if task is not None:
        sampler.weights_of(task.prompts)  # refused as measure refuses them
        prompts: Sequence[PromptLike] = task.prompts
    else:
        prompts, length = own_prompts(policy, sampling.max_new_tokens)
        sampling = sampling.model_copy(update={"max_new_tokens": length})
        shorter = sampler.config.model_copy(update={"sampling": sampling})
        sampler = replace(sampler, config=shorter)
    if data.E_file is not None:
        E = sampler.read_evaluation(data.E_file)
    else:
        E = sampler.evaluation() if names_prompts else sampler.in_turn("E", prompts)
    U = sampler.in_turn("U", prompts)
    generator = torch.Generator().manual_seed(data.seeds["U"])
    random = torch.randn(len(U), generator=generator, dtype=torch.float64)
    nothing = f"no data set was given: {len(E)} responses to questions of the library's own"
    finding = Finding(name, None, nothing)
    if task is not None:
        try:
            U = sampler.rewarded_by(task, U, unscored=True)
        except ValueError as error:
            advice = (
                "measure needs rewards: batch_config.U_dataset_name, or U_file with advantages."
            )
            finding = Finding(name, None, str(error), advice)
        else:
            rule = sampler.config.estimator.advantage_rule
            advantages = torch.as_tensor(with_advantages(U, rule).advantages).view(data.B_U, -1)
            useful = int((advantages != 0).any(1).sum())
            mean = torch.as_tensor(U.rewards).nanmean()
            detail = f"{useful} of {data.B_U} groups have an advantage, mean reward {mean:.3g}"
            if useful:
                U = with_advantages(U, rule)
                return E, U, Finding(name, True, detail)
            advice = (
                "measure draws groups of equal rewards again: use prompts that are solved "
                "sometimes, or a larger batch_config.G."
            )
            finding = Finding(name, None, detail, advice)
    return E, U.with_columns(advantages=random), finding
