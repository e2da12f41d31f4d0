"""A model as it is scored, compared with its own logits, and searched for operations that round."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from isentrope.models.architecture import UnsupportedModelError, name_of, refusal_by_name
from isentrope.models.batching import micro_batches
from isentrope.models.precision import Precision, RoundingOperations
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.head import Scorer
from isentrope.policy.token_statistics import LOGITS_HELD, Scores, Softmax

OWN_LOGITS = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest root mean square difference from the model's own scores, nats; 0.3 in shorter types."""

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

    Args:
        scorer: The model with its head.
        softmax: Of the logits.
        precision: Precision in force.
        rollouts: Sequences, of which the start of one is compared; by default a few random ones, as
            where the policy drew no token of any start.
        scores: What they were scored at; scored here by default.

    Raises:
        UnsupportedModelError: If log-probabilities or entropies are not those of the model's own
            logits.
    """
    most = max(1, min(OWN_TOKENS, LOGITS_HELD // int(scorer.lm.config.vocab_size)))
    if rollouts is None or not bool(rollouts.mask[:, :most].any()):
        sequences, scores, rows = random_sequences(scorer), None, range(3)
    else:
        sequences, rows = rollouts, [int(rollouts.mask[:, :most].sum(1).argmax())]
    for row in rows:
        first = sequences.response_ids[row][:most]  # all of them taken as drawn
        one = Rollouts([sequences.prompt_ids[row]], [first], torch.zeros(1, dtype=torch.long))
        m = len(first)
        drawn = sequences.mask[row][:m]  # what the policy did not draw has no score
        if scores is None:
            batch = micro_batches(one, 8192)[0].to(scorer.device)
            with torch.no_grad(), scorer.evaluating(precision, batch.input_ids):
                s, entropy = scorer.scores(batch, softmax)
        else:
            s, entropy = scores.logprobs[row][:m], scores.entropies[row][:m]
        logits = own_logits(scorer, one, precision)
        log_p = (logits.to(softmax.dtype) / softmax.temperature).log_softmax(-1)
        targets = first[:, None].to(log_p.device)
        theirs = log_p.gather(1, targets)[:, 0], -(log_p.exp() * log_p).sum(-1)
        for ours, own in zip((s, entropy), theirs, strict=True):
            gap = (ours.cpu().double() - own.cpu().double())[drawn]
            size = float(gap.square().mean().sqrt())
            if not size < OWN_LOGITS.get(logits.dtype, 0.3):
                raise UnsupportedModelError(
                    f"isentrope does not support {name_of(scorer.lm)}: its own logits are not "
                    "those of its output embedding with the scale and the soft cap that its "
                    f"configuration declares (scores differ by {size:.2g} nats)."
                )


def own_logits(scorer: Scorer, one: Rollouts, precision: Precision) -> Tensor:
    """The model's own logits.

    Args:
        scorer: The model with its head.
        one: One sequence.
        precision: Precision in force.

    Returns:
        (m, v) for the m tokens of its response.
    """
    lm: Any = scorer.lm
    prompt, response = one.prompt_ids[0], one.response_ids[0]
    ids = torch.cat((prompt, response))[:-1][None].to(scorer.device)
    accepted = signature(lm.forward).parameters
    requested = {"logits_to_keep": len(response), "use_cache": False}
    options = {name: value for name, value in requested.items() if name in accepted}
    with torch.no_grad(), scorer.evaluating(precision, ids):
        return lm(input_ids=ids, **options).logits[0, -len(response) :]


def random_sequences(scorer: Scorer) -> Rollouts:
    """Random sequences of different lengths, without the padding token."""
    config: Any = scorer.lm.config
    generator = torch.Generator().manual_seed(0)
    vocabulary = torch.arange(int(config.vocab_size))
    padding = getattr(config, "pad_token_id", None)
    vocabulary = vocabulary[vocabulary != (-1 if padding is None else padding)]

    def tokens(n: int) -> Tensor:
        return vocabulary[torch.randint(len(vocabulary), (n,), generator=generator)]

    prompts, responses = ([tokens(n) for n in sizes] for sizes in ((5, 2, 1), (6, 4, 2)))
    return Rollouts(prompts, responses, torch.arange(3))


def require_float64(scorer: Scorer, precision: Precision) -> None:
    """Refuse a model that rounds to a shorter type somewhere inside a float64 forward pass.

    Args:
        scorer: The model with its head.
        precision: A float64 precision.

    Raises:
        UnsupportedModelError: Naming the first operation that rounds.
    """
    if operations := rounding_operations(scorer, precision):
        raise UnsupportedModelError(
            f"{name_of(scorer.lm)} rounds inside float64: {operations[0]} "
            f"({len(operations)} operations). "
            "Use precision='float32', or attention 'sdpa' or 'eager' without custom kernels."
        )


def rounding_operations(scorer: Scorer, precision: Precision) -> list[str]:
    """The operations of a forward pass whose results are shorter than float64.

    Args:
        scorer: The model with its head.
        precision: A float64 precision.

    Returns:
        One entry per operation, with its type.
    """
    recorder, batch = RoundingOperations(), micro_batches(random_sequences(scorer), 8192)[0]
    with torch.no_grad(), precision.active(), recorder, refusal_by_name(scorer.lm):
        scorer.scores(batch.to(scorer.device), Softmax(1.0, 8192, torch.float64))
    return recorder.found


POSITIONS = 256
"""Distributions that are sorted at a time: one of a large vocabulary takes megabytes."""


def truncated_entropies(
    scorer: Scorer,
    batch: Rollouts,
    precision: Precision,
    temperature: float,
    top_k: int,
    top_p: float,
) -> Tensor:
    """Entropy (n, t) of what top-k, 0 for all, and then top-p leave of each distribution."""
    rows: list[Tensor] = []
    for i in range(len(batch)):
        parts: list[Tensor] = []
        for logits in own_logits(scorer, batch.select([i]), precision).split(POSITIONS):
            p = (logits.double() / temperature).softmax(-1)
            p = p.sort(-1, descending=True)[0][:, : top_k or None]
            p = p / p.sum(-1, keepdim=True)
            p = p * (p.cumsum(-1) - p < top_p)
            parts.append(torch.special.entr(p / p.sum(-1, keepdim=True)).sum(-1).cpu())
        rows.append(torch.cat(parts))
    return pad_sequence(rows, batch_first=True) * batch.mask
