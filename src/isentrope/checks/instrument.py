"""The scorer: switches, dropout, determinism, independence of the batch, and the rounding floor."""

from collections.abc import Mapping

from isentrope.checks.checkpoint import Finding
from isentrope.estimators.rounding_floor import rounding_floor
from isentrope.estimators.sample import score_batch
from isentrope.models.architecture import UnsupportedModelError
from isentrope.models.float_switches import matmul_switches
from isentrope.models.float_types import DTYPES, ROUNDING_BOUNDS, RoundingBounds
from isentrope.models.requirements import active_dropout, dropout_rates
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, norm
from isentrope.policy.language_model import Policy
from isentrope.policy.own_logits import rounding_operations
from isentrope.policy.scoring import score
from isentrope.policy.token_statistics import Scores, nondeterminism

SAME_LOGITS = "scores by the model's own logits"
DETERMINISTIC = "deterministic model"
BATCH = "scores independent of the batch"
ROUNDING_FLOOR = "rounding floor"


def check_instrument(
    policy: Policy,
    rollouts: Rollouts,
    direction: Vector | None = None,
    *,
    training_rates: Mapping[str, float] | None = None,
) -> list[Finding]:
    """Check the scorer on some rollouts.

    Args:
        policy: The policy.
        rollouts: Any sequences; a few dozen are enough.
        direction: v for the rounding floor; None: the floor is not measured.
        training_rates: Dropout rates that acted in training, by module; None: all rates of the
            model.

    Returns:
        One finding per check. Where dropout acts, the rest cannot be checked.
    """
    rates = dropout_rates(policy.model) if training_rates is None else training_rates
    findings = [_check_switches(policy), _check_dropout(policy, rates)]
    if active_dropout(policy.model):
        return findings
    first = score(policy, rollouts)
    second = score(policy, rollouts)
    deterministic = Finding.judged(
        DETERMINISTIC,
        nondeterminism(first, second),
        "Find the module that draws random numbers or uses a non-deterministic kernel; "
        "torch.use_deterministic_algorithms(True) names the kernel.",
        "two evaluations are bit-identical",
    )
    findings += [
        deterministic,
        _check_batch_independence(policy, rollouts, first),
        _check_own_logits(policy, rollouts),
    ]
    if policy.precision.runtime_dtype == "float64":
        rounds = rounding_operations(policy.scorer, policy.precision)
        finding = Finding.judged(
            "float64 throughout",
            f"{len(rounds)} operations round, the first is {rounds[0]}" if rounds else None,
            "A module was changed after the policy was made: it must keep its input's type.",
            "no operation of the model rounds to a shorter type",
        )
        findings.append(finding)
    sound = {f.name: f.passed for f in findings}
    if direction is not None and norm(direction) == 0:
        words = "not measured: no trained parameter moves along the direction that was given"
        findings.append(Finding(ROUNDING_FLOOR, None, words))
    elif direction is not None and sound[DETERMINISTIC] and sound[SAME_LOGITS]:
        findings.append(_check_floor(policy, rollouts, direction))
    return findings


def _check_switches(policy: Policy) -> Finding:
    on = [
        f"torch.backends.{name}.fp32_precision={value}"
        for name, value in matmul_switches().items()
        if value in ("tf32", "bf16")
    ]
    on += ["precision.allow_tf32"] if policy.precision.allow_tf32 else []
    return Finding.judged(
        "TF32 off",
        f"on: {', '.join(on)}" if on else None,
        "TF32 rounds float32 products to 10 bits, which is noise far above ΔH at training rates: "
        'set torch.backends.cuda.matmul.fp32_precision and its mkldnn twin to "ieee" and '
        "precision.allow_tf32 to false.",
        "matrix products keep float32, here and in this process",
    )


def _check_dropout(policy: Policy, rates: Mapping[str, float]) -> Finding:
    fault = None
    advice = "The policy is random while dropout acts: call model.eval()."
    if active := active_dropout(policy.model):
        fault = f"active in {len(active)} modules, the first is {active[0]}"
    elif rates:
        name, rate = next(iter(rates.items()))
        fault = (
            f"{len(rates)} modules drop activations in training, the first is {name} at {rate:g}"
        )
        advice = (
            "The training step is not a function of its batch, so it cannot be replayed as v: "
            "train with lora_dropout 0 and the model's own rates 0, or, if training had switched "
            "dropout off, set estimator.ignore_training_settings: [dropout]."
        )
    return Finding.judged("no dropout", fault, advice, "no module has dropout")


def _check_batch_independence(policy: Policy, rollouts: Rollouts, scores: Scores) -> Finding:
    together = scores.logprobs
    alone = [score(policy, rollouts.select([i])).logprobs[0] for i in range(min(8, len(rollouts)))]
    gap = max(float((x - together[i, : len(x)]).abs().max()) for i, x in enumerate(alone))
    limit = _look_up_bounds(policy).logprob
    fault = f"a sequence scored alone and beside longer ones differs by {gap:.2g} nats"
    return Finding.judged(
        BATCH,
        fault if gap > limit else None,
        "The model depends on padding: it must be causal, and a model that pads on the left "
        "needs an attention mask and position ids.",
        f"scored alone or in a batch: equal to {gap:.1g} nats",
    )


def _look_up_bounds(policy: Policy) -> RoundingBounds:
    return ROUNDING_BOUNDS[DTYPES[policy.precision.runtime_dtype]]


def _check_own_logits(policy: Policy, rollouts: Rollouts) -> Finding:
    fault = None
    try:
        policy.require_own_logits(rollouts)
    except UnsupportedModelError as error:
        fault = str(error).rstrip(".")
    advice = "The model cannot be measured as it is loaded."
    return Finding.judged(SAME_LOGITS, fault, advice, "scores are those of the model's own logits")


def _check_floor(policy: Policy, rollouts: Rollouts, direction: Vector) -> Finding:
    sample = score_batch(policy, rollouts)
    floor = rounding_floor(policy, rollouts, direction, sample).log_weight
    dtype = policy.precision.runtime_dtype
    bound = _look_up_bounds(policy).log_weight
    detail = f"{floor:.1g} nats per sequence in {dtype} (bound {bound:.0e})"
    advice = "Measure in float64: rounding exceeds differences at training rates otherwise."
    if dtype == "float64":
        advice = (
            "An operation of the model rounds to a shorter type than float64: the finding 'float64 "
            "throughout' names it where it can be seen; else look for code that leaves torch."
        )
    return Finding.judged(ROUNDING_FLOOR, detail if floor > bound else None, advice, detail)
