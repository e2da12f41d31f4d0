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

from isentrope.checkpoint.checkpoint import Subject
from isentrope.checkpoint.digests import checkpoint_digests
from isentrope.checkpoint.files import CONTRACT
from isentrope.checkpoint.infer.arguments import TRAINING_ARGS
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
from isentrope.update.objective import RECORDED, entropy_weights, token_weights
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.rounding import MAX_ROUNDING
from isentrope.update.saved_state import MissingStateError
from isentrope.update.step import Step
from isentrope.verbs.batches import Sampler, at_precision
from isentrope.verbs.own_prompts import own_prompts
from isentrope.verbs.plan import require_memory
from isentrope.verbs.real_step import WAYS_OUT, OptimizerOf, update_step
from isentrope.verbs.training_step import (
    model_obstacles,
    stale_batch,
    step_of_files,
    training_dropout,
    unlike_advantages,
)

FEW = 32
"""Responses that show what the scorer does; the tests of the sampler need them all."""


def check(config: MeasureConfig) -> dict[str, list[Finding]]:
    """Check every checkpoint of a configuration."""
    join_processes()
    findings = {}
    if config.output.directory is not None:
        require_writable(config.output.directory, "--out (output.directory)")
    with verification(config.checkpoint.verify):
        for subject in require_inputs(config):
            alone, settled = config.as_trained(subject.path)
            where = alone.checkpoint
            here = checkpoint_digests(subject.path, where.base_model, allow_hub=where.allow_hub)
            obstacles = (*settled.obstacles, *other_base(subject.path, here))
            known = replace(subject, as_trained=replace(settled, obstacles=obstacles))
            memory = list[Finding]()
            try:
                require_memory(MEASURE.name, subject.name, subject.path, alone)
            except DoesNotFitError as error:
                memory.append(Finding("memory", False, str(error)))
            policy = known.load(where, alone.sampling)
            policy.share_work()
            sampler = Sampler(policy, alone, subject.path)
            findings[subject.name] = [*memory, *_checked(known, sampler)]
    return findings


def _checked(subject: Subject, sampler: Sampler) -> list[Finding]:
    """The findings of one checkpoint."""
    policy, config, settled = sampler.policy, sampler.config, subject.as_trained
    estimator, precision = config.estimator, config.precision
    adapter = check_adapter(policy, subject.path, subject.optimizer)
    findings = [_settings(policy, subject), adapter]
    E, U, rewarded = _batches(sampler)
    findings.append(rewarded)
    with at_precision(policy, precision.updating):
        findings += _of_batch(sampler, U, subject)
        longest, more = sampler.longest(U), list[Finding]()
        refusal, objective = "", estimator.objective
        if U.token_weights is None and objective == RECORDED:
            objective = "dapo"
        # the checks need any direction like a step's, also where U's record is faulty
        direct = estimator.model_copy(update={"objective": objective, "off_policy": False})
        of = stepped = None
        try:
            state = load_optimizer_state(policy, subject.optimizer)
        except (ValueError, FileNotFoundError):  # check_optimizer says why
            pass
        else:
            directed = config.model_copy(update={"estimator": direct})
            of = OptimizerOf(policy, subject, state, directed)
            stepped = _step(of, U, longest)
        if of is None or stepped is None:
            weights = token_weights(U, direct.objective, **direct.weighting(longest))
            gradient = weighted_gradient(policy, U, weights, entropy_weights(U, direct.objective))
            along = gradient
        else:
            step, refusal = stepped
            gradient = {name: -x for name, x in step.loss_gradient.items()}
            along = gradient if norm(gradient) else step.direction  # at A = B = 0, say
            more = [check_rates(of.state, subject.path), _rounding(of, step)]
        fits = check_optimizer(policy, gradient, subject.optimizer, bool(rewarded.passed))
        findings += [fits, *more]
        if refusal and all(finding.passed is not False for finding in (fits, *more)):
            findings.append(Finding("the step of the optimizer", False, refusal))
    dropped = {}
    if "dropout" not in settled.ignored:
        dropped = training_dropout(policy.model, settled.arguments)
    with at_precision(policy, precision.measuring):
        few = E.select(range(min(FEW, len(E))))
        findings += check_instrument(policy, few, along, training_rates=dropped)
        if all(f.passed is not False for f in findings if f.name in (BATCH, SAME_LOGITS)):
            findings += check_sampler(policy, E, along)
    return findings


_OTHER_STEP = "The step would not be the one that training takes"


def _settings(policy: Policy, subject: Subject) -> Finding:
    """Compare a configuration with what the checkpoint says it was trained with."""
    name, settled = "settings of training", subject.as_trained
    of_model = [o for o in model_obstacles(policy, subject) if o.name != "dropout"]
    unlike = [o.words for o in (*settled.obstacles, *of_model) if o.name not in settled.ignored]
    known = [key for key, origin in settled.origins.items() if origin.training is not None]
    if not known and not settled.filled and not unlike:
        return Finding(name, None, f"no {CONTRACT} and no {TRAINING_ARGS} say how it was trained")
    advice = f"{_OTHER_STEP}: set these keys as in training, or leave them out."
    ignored = f"; ignored: {', '.join(settled.ignored)}" if settled.ignored else ""
    sound = f"as in training: {', '.join(known)}{ignored}"
    return Finding.judged(name, "; ".join(unlike), advice, sound)


def _of_batch(sampler: Sampler, U: Rollouts, subject: Subject) -> Iterator[Finding]:
    """Is U a draw of the policy, and has it training's advantages?"""
    name, estimator = "U is a draw of the policy", sampler.config.estimator
    if sampler.data.U_file is None:
        yield Finding(name, None, "U is drawn here")
        return
    stale, _ = stale_batch(sampler.policy, U, estimator)
    for obstacle in (*unlike_advantages(U, subject.as_trained), *stale):
        of = name if obstacle in stale else "advantages of U"
        passed = None if obstacle.name in estimator.ignore_training_settings else False
        yield Finding(of, passed, obstacle.words, f"{_OTHER_STEP}.")
    if U.sampler_logprobs is None:
        yield Finding(name, None, "U has no log-probabilities of its sampler")
    elif not stale:  # a faulty record is one of `stale` wherever the step depends on it
        record = check_logprobs(sampler.policy, U)
        advice = "" if record.sound else "The step is of recorded weights and does not use them."
        yield Finding(name, True if record.sound else None, record.sentence.rstrip("."), advice)


def _step(of: OptimizerOf, U: Rollouts, longest: int) -> tuple[Step, str] | None:
    """The step on U, and why a measurement would refuse it; empty where it would not.

    Returns:
        None where a part of the optimizer's state is missing, which check_optimizer says.
    """
    try:
        return step_of_files(of, U, longest).step, ""
    except MissingStateError:
        return None
    except ValueError as error:
        refusal = str(error)
    try:
        return update_step(of.policy, U, of.state, of.config.estimator, longest)[1], refusal
    except MissingStateError:
        return None


def _rounding(optimizer: OptimizerOf, step: Step) -> Finding:
    """Is v the step that training takes in the type of its weights?"""
    name, rounding = "the step survives rounding", optimizer.rounding(step)
    if rounding is None:
        stored = set(stored_types(optimizer.subject.path, optimizer.policy.names).values())
        kinds = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in stored))
        short = stored & {torch.bfloat16, torch.float16}
        kept = "; training kept a float32 copy of them" if short else ""
        return Finding(name, True, f"weights on disk are {kinds}{kept}")
    if optimizer.config.estimator.rounded_step:
        return Finding(name, True, f"{rounding[0]}; the rounded step is measured")
    seen = f"{rounding[0]} (bound {MAX_ROUNDING:g})"
    return Finding.judged(name, seen if rounding[0].error > MAX_ROUNDING else "", WAYS_OUT, seen)


def _batches(sampler: Sampler) -> tuple[Rollouts, Rollouts, Finding]:
    """Draw or read E and U for the checks.

    Returns:
        E, U with advantages, and what is known of prompts and rewards: where it has passed, the
        advantages are those of rewards, so that U's gradient is like those of training.
    """
    data, policy, name = sampler.data, sampler.policy, "prompts and rewards"
    if data.U_file is not None:
        E, U, _ = sampler.batches()
        return E, U, Finding(name, True, f"U is {data.U_file}")
    named = bool({"dataset_name", "U_dataset_name"} & data.model_fields_set)
    sampling = sampler.config.sampling
    task = data.update_task() if named else None
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
        E = sampler.evaluation() if named else sampler.in_turn("E", prompts)
    U = sampler.in_turn("U", prompts)
    generator = torch.Generator().manual_seed(data.seeds["U"])
    random = torch.randn(len(U), generator=generator, dtype=torch.float64)
    nothing = f"no data set was given: {len(E)} responses to questions of the library's own"
    finding = Finding(name, None, nothing)
    if task is not None:
        try:
            U = sampler.rewarded_by(task, U)
        except ValueError as error:
            advice = (
                "measure needs rewards: batch_config.U_dataset_name, or U_file with advantages."
            )
            finding = Finding(name, None, str(error), advice)
        else:
            assert U.rewards is not None
            rewards = U.rewards.view(data.B_U, -1)
            useful = int((rewards.amax(1) > rewards.amin(1)).sum())
            detail = (
                f"{useful} of {data.B_U} groups have an advantage, mean reward {rewards.mean():.3g}"
            )
            if useful:
                U = with_advantages(U, sampler.config.estimator.advantage_rule)
                return E, U, Finding(name, True, detail)
            advice = (
                "measure draws groups of equal rewards again: use prompts that are solved "
                "sometimes, or a larger batch_config.G."
            )
            finding = Finding(name, None, detail, advice)
    return E, U.with_columns(advantages=random), finding
