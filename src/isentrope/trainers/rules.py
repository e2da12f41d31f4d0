"""Rules for what a trainer's arguments add to its step and the computed step lacks.

On-policy every ratio is 1: clips, caps and gates do not act, per token or per sequence, so most
parts of a loss do not change the first update on a batch (`update.objective`). The rules cover the
parts that do. Recorded weights (−∂loss/∂s and −∂loss/∂H of every token) include all of them except
noise, and parts that are not functions of the tokens' log-probabilities and entropies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from isentrope.trainers.arguments import TRAINING_ARGS, SavedArguments
from isentrope.trainers.facts import ArgumentsInUse, Use
from isentrope.trainers.fields import FIELDS
from isentrope.update.objective import OBJECTIVES, RECORDED

_BY_TOKENS = ("dapo", "cispo", "vespo")
"""Losses that divide by the number of tokens of the generation batch."""


@dataclass(frozen=True)
class Obstacle:
    """A part of training's step that the computed step lacks.

    Attributes:
        name: The field of training that it comes from.
        words: Its description, a clause.
    """

    name: str
    words: Annotated[str, Field(alias="what")]


def obstacles_of(arguments: SavedArguments, use: Use) -> list[Obstacle]:
    """The parts of training's step that the computed step lacks, one obstacle per field."""
    args, recorded = ArgumentsInUse(arguments, use), use.objective == RECORDED
    obstacles = []
    if args.trainer == "other" and not recorded:
        words = f"it was trained with {arguments.kind}, whose loss is not known here"
        obstacles.append(Obstacle("trainer", words))
    for rule in _RULES:
        if (rule.of_recorded or not recorded) and rule.when(args):
            words = rule.words.format(name=rule.name, value=args.get(rule.name), args=args)
            obstacles.append(Obstacle(rule.name, words))
    return obstacles


def notes_of(arguments: SavedArguments, use: Use) -> list[str]:
    """Sentences on small or unknown differences between training's step and the computed step."""
    fields, notes = arguments.fields, []
    notes = [
        f"Training ran under {name} autocast: its gradient is one of rounded products, and the "
        "step measured here is not rounded. In tests v differed by 13 to 16 % at the first step "
        "of Adam and by .6 to 2 % at the fourth. With precision.update_vector: {use_amp: true, "
        f"amp_dtype: {kind}}} it is rounded too."
        for name, kind in (("bf16", "bfloat16"), ("fp16", "float16"))
        if fields.get(name) and use.rounding != kind
    ]
    if use.objective == RECORDED:
        return notes
    if fields.get("use_vllm"):
        notes.append(
            "Training sampled with vLLM: its correction for vLLM's log-probabilities is not in the "
            "step measured here."
        )
    plain = (name for name, value in fields.items() if value and not name.startswith("_"))
    if unknown := sorted(name for name in plain if name not in FIELDS):
        notes.append(
            f"{TRAINING_ARGS} sets {', '.join(unknown)}, which this version does not know: compare "
            "one step with training's own if that changes the loss."
        )
    return notes


@dataclass(frozen=True)
class _Rule:
    name: str
    when: Callable[[ArgumentsInUse], bool]
    words: str
    of_recorded: bool = False
    """Whether a step with recorded weights lacks it too."""


def _filter(name: str, *usual: Any) -> _Rule:
    words = "responses were drawn with {name}={value}, from another distribution than the policy's"
    return _Rule(name, lambda a: a.sampled and a.differs(name, *usual), words, of_recorded=True)


_ENTROPY_TERM = (
    "an entropy term is in the loss ({name}={value}): record the step (objective recorded, with "
    "the entropy_weights of the checkpoint's next_update/rollouts.parquet)"
)


_LOSS = "the loss {name}={value} is not known here"
_STALE = "{name}={value} with estimator.off_policy is not computed here"
_RULES = (
    _Rule(
        "loss_type",
        lambda a: a.trainer == "grpo" and a.get("loss_type", "grpo") not in OBJECTIVES,
        _LOSS,
    ),
    _Rule(
        "loss_type",
        lambda a: a.trainer == "sft" and a.differs("loss_type", "nll", "chunked_nll"),
        _LOSS,
    ),
    _Rule(
        "beta",
        lambda a: a.trainer == "grpo" and a.differs("beta", 0),
        "a KL term is in the loss ({name}={value})",
    ),
    _Rule(
        "beta",
        lambda a: a.trainer == "rloo" and a.advantages_computed and a.differs("beta", 0),
        "a KL term is in the rewards ({name}={value}): give batch_config.U_file with its own "
        "advantages",
    ),
    _Rule(
        "entropy_coef",
        # an adaptive term is absent from the steps whose entropy is above its target
        lambda a: (
            a.sampled
            and a.differs("entropy_coef", 0)
            and not (a.recorded and (a.use.entropy_weights or a.get("use_adaptive_entropy")))
        ),
        _ENTROPY_TERM,
        of_recorded=True,
    ),
    _Rule(
        "use_adaptive_entropy",
        lambda a: a.sampled and a.differs("use_adaptive_entropy", False),
        _ENTROPY_TERM,
    ),
    _Rule(
        "top_entropy_quantile",
        lambda a: a.sampled and a.differs("top_entropy_quantile", 1),
        "only tokens of high entropy count ({name}={value})",
    ),
    _filter("top_k", 0, -1),
    _filter("top_p", 1),
    _filter("min_p", 0),
    _filter("repetition_penalty", 1),
    _filter("generation_kwargs", {}, ""),
    _filter("vllm_structured_outputs_regex"),
    _filter("vllm_guided_decoding_regex"),
    _Rule(
        "num_iterations",
        lambda a: a.uses > 1 and a.unweighted,
        "each batch is used {args.uses} times ({name}), so that most steps are on stale responses: "
        "{args.remedy}",
    ),
    _Rule(
        "steps_per_generation",
        lambda a: a.per_generation != a.parts and a.uses == 1 and a.unweighted,
        "a generation lasts for several steps ({name}={value}, gradient_accumulation_steps="
        "{args.parts}), so that most are on stale responses: {args.remedy}",
    ),
    _Rule(
        "steps_per_generation",
        lambda a: a.sampled and a.per_generation != a.parts and a.use.objective in _BY_TOKENS,
        "the loss divides by the tokens of a generation, which is not a step's batch "
        "({name}={value}, gradient_accumulation_steps={args.parts})",
    ),
    _Rule(
        "delta",
        lambda a: a.differs("delta") and (a.ratios_act or float(a.get("delta") or 0) < 1),
        "a second clip is in the loss ({name}={value})",
    ),
    _Rule(
        "importance_sampling_level",
        lambda a: a.ratios_act and a.differs("importance_sampling_level", "token"),
        _STALE,
    ),
    _Rule(
        "off_policy_mask_threshold",
        lambda a: (
            a.differs("off_policy_mask_threshold") and (a.ratios_act or bool(a.get("use_vllm")))
        ),
        "responses far from their sampler are masked ({name}={value})",
    ),
    _Rule(
        "mask_truncated_completions",
        lambda a: a.sampled and a.differs("mask_truncated_completions", False),
        "responses that were cut do not count ({name}={value})",
    ),
    _Rule(
        "scale_rewards",
        lambda a: a.advantages_computed and a.get("scale_rewards") == "batch",
        "advantages are divided by the batch's standard deviation ({name}={value}): give "
        "batch_config.U_file with its own advantages",
    ),
    _Rule(
        "multi_objective_aggregation",
        lambda a: (
            a.advantages_computed and a.differs("multi_objective_aggregation", "sum_then_normalize")
        ),
        "advantages are sums over several rewards ({name}={value}): give batch_config.U_file with "
        "its own advantages",
    ),
    _Rule(
        "normalize_advantages",
        lambda a: a.advantages_computed and a.differs("normalize_advantages", False),
        "advantages are normalised over the batch ({name}={value}): give batch_config.U_file with "
        "its own advantages",
    ),
    _Rule(
        "reward_clip_range",
        lambda a: a.advantages_computed and a.differs("reward_clip_range"),
        "rewards are clipped ({name}={value}): give batch_config.U_file with its own advantages",
    ),
    _Rule(
        "label_smoothing_factor",
        lambda a: a.trainer == "sft" and a.differs("label_smoothing_factor", 0),
        "labels are smoothed ({name}={value})",
        of_recorded=True,
    ),
    _Rule(
        "average_tokens_across_devices",
        lambda a: (
            a.trainer == "sft"
            and a.processes > 1
            and a.differs("average_tokens_across_devices", True)
        ),
        "each of {args.processes} processes has its own mean over tokens ({name}={value})",
    ),
    _Rule(
        "neftune_noise_alpha",
        lambda a: a.differs("neftune_noise_alpha", 0),
        "noise is added to the embeddings ({name}={value})",
        of_recorded=True,
    ),
)
