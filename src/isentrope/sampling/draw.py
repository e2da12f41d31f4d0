"""Responses drawn from a policy: t ~ π_θ(. | p) at the policy's temperature, nothing filtered.

`generate` of transformers runs the model and its cache. The draw itself is done here: one uniform
per (sequence, position), fixed before anything runs, read through the inverse CDF of the float64
softmax of the raw logits. So a seed gives the same sequences at any batch size and padding, two
policies read through the same uniforms are coupled (common random numbers), and the log-probability
kept beside a token is the one it was drawn with. LoRA is merged meanwhile where that is exact to
rounding (`models.merged`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import logging
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from isentrope.models.architecture import name_of, refusal_by_name, text_config
from isentrope.models.attention import attention_in_blocks
from isentrope.models.float_switches import own_forward
from isentrope.models.merged import adapters_merged
from isentrope.models.module_state import KeptAttributes
from isentrope.policy.language_model import Policy
from isentrope.system.memory import free_memory, give_back, is_lack_of_memory, mapped_blocks
from isentrope.system.progress import ProgressCallback, silent

_log = logging.getLogger("isentrope")


class DrawnResponses(NamedTuple):
    """n responses as they were drawn, one 1-D tensor per response.

    Attributes:
        response_ids: Token ids, EOS included.
        sampler_logprobs: The log-probability each token was drawn with, float64, nats.
        sampler_entropies: The entropy of the distribution it was drawn from, float64, nats; None
            where the sampler does not give it.
    """

    response_ids: list[Tensor]
    sampler_logprobs: list[Tensor]
    sampler_entropies: list[Tensor] | None


SHARE_OF_FREE = 0.5
"""Part of a device's free memory for cache and logits: a layer's cache is copied as it grows, and
the allocator keeps blocks of the sizes that it had before."""

NEXT_LOGITS = 28
"""Bytes of a next token's logit while it is drawn: float32, and its copy by `generate`; in float64
its log-probability and its probability; and what reductions take."""


def cache_bytes(config: Any, sequences: int, length: int, size: int) -> int:
    """Keys and values of sequences that are sampled at a time.

    Args:
        config: Configuration of the model.
        sequences: Sequences at a time.
        length: Tokens of each at the end.
        size: Bytes of a number.

    Returns:
        Bytes.
    """
    config = config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    keys = 2 * config.num_hidden_layers * groups
    return sequences * keys * width * length * size


def next_logits(config: Any, sequences: int) -> int:
    """Bytes of the logits of the next token of sequences that are sampled at a time."""
    return sequences * NEXT_LOGITS * config.get_text_config(decoder=True).vocab_size


def sequences_at_once(policy: Policy, longest_prompt: int, response: int, batch_size: int) -> int:
    """How many sequences to sample at a time: on a device as many as its free memory holds.

    A decoding step of a device takes as long for a few sequences as for many. On a CPU it does
    not, and several processes must take equally many.

    Args:
        policy: The policy.
        longest_prompt: Tokens.
        response: Longest response in tokens.
        batch_size: The number on a CPU, and the least on a device.

    Returns:
        `batch_size` at least.
    """
    if policy.device.type == "cpu" or not policy.alone:
        return batch_size
    config = text_config(policy.causal_lm)
    size = next(policy.causal_lm.parameters()).element_size()
    cache = cache_bytes(config, 1, longest_prompt + response, size)
    free = int(SHARE_OF_FREE * free_memory(policy.device))
    return max(batch_size, free // (cache + next_logits(config, 1)))


def sample_responses(
    policy: Policy,
    prompt_ids: Sequence[Tensor],
    uniforms: Tensor,
    max_new_tokens: int,
    batch_size: int = 64,
    progress: ProgressCallback | None = None,
) -> DrawnResponses:
    """Map uniforms to responses by the inverse CDF of the policy.

    Inside `policy.shifted(v, η)` the same uniforms give the coupled responses of θ + ηv.

    Args:
        policy: The policy, in evaluation mode.
        prompt_ids: n prompts, 1-D int64 each.
        uniforms: (n, >= max_new_tokens) float64 in [0, 1), one per sequence and position.
        max_new_tokens: Longest response in tokens.
        batch_size: Sequences at a time; a device takes more where its memory holds them.
        progress: Called after each batch.

    Returns:
        The responses, on the CPU.

    Raises:
        ValueError: If `batch_size` is < 1, dropout is active, or the logits are not finite.
        MemoryError: Where one sequence does not fit; of a device it is torch's own error.
        RuntimeError: What else torch raises.
    """
    policy.require_no_dropout()
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
    n = len(prompt_ids)
    sequences: list[tuple[Tensor, ...]] = [()] * n
    order = sorted(range(n), key=lambda i: -len(prompt_ids[i]))  # similar lengths share a batch
    longest = max(map(len, prompt_ids), default=0)
    with ExitStack() as merged:
        with policy.precision.active():
            merged.enter_context(adapters_merged(policy.model))
        at_once = sequences_at_once(policy, longest, max_new_tokens, batch_size)
        for chosen in policy.rounds(order, at_once):
            drawn: list[tuple[Tensor, ...]] = []
            while len(drawn) < len(chosen):  # in smaller pieces where memory is short
                piece = chosen[len(drawn) : len(drawn) + at_once]
                prompts = [prompt_ids[i] for i in piece]
                try:
                    drawn += _generate(policy, prompts, uniforms[piece], max_new_tokens)
                    continue
                except (RuntimeError, MemoryError) as error:
                    at_once = min(at_once, len(chosen)) // 2
                    if not at_once or policy.sharded or not is_lack_of_memory(error):
                        raise
                    _log.warning(
                        "Memory is short: %d responses at a time from here on "
                        "(sampling.batch_size).",
                        at_once,
                    )
                give_back()
            for i, sequence in policy.gather_lists(list(zip(chosen, drawn, strict=True))):
                sequences[i] = sequence
            (progress or silent)(sum(map(bool, sequences)), n)
    return DrawnResponses(*(list(column) for column in zip(*sequences, strict=True)))


def _generate(
    policy: Policy, prompts: list[Tensor], uniforms: Tensor, max_new_tokens: int
) -> list[tuple[Tensor, ...]]:
    """Draw one batch.

    `generate` fills what a given config leaves open from the model's own (repetition penalty,
    top-k 50, ...), so the model's own is replaced by one without any filter meanwhile.

    Returns:
        Tokens, log-probabilities and entropies of each sequence, (t,) on the CPU.

    Raises:
        RuntimeError: If the model's own `generate` drew other tokens, or drew by itself.
    """
    device = policy.device
    model = policy.causal_lm
    pad = policy.pad_token_id or 0
    input_ids = pad_sequence(prompts, True, pad, padding_side="left").to(device)
    ones = [torch.ones_like(p) for p in prompts]
    mask = pad_sequence(ones, True, padding_side="left").to(device)
    draw = _InverseCdf(uniforms.to(device), policy.temperature)
    models_config = model.generation_config
    # no derivative is taken, so attention may be fused; the plain kernel keeps float64
    plain = policy.precision.runtime_dtype == "float64"
    blocks = attention_in_blocks(model, input_ids) if plain else nullcontext()
    with (
        mapped_blocks(),
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        policy.precision.active(forward_mode=False),
        torch.no_grad(),
        own_forward(model),
        refusal_by_name(model),
        KeptAttributes(model),
        draw.after_prompts,  # later each query is alone
    ):
        draw.after_prompts.enter_context(blocks)
        try:
            model.generation_config = GenerationConfig(
                do_sample=False,  # of what `draw` leaves, one token
                max_new_tokens=max_new_tokens,
                eos_token_id=list(policy.eos_token_ids) or None,
                pad_token_id=policy.pad_token_id,
                use_cache=True,
                disable_compile=True,
            )
            out = model.generate(
                input_ids,
                attention_mask=mask,
                logits_processor=LogitsProcessorList([draw]),
                synced_gpus=policy.sharded,  # none ends before all have ended
            )
        finally:
            model.generation_config = models_config
    if not draw.drawn:
        raise RuntimeError(
            f"generate of {name_of(model)} draws tokens by itself, so that their log-probabilities "
            "are not known: isentrope does not support this model."
        )
    columns = [torch.stack(x, 1).cpu() for x in zip(*draw.drawn, strict=True)]
    return _cut_at_ends(out[:, input_ids.shape[1] :].cpu(), columns, policy.eos_token_ids)


def _cut_at_ends(
    generated: Tensor, columns: list[Tensor], eos_token_ids: Sequence[int]
) -> list[tuple[Tensor, ...]]:
    """What was drawn of each sequence, up to its end.

    Args:
        generated: (b, t) tokens that `generate` returned.
        columns: (b, t) tokens, log-probabilities and entropies as they were drawn.
        eos_token_ids: Tokens that end a response.

    Returns:
        Each column of each sequence, (t,).

    Raises:
        RuntimeError: If other tokens were returned than drawn.
    """
    ends = torch.tensor(eos_token_ids, dtype=generated.dtype)
    sequences: list[tuple[Tensor, ...]] = []
    for row, tokens in enumerate(generated):
        # up to and with the first EOS, even where padding is EOS too
        ended = torch.isin(tokens, ends).nonzero()
        length = int(ended[0]) + 1 if len(ended) else len(tokens)
        sequences.append(tuple(x[row, :length].clone() for x in columns))
        if not torch.equal(tokens[:length], sequences[row][0]):
            raise RuntimeError(
                "generate returned other tokens than were drawn: the model's own generate method "
                "or another logits processor interfered."
            )
    return sequences


@dataclass
class _InverseCdf(LogitsProcessor):
    """Draw token a where CDF(a-1) <= u < CDF(a), and make it the largest logit for `generate`.

    `after_prompts` is closed once the model has read the prompts.
    """

    uniforms: Tensor
    temperature: float
    drawn: list[tuple[Tensor, Tensor, Tensor]] = field(  # s and H beside each token
        default_factory=list[tuple[Tensor, Tensor, Tensor]]
    )
    after_prompts: ExitStack = field(default_factory=ExitStack)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.after_prompts.close()
        step = len(self.drawn)
        logprobs = scores.double().div_(self.temperature).log_softmax(-1)  # (b, v)
        # a probability of 0 adds nothing to the entropy, whatever its logarithm
        logprobs.clamp_min_(torch.finfo(logprobs.dtype).min)
        probabilities = logprobs.exp()
        entropy = -torch.einsum("bv,bv->b", probabilities, logprobs)
        cdf = probabilities.cumsum_(-1)
        # of the last sum, which rounding leaves off 1; a token of probability 0 is never drawn
        height = self.uniforms[:, step, None] * cdf[:, -1:]
        token = torch.searchsorted(cdf, height, right=True).clamp_(max=cdf.shape[1] - 1)
        logprob = logprobs.gather(1, token)[:, 0]
        is_nan = logprob.isnan()  # so is then every other of the row
        if bool(is_nan.any()):
            raise ValueError(
                f"The logits hold NaN or infinity at response position {step + 1} (row "
                f"{int(is_nan.nonzero()[0])} of the batch): check the checkpoint's weights, or use "
                "a longer precision."
            )
        self.drawn.append((token[:, 0], logprob, entropy))
        return scores.scatter_(1, token, torch.inf)  # generate's own copy of them
