"""A model's own logits, and a search for operations that round."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from isentrope.models.architecture import (
    UnsupportedModelError,
    name_of,
    refusal_by_name,
    special_tokens,
    text_config,
)
from isentrope.models.batching import micro_batches
from isentrope.models.float_switches import RoundingOperations, own_forward
from isentrope.models.precision import Precision
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.head import Scorer
from isentrope.policy.token_statistics import Softmax


def own_logits(
    scorer: Scorer, sequence: Rollouts, precision: Precision, module: Any = None
) -> Tensor:
    """The model's own logits: those of the outermost module, which is the one that is trained.

    Args:
        scorer: The model with its head.
        sequence: One sequence.
        precision: Precision in force.
        module: Another module, such as the causal LM inside of the outermost.

    Returns:
        (m, v) for the m tokens of its response.
    """
    model: Any = scorer.outermost if module is None else module
    prompt = sequence.prompt_ids[0]
    response = sequence.response_ids[0]
    ids = torch.cat((prompt, response))[:-1][None].to(scorer.device)
    requested = {"logits_to_keep": len(response), "use_cache": False}
    with torch.no_grad(), own_forward(model, scorer.lm), scorer.evaluating(precision, ids):
        accepted = signature(scorer.lm.forward).parameters
        options = {name: value for name, value in requested.items() if name in accepted}
        return model(input_ids=ids, **options).logits[0, -len(response) :]


def random_sequences(scorer: Scorer) -> Rollouts:
    """Random sequences of different lengths, without tokens that stand for padding or an image."""
    config = text_config(scorer.lm)
    generator = torch.Generator().manual_seed(0)
    vocabulary = torch.arange(int(config.vocab_size))
    vocabulary = vocabulary[~torch.isin(vocabulary, torch.tensor(special_tokens(scorer.lm)))]
    prompts, responses = (
        [vocabulary[torch.randint(len(vocabulary), (n,), generator=generator)] for n in lengths]
        for lengths in ((5, 2, 1), (6, 4, 2))
    )
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
    recorder = RoundingOperations()
    batch = micro_batches(random_sequences(scorer), 8192)[0]
    with torch.no_grad(), precision.active(), recorder, refusal_by_name(scorer.lm):
        scorer.scores(batch.to(scorer.device), Softmax(1.0, 8192, torch.float64))
    return recorder.rounded


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
            before = p.cumsum(-1) - p
            p = p.where(before < top_p, 0.0)
            parts.append(torch.special.entr(p / p.sum(-1, keepdim=True)).sum(-1).cpu())
        rows.append(torch.cat(parts))
    return pad_sequence(rows, batch_first=True) * batch.mask
