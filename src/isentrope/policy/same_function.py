"""The policy that is scored, compared with the model that is trained."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from isentrope.models.architecture import (
    UnsupportedModelError,
    family_of,
    name_of,
    text_config,
)
from isentrope.models.batching import padded
from isentrope.models.float_switches import RoundingOperations
from isentrope.models.precision import Precision
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import root_mean_square
from isentrope.parallel.sharded import is_sharded
from isentrope.policy.head import Scorer
from isentrope.policy.own_logits import own_logits, random_sequences
from isentrope.policy.token_statistics import LOGITS_HELD, Scores, Softmax

OWN_LOGITS_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest root mean square difference from the model's own scores, nats."""

ROUNDED = 0.3
"""The same in shorter types, and where the model's own forward pass rounds to one (autocast)."""

OWN_TOKENS = 1024
"""Tokens of a response that are compared, at most: the first ones, without the rest of it."""


def require_own_logits(
    scorer: Scorer,
    softmax: Softmax,
    precision: Precision,
    rollouts: Rollouts | None = None,
    scores: Scores | None = None,
) -> None:
    """Refuse a model whose own logits are not those that it is scored by.

    Its own logits are those of the outermost module, which is the one that is trained, of one
    sequence alone. Without rollouts, or where the policy drew no token of any start of theirs, a
    few random sequences are compared (`require_same_function`).

    Args:
        scorer: The model with its head.
        softmax: Of the logits.
        precision: Precision in force.
        rollouts: Sequences, of which the start of one is compared.
        scores: What they were scored at; scored here by default.

    Raises:
        UnsupportedModelError: If log-probabilities or entropies are not those of the model's own
            logits.
    """
    length = max(1, min(OWN_TOKENS, LOGITS_HELD // int(text_config(scorer.lm).vocab_size)))
    if rollouts is None or not bool(rollouts.mask[:, :length].any()):
        require_same_function(scorer, softmax, precision)
        return
    row = int(rollouts.mask[:, :length].sum(1).argmax())
    first = rollouts.response_ids[row][:length]  # all of them taken as drawn
    m = len(first)
    drawn = rollouts.mask[row][:m]  # what the policy did not draw has no score
    sequence = Rollouts([rollouts.prompt_ids[row]], [first], torch.zeros(1, dtype=torch.long))
    if scores is None:
        ours = batch_scores(scorer, softmax, precision, sequence)[0]
    else:
        ours = scores.logprobs[row][:m], scores.entropies[row][:m]
    _require_own(scorer, softmax, precision, sequence, ours, drawn)


def require_same_function(scorer: Scorer, softmax: Softmax, precision: Precision) -> None:
    """Refuse a model that is another function of a sequence where it is scored.

    On three short random sequences, in six passes, one of them of an adapter alone:

        a row in a batch of three     against the outermost module on the row alone
        the start of a row            against the whole row
        an adapter that is moved      against the adapter as it is

    Args:
        scorer: The model with its head.
        softmax: Of the logits.
        precision: Precision in force.

    Raises:
        UnsupportedModelError: Saying which of them differ, or do not, and by how many nats.
    """
    sequences = random_sequences(scorer)
    together = batch_scores(scorer, softmax, precision, sequences)
    if getattr(scorer.outermost, "peft_config", None):
        _require_acting(scorer, softmax, precision, sequences, together)
    for row, ours in enumerate(together):
        sequence = sequences.select([row])
        full = _require_own(scorer, softmax, precision, sequence, ours)
        if row == 0:
            half = Rollouts(
                sequence.prompt_ids,
                [x[: len(x) // 2] for x in sequence.response_ids],
                torch.zeros(1).long(),
            )
            _require_causal(scorer, softmax, precision, half, full)


ResponseScores = tuple[Tensor, Tensor]
"""Log-probabilities and entropies of the tokens of one response, nats, each (m,)."""


def batch_scores(
    scorer: Scorer, softmax: Softmax, precision: Precision, rollouts: Rollouts
) -> list[ResponseScores]:
    """Score a few sequences in one micro-batch.

    Args:
        scorer: The model with its head.
        softmax: Of the logits.
        precision: Precision in force.
        rollouts: n short sequences.

    Returns:
        For each what its m tokens are scored at.
    """
    batch = padded(rollouts, list(range(len(rollouts)))).to(scorer.device)
    with torch.no_grad(), scorer.evaluating(precision, batch.input_ids):
        packed = scorer.scores(batch, softmax)
    sizes = [len(response) for response in rollouts.response_ids]
    s, entropies = (torch.split(x, sizes) for x in packed)
    return list(zip(s, entropies, strict=True))


def _require_own(
    scorer: Scorer,
    softmax: Softmax,
    precision: Precision,
    sequence: Rollouts,
    ours: ResponseScores,
    drawn: Tensor | None = None,
) -> ResponseScores:
    """Compare one sequence's scores with those of the outermost module's logits.

    Returns:
        The latter.

    Raises:
        UnsupportedModelError: If they differ, saying which comparison failed.
    """
    logits = own_logits(scorer, sequence, precision)
    theirs = _score_logits(logits, sequence, softmax)
    size = _measure_distance(ours, theirs, drawn)
    bound = _bound_rounding(scorer, logits)
    if size < bound or (size < ROUNDED and _rounds(scorer, sequence, precision)):
        return theirs
    alone = batch_scores(scorer, softmax, precision, sequence)[0]
    inner_logits = own_logits(scorer, sequence, precision, scorer.lm)
    inner = _score_logits(inner_logits, sequence, softmax)
    if _measure_distance(alone, theirs, drawn) < bound:
        cause = (
            "a row of a batch is not scored as the same row alone, by its own logits: it depends "
            "on its neighbours, or on padding"
        )
    elif _measure_distance(alone, inner, drawn) < bound:
        cause = (
            f"the logits of {type(scorer.outermost).__name__}, which is trained, are not those of "
            "the model in it, which is scored: something acts in the wrapper's own forward pass"
        )
    else:
        cause = (
            "its own logits are not those of its output embedding with the scale and the soft cap "
            "that its configuration declares"
        )
    raise UnsupportedModelError(_refuse(scorer, f"{cause} (scores differ by {size:.2g} nats)"))


def _require_causal(
    scorer: Scorer, softmax: Softmax, precision: Precision, half: Rollouts, full: ResponseScores
) -> None:
    """Compare the start of a sequence with the same tokens of the whole."""
    logits = own_logits(scorer, half, precision)
    start = _score_logits(logits, half, softmax)
    m = len(half.response_ids[0])
    size = _measure_distance(start, (full[0][:m], full[1][:m]))
    if size < _bound_rounding(scorer, logits) or (
        size < ROUNDED and _rounds(scorer, half, precision)
    ):
        return
    cause = (
        "a prefix alone is not scored as the same tokens of the whole sequence (by its own logits; "
        f"scores differ by {size:.2g} nats): it looks at later tokens, so its scores are not the "
        "log-probabilities that tokens are drawn with"
    )
    raise UnsupportedModelError(_refuse(scorer, cause))


def _require_acting(
    scorer: Scorer,
    softmax: Softmax,
    precision: Precision,
    sequences: Rollouts,
    unmoved: Sequence[ResponseScores],
) -> None:
    """Refuse an adapter that changes no score, wherever its parameters are."""
    generator = torch.Generator().manual_seed(0)
    theta = {n: p for n, p in scorer.named_parameters() if p.requires_grad}
    if any(map(is_sharded, theta.values())) or not theta:
        return
    perturbed: dict[str, Tensor] = {}
    for name, parameter in theta.items():
        noise = torch.randn(parameter.shape, generator=generator).to(parameter)
        perturbed[name] = parameter.detach() + 0.1 * noise
    batch = padded(sequences, list(range(len(sequences)))).to(scorer.device)
    with torch.no_grad(), scorer.evaluating(precision, batch.input_ids):
        packed: Any = functional_call(scorer, perturbed, (Scorer.scores, batch, softmax))
    if torch.equal(packed[0], torch.cat([s for s, _ in unmoved])):
        configs = scorer.outermost.peft_config.values()
        kinds = {
            "aLoRA, which acts in the wrapper's forward pass, after its invocation tokens"
            if getattr(config, "alora_invocation_tokens", None)
            else str(config.peft_type.value)
            for config in configs
        }
        cause = (
            f"its adapter ({', '.join(sorted(kinds))}) changes no score of the model in it (0 "
            "nats) where its weights are moved, so the base model alone would be measured"
        )
        raise UnsupportedModelError(_refuse(scorer, cause))


def _refuse(scorer: Scorer, cause: str) -> str:
    """The sentence that names the model and the cause."""
    return f"isentrope does not support {name_of(scorer.lm)}: {cause}{family_of(scorer.lm)}."


def _score_logits(logits: Tensor, sequence: Rollouts, softmax: Softmax) -> ResponseScores:
    """The log-probabilities and entropies of one response, from logits (m, v)."""
    log_p = (logits.to(softmax.dtype) / softmax.temperature).log_softmax(-1)
    targets = sequence.response_ids[0][:, None].to(log_p.device)
    return log_p.gather(1, targets)[:, 0], -(log_p.exp() * log_p).sum(-1)


def _measure_distance(
    ours: ResponseScores, theirs: ResponseScores, drawn: Tensor | None = None
) -> float:
    """The larger root mean square difference of s and of H, nats; of drawn tokens alone."""
    gaps = [x.cpu().double() - y.cpu().double() for x, y in zip(ours, theirs, strict=True)]
    chosen = gaps if drawn is None else [gap[drawn] for gap in gaps]
    sizes = [root_mean_square(gap) for gap in chosen]
    return math.nan if any(map(math.isnan, sizes)) else max(sizes)


def _bound_rounding(scorer: Scorer, logits: Tensor) -> float:
    """The largest difference that rounding explains: that of the shortest type in use."""
    types = {p.dtype for p in scorer.parameters() if p.is_floating_point()}
    return max(OWN_LOGITS_TOLERANCE.get(dtype, ROUNDED) for dtype in {logits.dtype, *types})


def _rounds(scorer: Scorer, sequence: Rollouts, precision: Precision) -> bool:
    """Whether the model's own forward pass takes products in 16 bits, as under autocast."""
    recorder = RoundingOperations()
    with recorder:
        own_logits(scorer, sequence, precision)
    return any(operation.endswith(("bfloat16", "float16")) for operation in recorder.rounded)
